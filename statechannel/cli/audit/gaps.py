"""Command `statechannel audit gaps`: the gaps in service, once or as they open and end."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from enum import StrEnum
from typing import Annotated, Any, NamedTuple

import typer
from rich.console import Group, RenderableType
from rich.text import Text

from statechannel.audit.engine import LOCAL, AuditResult, LiveSource, Rows, Wants
from statechannel.audit.errors import AuditQuestionError
from statechannel.audit.gap_list import ALL_GAPS, GapFilter, GapSums, total_gap_sum
from statechannel.audit.gaps import GapCause, GapEnd, with_standstill
from statechannel.audit.history import meant
from statechannel.audit.incidents import TOGETHER_MS
from statechannel.audit.local import audit_export
from statechannel.audit.moments import LogWindow
from statechannel.audit.overlaps import CAVEAT, Successions, WrittenAgain, overlap_rows, overlap_sums
from statechannel.audit.spool import Spool
from statechannel.audit.writers import EXPIRY_MS, Unheard, WritersHeard
from statechannel.cli.audit import tables
from statechannel.cli.audit.options import AuditOptions, audit_options, read_at_ms
from statechannel.cli.audit.parts import Requested, about, log_line, not_named, opened, requesters, require_writer
from statechannel.cli.kit.fitted_tables import Column, Tone, cell
from statechannel.cli.kit.listing import Since, SinceTime, Until, UntilTime
from statechannel.cli.kit.output import (
    Output,
    duration,
    make_table,
    moment,
    print_json_lists,
    print_table,
    say,
    stdout,
    when,
)
from statechannel.cli.kit.screen import EVERY_S, Draw, EndsAfter, Every, Watch, counted, show_result
from statechannel.cli.kit.times import parse_length_ms
from statechannel.protocol.bundle import FULL_UPPER, KeyParts, parse_key


class GapOrder(StrEnum):
    """Order of the list."""

    TIME = "time"
    LENGTH = "length"


@audit_options
def gaps_of(
    asked: AuditOptions,
    of: Annotated[
        str | None, typer.Argument(metavar="[NAMESPACE|BUNDLE|TOPIC]", help="Only gaps of this one; default: all.")
    ] = None,
    since: Since = None,
    until: Until = None,
    cause: Annotated[
        list[GapCause] | None, typer.Option("--cause", help="Only gaps with this cause; may be repeated.")
    ] = None,
    longer_than: Annotated[
        str | None,
        typer.Option("--longer-than", metavar="DURATION", help="Only gaps longer than 500ms, 5s, 2m; and open ones."),
    ] = None,
    open_only: Annotated[bool, typer.Option("--open", help="Only gaps that have not ended.")] = False,
    broker: Annotated[
        str | None, typer.Option("--broker", metavar="BROKER", help="Only gaps with this owner before or after.")
    ] = None,
    sort: Annotated[
        GapOrder, typer.Option("--sort", help="time: by start. length: the open ones and the longest first.")
    ] = GapOrder.TIME,
    single: Annotated[
        bool,
        typer.Option(
            "--single", help="A row for each gap; else those of one broker with one cause that began together are one."
        ),
    ] = False,
    watch: Watch = False,
    every: Every = EVERY_S,
    max_seconds: EndsAfter = None,
) -> None:
    """List the intervals in which no broker served a bundle, with cause and length; worst and sum by namespace.

    With --watch continuously; in a pipe and in JSON a line for each gap that opens or ends from now on, or from --since on.
    """
    if watch:
        _require_live(asked, until)
    window = asked.window(since, until)
    longest_ms = (
        None if longer_than is None else parse_length_ms(longer_than, "--longer-than", beyond="no gap is that long.")
    )
    chosen = GapFilter(window, frozenset(of_these.value for of_these in cause or ()), longest_ms, open_only, broker)
    to_end = asked.as_of is None and until is None

    def read() -> GapsRead:
        return read_gaps(asked, of, chosen, to_end=to_end)

    if watch:
        seen = GapsSeen(ended_too=since is not None, longer_than_ms=longest_ms)

        def read_display() -> tuple[Draw, dict[str, Any]]:
            rows = read().rows
            return _display(list(rows), single=single), {"gaps": rows, "at_ms": read_at_ms(asked.source)}

        output = Output.TABLE if asked.table else Output.JSON
        show_result(read_display, output, watch=True, every_s=every, max_s=max_seconds, new_lines=seen.new_lines)
        return
    gaps = read()
    result, sums, unheard = gaps.result, gaps.sums, gaps.unheard
    rows: Any = gaps.with_requesters(asked)
    by_time = rows
    if sort is GapOrder.LENGTH:
        rows = sorted(rows, key=_longest_first)
    if not asked.table:
        print_json_lists(gaps.head(asked, window), {"gaps": rows})
        return
    log_line(asked, result, window)
    tables.gap_sums(sums)
    selected = "no gap of this kind" if chosen != ALL_GAPS else ""
    longest = sort is GapOrder.LENGTH
    shown: Any = rows if single else together(by_time, None if longest else tables.GAPS_SHOWN + 1)
    if longest and not single:
        shown = sorted(shown, key=_longest_first)
    tables.gaps(rows, shown, answer_lost=tables.answer_lost(result), selected=selected, first=longest)
    if any("merged" in row for row in shown):
        say("note: gaps of one broker that began together are one row; --single lists each")
    _remark_unheard(unheard, open_only=open_only)
    _remark_deleted(rows)


class GapsRead(NamedTuple):
    """Gaps in service of a log, with what belongs to them."""

    result: AuditResult
    rows: Any
    sums: list[dict[str, Any]]
    writers: WritersHeard | None
    unheard: list[Unheard] | None

    def with_requesters(self, asked: AuditOptions) -> _Standstills:
        """The rows with who requested what, and how long a lost owner stood still."""
        return _Standstills(Requested(self.rows, requesters(asked, "the list")), self.writers)

    def head(self, asked: AuditOptions, window: LogWindow) -> dict[str, Any]:
        """The document without its rows."""
        return about(asked, self.result) | {
            "window": window.fields(),
            "namespaces": self.sums,
            "all": total_gap_sum(self.sums),
            "unheard": [late._asdict() for late in self.unheard or ()],
        }


def read_gaps(asked: AuditOptions, of: str | None, chosen: GapFilter, *, to_end: bool) -> GapsRead:
    """The gaps of a namespace, bundle or topic, or all.

    Args:
        to_end: Also the owners that are not heard at the end of the log.

    Raises:
        CommandError: The log has no record of it, or of the broker of `chosen`.
    """
    with asked.as_file() as still:
        result = still.answer(Wants(gaps=True, gap_filter=chosen, cuts=True, owned=to_end))
        rows, sums = _of(result, of)
        if chosen.broker is not None and not len(result.gaps or ()):
            require_writer(still, chosen.broker)
        if of is not None and not len(rows) and not still.answer(Wants(history=of)).named:
            raise not_named(of)
        writers = still.heard()
        return GapsRead(result, rows, sums, writers, _unheard(writers, result.owned or ()) if to_end else [])


_NAMED_MAX = 5


class _Group:
    """Gaps of one broker with one cause and one end that began within a moment."""

    def __init__(self, gap: Mapping[str, Any]) -> None:
        self._start_ms: int = gap["start_ms"]
        self._longest = gap
        self._shortest_ms = gap["length_ms"]
        self._most = {"unassigned_ms": 0, "on_request_ms": 0}
        self._bundles: set[str] = set()
        self._owners: set[str] = set()
        self.add(gap)

    def takes(self, gap: Mapping[str, Any]) -> bool:
        """Whether it began with the others, and is that of another bundle."""
        near = abs(int(gap["start_ms"]) - self._start_ms) <= TOGETHER_MS
        return near and gap["bundle"] not in self._bundles

    def add(self, gap: Mapping[str, Any]) -> None:
        self._bundles.add(gap["bundle"])
        self._owners |= {gap["to"]} - {None}
        self._most = {name: max(most, gap[name]) for name, most in self._most.items()}
        if gap["length_ms"] is not None:
            self._shortest_ms = min(self._shortest_ms, gap["length_ms"])
            if gap["length_ms"] > self._longest["length_ms"]:
                self._longest = gap

    def row(self) -> Mapping[str, Any]:
        """The gap, or one row for several: the number of bundles, the range of lengths, the reason of the longest."""
        longest = self._longest
        if len(self._bundles) == 1:
            return longest
        namespaces = {bundle.rpartition("/")[0] for bundle in self._bundles}
        of = f" of {namespaces.pop()}" if len(namespaces) == 1 else ""
        owners = sorted(self._owners)
        more = f" and {len(owners) - _NAMED_MAX} more" if len(owners) > _NAMED_MAX else ""
        row = {**longest, **self._most, "start_ms": self._start_ms, "bundle": f"{len(self._bundles)} bundles{of}"}
        row["merged"] = len(self._bundles)
        row["to"] = ", ".join(owners[:_NAMED_MAX]) + more or None
        if longest["length_ms"] is not None:
            lengths = dict.fromkeys((duration(self._shortest_ms), duration(longest["length_ms"])))
            row["lengths"] = " to ".join(lengths)
        return row


def together(gaps: Iterable[Mapping[str, Any]], most: int | None = None) -> list[Mapping[str, Any]]:
    """Rows of a table: gaps of one broker with one cause that began within a moment are one, as among the incidents.

    Args:
        gaps: By time.
        most: Number of the newest rows that are kept.
    """
    groups: deque[_Group] = deque(maxlen=most)
    newest: dict[tuple[Any, ...], _Group] = {}
    for gap in gaps:
        alike = gap["from"], gap["cause"], gap["certain"], gap["end"], gap.get("requested_by")
        group = newest.get(alike)
        if group is not None and group.takes(gap):
            group.add(gap)
        else:
            group = newest[alike] = _Group(gap)
            groups.append(group)
    return [group.row() for group in groups]


class _Standstills:
    """Gaps with how long the process of the lost owner stood still."""

    def __init__(self, rows: Rows, writers: WritersHeard | None) -> None:
        self._rows, self._writers = rows, writers

    def __len__(self) -> int:
        return len(self._rows)

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return (with_standstill(row, self._writers) for row in self._rows)


def _remark_deleted(rows: Iterable[Mapping[str, Any]]) -> None:
    """Say that a gap which ends with its namespace was not followed by service."""
    deleted = sorted({gap["bundle"].rpartition("/")[0] for gap in rows if gap["end"] == GapEnd.NAMESPACE_DELETED})
    if deleted:
        more = f" and {len(deleted) - _NAMED_MAX} more" if len(deleted) > _NAMED_MAX else ""
        say(
            f"note: the gaps of a deleted namespace end with its deletion, and its clients have no broker from then on: "
            f"{', '.join(deleted[:_NAMED_MAX])}{more}"
        )


def _remark_unheard(unheard: Sequence[Unheard] | None, *, open_only: bool) -> None:
    """Say which gaps may be missing, as they have only just begun."""
    for late in unheard or ():
        say(f"note: {late.sentence()}")
    if unheard is None and open_only:
        say(
            f"note: the log alone shows a gap of a lost broker after about {EXPIRY_MS / 1_000:g} s: those that began just before "
            "it was read are not in it"
        )


def _unheard(writers: WritersHeard | None, owned: Iterable[Mapping[str, Any]]) -> list[Unheard] | None:
    """Owners that missed heartbeats, and whose gaps are not in the log yet; None: the registry was not read."""
    if writers is None or not writers.newest_ms:
        return None
    return writers.unheard_now({row["owner"] for row in owned if row["owner"] is not None})


def _longest_first(gap: Mapping[str, Any]) -> tuple[float, int]:
    return float("-inf") if gap["length_ms"] is None else -gap["length_ms"], gap["start_ms"]


@audit_options
def overlaps_of(
    asked: AuditOptions,
    of: Annotated[
        str | None, typer.Argument(metavar="[NAMESPACE|BUNDLE|TOPIC]", help="Only overlaps of this one; default: all.")
    ] = None,
    since: SinceTime = None,
    until: UntilTime = None,
) -> None:
    """List the times in which two processes may have served one bundle: a lost owner that was heard again later."""
    window = asked.time_window(since, until)
    writers = asked.heard()  # before the log: what is written later is not held against it
    with opened(asked) as export:
        successions = Successions()
        head: dict[str, Any] = {}
        options: Any = {"read": asked.read, "as_of": asked.as_of, "compaction_lag_ms": asked.compaction_lag_ms}
        answer = audit_export(export, observers=[successions.observe], tell_complete=head.update, **options)
        again = WrittenAgain(successions.taken())
        audit_export(export, observers=[again.observe], **options)
    every = Spool()
    for row in overlap_rows(successions.rows, again, writers):
        if window.meets((row["offset"], row["since_ms"]), (row["offset"], row["until_ms"])):
            every.append(row)
    rows = list(every if of is None else _concerning(every, of))
    if of is not None and not rows and not asked.answer(Wants(history=of)).named:
        raise not_named(of)
    sums = overlap_sums(rows)
    result = AuditResult(answer, complete=head)
    if not asked.table:
        registry = {"registry_since_ms": None if writers is None else writers.since_ms}
        print_json_lists(
            about(asked, result) | {"window": window.fields(), "sums": sums} | registry, {"overlaps": rows}
        )
        return
    log_line(asked, result, window)
    _show_overlaps(rows, sums, with_registry=writers is not None)


_OVERLAPS_SHOWN = 100


def _show_overlaps(rows: Sequence[Mapping[str, Any]], sums: Mapping[str, Any], *, with_registry: bool) -> None:
    title = "Times in which two processes may have served a bundle"
    if rows:
        title += (
            f": {sums['overlaps']} of {sums['bundles']} bundles, {moment(sums['first_ms'])} to {moment(sums['last_ms'])}; "
            f"the longest {duration(sums['longest_ms'])}, together {duration(sums['bundle_ms'])}"
        )
    print_table(
        (
            "from",
            Column("at most until", 1),
            "at most",
            "bundle",
            "lost owner",
            Column("last heard", 2),
            "new owner",
            Column("generation", 3),
            Column("heard again in", 1),
            Column("offset", 4),
        ),
        [
            (
                when(row["since_ms"]),
                when(row["until_ms"]),
                duration(row["length_ms"]),
                row["bundle"],
                row["from"],
                when(row["lost_ms"]),
                row["to"],
                row["generation"],
                row["heard_in"],
                row["offset"],
            )
            for row in rows[:_OVERLAPS_SHOWN]
        ],
        title=title,
        empty="none: no lost owner was heard again after its successor began to serve",
    )
    if len(rows) > _OVERLAPS_SHOWN:
        stdout().print(f"(the first {_OVERLAPS_SHOWN}; all of them with --output json)")
    where = (
        "in the log and the registry" if with_registry else "in the log alone: the registry may have heard it earlier"
    )
    say(f"note: the lost process was looked for {where}. {CAVEAT}")


def _require_live(asked: AuditOptions, until: str | None) -> None:
    """Refuse to watch what does not change.

    Raises:
        AuditQuestionError: The options name an export, an archive, a moment or an end.
    """
    live = isinstance(asked.source, LiveSource) and asked.engine == LOCAL and asked.as_of is None
    if not live or until is not None:
        raise AuditQuestionError(
            "--watch follows the live channel, and has no end.",
            hint="Remove --file, --archive, --engine, --as-of and --until; --for SECONDS ends it.",
        )


def _display(gaps: list[dict[str, Any]], *, single: bool) -> Draw:
    shown: Sequence[Mapping[str, Any]] = gaps if single else together(gaps)

    def draw(most: int) -> RenderableType:
        headers, rows = tables.gap_columns(shown[-most:] if most else [])
        table = make_table(headers, rows, empty="no gap")
        return Group(Text(tables.gap_title(gaps), style=Tone.HEAD), counted(table, len(shown), most))

    return draw


class GapsSeen:
    """What has been printed of gaps that are read again and again.

    Args:
        ended_too: Also print gaps that had ended before the first reading.
        longer_than_ms: An open gap is printed once it has lasted longer.
    """

    def __init__(self, *, ended_too: bool = False, longer_than_ms: int | None = None) -> None:
        self._open: set[tuple[str, int]] = set()
        self._ended: set[tuple[str, int]] = set()
        self._first = True
        self._ended_too = ended_too
        self._longer_than_ms = longer_than_ms or 0

    def new_lines(self, document: Mapping[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
        """Lines on gaps that have opened or ended since the reading before."""
        ended, opened = set(), set()
        events: list[tuple[int, str, Mapping[str, Any]]] = []
        for gap in document["gaps"]:
            key = (gap["bundle"], gap["start_offset"])
            if gap["end_ms"] is not None:
                ended.add(key)
                if key not in self._ended and (self._ended_too or not self._first):
                    events.append((gap["end_ms"], "ended", gap))
            elif key in self._open or document["at_ms"] - gap["start_ms"] >= self._longer_than_ms:
                opened.add(key)
                if key not in self._open:
                    events.append((gap["start_ms"], "opened", gap))
        self._ended, self._open, self._first = ended, opened, False
        for at_ms, event, gap in sorted(events, key=lambda item: item[0]):
            yield _line(at_ms, event, gap)


def _line(at_ms: int, event: str, gap: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    words = (
        moment(at_ms),
        event.ljust(6),
        gap["bundle"],
        gap["cause"] + ("" if gap["certain"] else " ?"),
        f"{gap['from'] or '-'} -> {gap['to'] or '-'}",
        "" if gap["length_ms"] is None else f"after {duration(gap['length_ms'])}",
        gap["why"],
    )
    return "  ".join(cell(word) for word in words if word), {"event": event, **gap}


def _of(result: AuditResult, of: str | None) -> tuple[Any, list[dict[str, Any]]]:
    """Gaps of a bundle, of a namespace, or of every bundle that held a topic, with their sums."""
    every = result.gaps if result.gaps is not None else Spool()
    if of is None:
        return every, list(result.gap_sums or ())
    rows = Spool()
    sums = GapSums()
    for gap in _concerning(every, of):
        rows.append(gap)
        sums.take(gap)
    return rows, sums.rows()


def _concerning(rows: Iterable[dict[str, Any]], of: str) -> Iterator[dict[str, Any]]:
    """Rows of a bundle, of a namespace, or of every bundle that held a topic.

    Raises:
        AuditQuestionError: The name is none of these.
    """
    try:
        wanted, _ = meant(of)
    except ValueError as error:
        raise AuditQuestionError(
            f"{error}.", hint="Use tenant/namespace, tenant/namespace/0x..._0x... or tenant/namespace/topic."
        ) from None
    topic = parse_key(of.encode()) is None
    for row in rows:
        if of in (row["bundle"], row["bundle"].rpartition("/")[0]) or (topic and _holds(row["bundle"], wanted)):
            yield row


def _holds(bundle: str, wanted: KeyParts) -> bool:
    parts = parse_key(bundle.encode())
    if parts is None or parts.namespace != wanted.namespace:
        return False
    return parts.lower <= wanted.lower and (wanted.lower < parts.upper or parts.upper == FULL_UPPER)
