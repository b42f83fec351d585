"""Command `statechannel audit gaps`: the gaps in service, once or as they open and end."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from enum import StrEnum
from typing import Annotated, Any

import typer
from rich.console import Group, RenderableType
from rich.text import Text

from statechannel.audit.engine import LOCAL, AuditResult, LiveSource, Wants
from statechannel.audit.errors import AuditQuestionError
from statechannel.audit.gap_list import ALL_GAPS, GapFilter, GapGroup, began_together, concerning
from statechannel.audit.gaps import GapCause, GapEnd
from statechannel.audit.local import audit_export, written_again
from statechannel.audit.overlaps import CAVEAT, Successions, overlap_rows, overlap_sums
from statechannel.cli.audit import tables
from statechannel.cli.audit.options import AuditOptions, audit_options
from statechannel.cli.audit.parts import log_line, opened
from statechannel.cli.kit.fitted_tables import Column, Tone, cell
from statechannel.cli.kit.listing import Since, SinceTime, Until, UntilTime, parse_length_ms
from statechannel.cli.kit.output import Output, make_rows, print_json_lists, print_rows, say, stdout, when
from statechannel.cli.kit.screen import EVERY_S, Draw, EndsAfter, Every, Watch, counted, show_result
from statechannel.clocks import duration, moment
from statechannel.queries.audit import GapsRead, about, not_named, read_gaps
from statechannel.queries.audit_log import read_at_ms
from statechannel.stories.processes import EXPIRY_MS, Unheard


class GapOrder(StrEnum):
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


_NAMED_MAX = 5


def together(gaps: Iterable[Mapping[str, Any]], most: int | None = None) -> list[Mapping[str, Any]]:
    """Rows of a table: gaps of one broker with one cause that began within a moment are one, as among the incidents.

    Args:
        gaps: By time.
        most: Number of the newest rows that are kept.
    """
    return [_row_of(group) for group in began_together(gaps, _alike, most)]


def _alike(gap: Mapping[str, Any]) -> tuple[Any, ...]:
    return gap["from"], gap["cause"], gap["certain"], gap["end"], gap.get("requested_by")


def _row_of(group: GapGroup) -> Mapping[str, Any]:
    """The gap, or one row for several: the number of bundles, the range of lengths, the reason of the longest."""
    longest, many = group.longest, len(group.bundles)
    if many == 1:
        return longest
    namespaces = {bundle.rpartition("/")[0] for bundle in group.bundles}
    of = f" of {namespaces.pop()}" if len(namespaces) == 1 else ""
    why = longest["why"] if len(group.reasons) == 1 else f"of the longest: {longest['why']}"
    row = {**longest, **group.most, "start_ms": group.start_ms, "bundle": f"{many} bundles{of}", "merged": many}
    row |= {"why": why, "to": _first_of(sorted(group.owners)) or None}
    if longest["length_ms"] is not None:
        lengths = dict.fromkeys((duration(group.shortest_ms), duration(longest["length_ms"])))
        row["lengths"] = " to ".join(lengths)
    return row


def _first_of(names: Sequence[str]) -> str:
    more = f" and {len(names) - _NAMED_MAX} more" if len(names) > _NAMED_MAX else ""
    return ", ".join(names[:_NAMED_MAX]) + more


def _remark_deleted(rows: Iterable[Mapping[str, Any]]) -> None:
    """Say that a gap which ends with its namespace was not followed by service."""
    deleted = sorted({gap["bundle"].rpartition("/")[0] for gap in rows if gap["end"] == GapEnd.NAMESPACE_DELETED})
    if deleted:
        say(
            f"note: the gaps of a deleted namespace end with its deletion, and its clients have no broker from then on: "
            f"{_first_of(deleted)}"
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
        every = overlap_rows(successions.rows, written_again(export, successions, **options), writers)
    inside = (row for row in every if window.meets((row["offset"], row["since_ms"]), (row["offset"], row["until_ms"])))
    rows = list(inside if of is None else concerning(inside, of))
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
    print_rows(
        (
            Column("from", of=lambda row: when(row["since_ms"])),
            Column("at most until", 1, of=lambda row: when(row["until_ms"])),
            Column("at most", of=lambda row: duration(row["length_ms"])),
            "bundle",
            Column("lost owner", of="from"),
            Column("last heard", 2, of=lambda row: when(row["lost_ms"])),
            Column("new owner", of="to"),
            Column("generation", 3),
            Column("heard again in", 1, of="heard_in"),
            Column("offset", 4),
        ),
        rows[:_OVERLAPS_SHOWN],
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
        rows = shown[-most:] if most else []
        table = make_rows(tables.gap_columns(rows), rows, empty="no gap")
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
