"""Questions to the log: owner at a moment, history, gaps, differences, state; over HTTP from a bounded part of it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from pydantic import Field

from statechannel.audit.difference import StateDifferences
from statechannel.audit.engine import LOCAL, AuditQuestion, AuditResult, ExportSource, LiveSource, ReadMode, Rows, Wants
from statechannel.audit.errors import AuditQuestionError
from statechannel.audit.gap_list import GapFilter, GapSums, concerning, total_gap_sum
from statechannel.audit.gaps import with_standstill
from statechannel.audit.history import subject_of
from statechannel.audit.local import NotInLogThenError, OwnerThen, first_created, open_export, owner_then
from statechannel.audit.local import answer as answer_locally
from statechannel.audit.moments import AsOf, LogWindow
from statechannel.audit.spool import Spool
from statechannel.audit.transfer.export_file import ExportFile
from statechannel.clocks import moment
from statechannel.errors import NotFoundError, StateChannelError
from statechannel.protocol.bundle import parse_key
from statechannel.queries.audit_log import (
    AUDIT,
    DIFFERENCE,
    GAPS,
    HISTORY,
    OWNER,
    AuditLog,
    hint_of_authors,
    note_outside,
)
from statechannel.queries.channel_view import bundle_row
from statechannel.queries.query import NAME_MAX, Query, RequestModel
from statechannel.queries.side_files import requests_of_file
from statechannel.stories.processes import EXPIRY_MS, Unheard, WritersHeard
from statechannel.stories.requests import RequestStory

if TYPE_CHECKING:  # files are read sooner without the Kafka client
    from statechannel.queries.connection import AnswerReporter, Connection
    from statechannel.queries.live_log import ExportBounds

_MOMENT: Final = "an offset, a time (ISO 8601, `...ms` since 1970), or an age (`10m`)."
_ROWS: Final = Field(100, ge=1, le=100_000, description="Most rows, of the newest; `http.page_max` bounds it.")


def _moment(about: str) -> Any:
    return Field(None, max_length=64, description=f"{about}: {_MOMENT}")


class AuditQuery(RequestModel):
    """A moment."""

    as_of: str | None = _moment("Moment, inclusive; default: the end of the log")


class OwnerQuery(RequestModel):
    """A topic or bundle at a moment."""

    name: str = Field(
        min_length=1, max_length=NAME_MAX, description="`tenant/namespace/topic`, or the key of a bundle."
    )
    as_of: str = Field(min_length=1, max_length=64, description=f"Moment, inclusive: {_MOMENT}")


class HistoryQuery(RequestModel):
    """Which records."""

    name: str = Field(min_length=1, max_length=NAME_MAX, description="Bundle, topic or namespace.")
    by: str | None = Field(None, max_length=256, description="Only records of this broker.")
    since: str | None = _moment("Only from here on")
    until: str | None = _moment("Only up to here")
    limit: int = _ROWS


class GapsQuery(RequestModel):
    """Which gaps in service."""

    name: str | None = Field(None, max_length=NAME_MAX, description="Only of this namespace, bundle or topic.")
    broker: str | None = Field(None, max_length=256, description="Only with this owner before or after.")
    open: bool = Field(False, description="Only gaps that have not ended.")
    since: str | None = _moment("Only from here on")
    until: str | None = _moment("Only up to here")
    limit: int = _ROWS


class DifferenceQuery(RequestModel):
    """Two moments."""

    earlier: str = Field(min_length=1, max_length=64, description=f"First moment, inclusive: {_MOMENT}")
    later: str | None = _moment("Second moment, inclusive; default: the end of the log")
    limit: int = _ROWS


def _log_read(bounds: ExportBounds) -> dict[str, Any]:
    stopped_at = {str(number): offset for number, offset in bounds.stopped_at.items()}
    return {"complete": not stopped_at, "stopped_at": stopped_at}


class PartialLogError(StateChannelError):
    """The part of the log that was read has no answer; what was not read may have one.

    Attributes:
        log: How much was read.
    """

    def __init__(self, error: StateChannelError, log: dict[str, Any]) -> None:
        super().__init__(
            f"reading stopped before the end of the log, and the part that was read has no answer: {error}",
            hint="`statechannel audit` and `statechannel lookup --as-of` read the whole log.",
        )
        self.log = log


def from_log(answer: Callable[[AuditLog, Any], dict[str, Any]]) -> Callable[[Connection, Any], dict[str, Any]]:
    """The answer of a `Query` from an export of the live log that stops at `http.audit_records_max`, and after a time.

    The answer raises `PartialLogError` in place of other errors where the export has stopped.
    """

    def answer_from(connection: Connection, params: Any) -> dict[str, Any]:
        from statechannel.queries import live_log

        settings = connection.settings
        bounds = live_log.ExportBounds(settings.http.audit_records_max, settings.http.audit_read_s)
        source = LiveSource(
            connection.client.bootstrap_servers,
            connection.topics.channel,
            connection.client.properties,
            lambda path: live_log.export_live(connection, path, bounds=bounds),
        )
        lag_ms = settings.channel.min_compaction_lag_ms
        asked = AuditLog(source, None, ReadMode.AUTO, lag_ms, LOCAL, {}, lambda: connection, connection.reporter)
        try:
            document = answer(asked, params)
        except StateChannelError as error:
            if bounds.stopped_at and not error.retryable:
                raise PartialLogError(error, _log_read(bounds)) from error
            raise
        return document | {"log": _log_read(bounds)}

    return answer_from


def _state(asked: AuditLog, params: AuditQuery) -> dict[str, Any]:
    as_of = None if params.as_of is None else asked.moment(params.as_of, "as_of")
    question = AuditQuestion(asked.source, as_of=as_of, wants=Wants(cuts=as_of is not None))
    result = answer_locally(question, progress=asked.reporter.progress)
    return result.answer | ({} if as_of is None else dict(result.complete))


def _owner(asked: AuditLog, params: OwnerQuery) -> dict[str, Any]:
    then, when, _ = owner_at(asked, params.name, params.as_of)
    return owner_fields(then, params.name, params.as_of, when)


def _history(asked: AuditLog, params: HistoryQuery) -> dict[str, Any]:
    subject_of(params.name, "name ")
    window = asked.window(params.since, params.until)
    result, rows = history_rows(asked, params.name, params.by, window)
    return history_head(asked, result, params.name, params.by, window) | _newest(asked, "history", rows, params.limit)


def _gaps(asked: AuditLog, params: GapsQuery) -> dict[str, Any]:
    window = asked.window(params.since, params.until)
    chosen = GapFilter(window, open_only=params.open, broker=params.broker)
    gaps = read_gaps(asked, params.name, chosen, to_end=params.until is None)
    return gaps.head(asked, window) | _newest(asked, "gaps", gaps.with_requesters(asked), params.limit)


def _difference(asked: AuditLog, params: DifferenceQuery) -> dict[str, Any]:
    first = asked.moment(params.earlier, "earlier")
    second = None if params.later is None else asked.moment(params.later, "later")
    _, _, head, rows = difference_rows(asked, (params.earlier, first), (params.later or "the end", second))
    return head | _newest(asked, "differences", rows, params.limit)


def _newest(asked: AuditLog, name: str, rows: Any, limit: int) -> dict[str, Any]:
    left_out = max(0, len(rows) - min(limit, asked.connect().settings.http.page_max))
    return {name: list(islice(rows, left_out, None)), "rows_left_out": left_out}


QUERIES: Final = (
    Query(
        "audit", "State of the log: digest, verdicts, keys awaiting repair", "/v1/audit", from_log(_state), AUDIT,
        AuditQuery,
    ),
    Query(
        "audit-owner", "Who owned a topic or bundle at a moment", "/v1/audit/owner", from_log(_owner), OWNER,
        OwnerQuery,
    ),
    Query(
        "audit-history", "List the records of a bundle, topic or namespace", "/v1/audit/history", from_log(_history),
        HISTORY, HistoryQuery,
    ),
    Query("audit-gaps", "List the gaps in service", "/v1/audit/gaps", from_log(_gaps), GAPS, GapsQuery),
    Query(
        "audit-diff", "Compare the accepted states of two moments", "/v1/audit/diff", from_log(_difference), DIFFERENCE,
        DifferenceQuery,
    ),
)  # fmt: skip


def owner_at(asked: AuditLog, name: str, as_of: str) -> tuple[OwnerThen, AsOf, str]:
    """Who owned a topic or bundle at a moment, the moment, and its text.

    Raises:
        NotFoundError: It did not exist then.
        AuditQuestionError: The moment is invalid, or the log no longer shows it.
    """
    source, reporter = asked.source, asked.reporter
    when = asked.moment(as_of, "--as-of")
    shown = moment(when.time_ms) if when.time_ms is not None else f"offset {when.offset}"
    writers = asked.heard()
    with open_export(source, reporter.progress) as export:
        _note_outside(export, when, reporter)
        try:
            then = owner_then(export, name, when, writers=writers)
        except NotInLogThenError as error:
            raise _gone(error, export, name, shown, as_of, asked) from error
        _note_young(export, then, writers, reporter)
    return then, when, shown


def _note_outside(export: ExportFile, when: AsOf, reporter: AnswerReporter) -> None:
    some = any(when.cut(records).records for records in export.partitions.values())
    whole = all(records[0].offset == 0 for records in export.partitions.values())
    note_outside(when, export.header.end_offsets.values(), reporter, some=some, whole=whole)


def _note_young(export: ExportFile, then: OwnerThen, writers: WritersHeard | None, reporter: AnswerReporter) -> None:
    """Note that the answer may change, where the registry cannot: a lost owner is noticed later."""
    heard = writers is not None and writers.newest_ms > 0
    later_ms = export.header.exported_at_ms - then.at_ms
    if not heard and then.key.owner is not None and then.gap is None and later_ms < EXPIRY_MS:
        reporter.note(
            f"note: the log was read {max(0, later_ms) / 1_000:.1f} s after this moment, and the loss of a broker is noticed "
            f"after about {EXPIRY_MS / 1_000:g} s: this may yet become a gap"
        )


def _gone(
    error: NotInLogThenError, export: ExportFile, name: str, shown: str, as_of: str, asked: AuditLog
) -> NotFoundError:
    """That it did not exist then, with who ended it, when, and what followed."""
    ended = error.ended
    parts = parse_key(name.encode())
    namespace = parts.namespace if parts is not None else "/".join(name.split("/")[:2])
    if ended is None:
        created = first_created(export, namespace)
        later = "" if created is None else f": the namespace was created at {_record(created, [])}"
        return NotFoundError(
            f"{error}, as of {shown}{later}",
            hint=f"`statechannel audit history {namespace}` lists when it was created or split.",
        )
    operation = ended["operation"]
    person = None if operation is None else requesters(asked, "the answer").get(operation)
    began = ended["began"] or ended
    why = [f"requested by {person}"] if person else []
    why += [reason] if (reason := ended["reason"] or began["reason"]) else []
    record = _record(ended, why)
    if ended["relation"] == "namespace":
        return NotFoundError(
            f"namespace {namespace} does not exist as of {shown}: it was deleted at {record}",
            hint=f"`statechannel audit history {namespace}` shows what it had.",
        )
    children = [child["key"] for child in (ended["children"] or {}).get("of_this", ())]
    into = f" into {', '.join(children)}" if children else ""
    hint = f"`statechannel audit history {name}` shows what it was"
    if children:
        hint = f"`statechannel lookup {children[0]} --as-of {as_of}` shows who had a part of it"
    return NotFoundError(f"{name} does not exist as of {shown}: it was split{into} at {record}", hint=f"{hint}.")


def _record(row: Mapping[str, Any], why: Sequence[str]) -> str:
    place = f"{moment(row['timestamp_ms'])} by {row['by']} (offset {row['offset']}"
    return f"{'; '.join((place, *why))})"


def owner_fields(then: OwnerThen, name: str, as_of: str, when: AsOf) -> dict[str, Any]:
    since, changed = then.since or {}, then.changed or {}
    recorded = ("by", "action", "reason", "decision", "began", "note")
    return {
        "name": name,
        "as_of": as_of,
        "as_of_ms": when.time_ms,
        "partition": then.partition,
        "last_offset": then.last_offset,
        **bundle_row(then.key),
        "since_offset": since.get("since_offset"),
        "since_ms": since.get("since_ms"),
        "gap": then.gap,
        "heard_again": then.heard_again,
        "unheard": None if then.unheard is None or then.gap is not None else then.unheard._asdict(),
        "changed_ms": changed.get("timestamp_ms"),
        **{what: changed.get(what) for what in recorded},
    }


def history_rows(
    asked: AuditLog, name: str | None, by: str | None, window: LogWindow
) -> tuple[AuditResult, ChangedRows]:
    """Every record of a bundle, topic or namespace, or of all.

    Raises:
        NotFoundError: The log has none of it.
    """
    result = asked.answer(Wants(history=name, all_records=name is None, window=window, by=by, cuts=True))
    if name is not None and not result.named:
        raise not_named(name)
    rows: Rows = result.history if result.history is not None else Spool()
    if by is not None and name is None and window.is_whole and not len(rows):
        raise _no_record_by(by, result)
    return result, _with_requesters(rows, requesters(asked, "the history"))


def history_head(
    asked: AuditLog, result: AuditResult, name: str | None, by: str | None, window: LogWindow
) -> dict[str, Any]:
    """The document without its rows."""
    return {"of": name, "by": by, "window": window.fields()} | about(asked, result)


class ChangedRows:
    def __init__(self, rows: Rows, change: Callable[[dict[str, Any]], dict[str, Any]]) -> None:
        self._rows, self._change = rows, change

    def __len__(self) -> int:
        return len(self._rows)

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return map(self._change, self._rows)


def _with_requesters(rows: Rows, persons: Mapping[str, str]) -> ChangedRows:
    """The rows with who requested their operation, by his own account."""
    return ChangedRows(rows, lambda row: row | {"requested_by": persons.get(row["operation"])})


def difference_rows(
    asked: AuditLog, earlier: tuple[str, AsOf], later: tuple[str, AsOf | None]
) -> tuple[AuditResult, AuditResult, dict[str, Any], Spool]:
    """The states that differ between two moments, each with its text; and the document without these rows.

    Raises:
        AuditQuestionError: The first moment is later than the second.
    """
    (t1, first), (t2, second) = earlier, later
    with asked.as_file() as still:
        before = still.answer(Wants(states=True, cuts=True), first)
        after = still.answer(Wants(states=True, cuts=True), second)
    _in_order(before, after, t1, t2)
    unsure = {number: side for side in (after, before) for number in side.complete.get("incomplete", ())}
    differences = StateDifferences(len(before.answer["end_offsets"]), frozenset(unsure))
    rows = Spool()
    for row in differences.rows(before.states or (), after.states or ()):
        rows.append(row)
    head: dict[str, Any] = {
        "from": _side(t1, first, before),
        "to": _side(t2, second, after),
        "counts": dict(sorted(differences.counts.items())),
        "changed": dict(sorted((differences.changed).items())),
        "owners": differences.moved(),
    }
    if unsure:
        head |= {
            "incomplete": sorted(unsure),
            "complete_from": (before if before.complete else after).complete["complete_from"],
        }
    return before, after, head, rows


def _in_order(before: AuditResult, after: AuditResult, t1: str, t2: str) -> None:
    cuts = (before.cuts or {}), (after.cuts or {})
    for number, cut in cuts[0].items():
        other = cuts[1].get(number)
        if other is not None and cut.last_offset > other.last_offset:
            raise AuditQuestionError(
                f"{t1} is later than {t2}: its last offset in partition {number} is {cut.last_offset}, not {other.last_offset}.",
                hint="Give the earlier moment first.",
            )


def about(asked: AuditLog, result: AuditResult) -> dict[str, Any]:
    """Fields on the log itself, for JSON documents."""
    names = ("digest", "records", "read", "end_offsets", "tentative", "heads_lost", "positions_lost", "stopped")
    fields = {name: result.answer[name] for name in names if name in result.answer}
    if asked.as_of is not None:
        fields["last_offsets"] = {str(number): cut.last_offset for number, cut in (result.cuts or {}).items()}
    return fields | dict(result.complete)


def require_writer(asked: AuditLog, by: str, *, persons: Iterable[str] = (), hint: str = "") -> None:
    """Refuse a name that wrote nothing, so that an empty list is not taken for a clean one.

    Args:
        persons: Who requested operations, for the hint.
        hint: Further sentences for it.

    Raises:
        NotFoundError: The log has no record by this name.
    """
    result = asked.answer(Wants(all_records=True, by=by))
    if not len(result.history or ()):
        raise _no_record_by(by, result, hint_of_authors(by, persons) + hint)


def _no_record_by(by: str, result: AuditResult, more: str = "") -> NotFoundError:
    left = " left" if result.complete else ""
    return NotFoundError(
        f"the log has no record{left} that {by} wrote",
        hint=f"{more}{_OF_PERSONS if '@' in by else ''}Check the broker's id; `statechannel brokers` lists the live ones. "
        "Heartbeats are not listed.",
    )


_OF_PERSONS = "Brokers write records; what a person did: `statechannel audit actions --by PERSON`. "


def not_named(name: str) -> NotFoundError:
    return NotFoundError(
        f"the log has no record of {name}",
        hint="Check the name; `statechannel namespace list` lists the namespaces, `statechannel bundles` the live bundles.",
    )


def _side(text: str, as_of: AsOf | None, result: AuditResult) -> dict[str, Any]:
    """One side of a difference, for the JSON output.

    Args:
        text: The moment as it was given.
    """
    last = {number: cut.last_offset for number, cut in (result.cuts or {}).items()}
    ends = {int(number): end - 1 for number, end in result.answer["end_offsets"].items()}
    return {
        "as_of": text,
        "timestamp_ms": None if as_of is None else as_of.time_ms,
        "digest": None if result.complete.get("incomplete") else result.answer["digest"],
        "last_offsets": {str(number): offset for number, offset in sorted((last or ends).items())},
        "read": result.answer["read"],
    }


class GapsRead(NamedTuple):
    """Gaps in service of a log, with what belongs to them."""

    result: AuditResult
    rows: Any
    sums: list[dict[str, Any]]
    writers: WritersHeard | None
    unheard: list[Unheard] | None

    def with_requesters(self, asked: AuditLog) -> ChangedRows:
        """The rows with who requested what, and how long a lost owner stood still."""
        rows = _with_requesters(self.rows, requesters(asked, "the list"))
        return ChangedRows(rows, lambda row: with_standstill(row, self.writers))

    def head(self, asked: AuditLog, window: LogWindow) -> dict[str, Any]:
        """The document without its rows."""
        return about(asked, self.result) | {
            "window": window.fields(),
            "namespaces": self.sums,
            "all": total_gap_sum(self.sums),
            "unheard": [late._asdict() for late in self.unheard or ()],
        }


def read_gaps(asked: AuditLog, of: str | None, chosen: GapFilter, *, to_end: bool) -> GapsRead:
    """The gaps of a namespace, bundle or topic, or all.

    Args:
        to_end: Also the owners that are not heard at the end of the log.

    Raises:
        NotFoundError: The log has no record of it, or of the broker of `chosen`.
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


def _unheard(writers: WritersHeard | None, owned: Iterable[Mapping[str, Any]]) -> list[Unheard] | None:
    """Owners that missed heartbeats, and whose gaps are not in the log yet; None: the registry was not read."""
    if writers is None or not writers.newest_ms:
        return None
    return writers.unheard_now({row["owner"] for row in owned if row["owner"] is not None})


def _of(result: AuditResult, of: str | None) -> tuple[Any, list[dict[str, Any]]]:
    """Gaps of a bundle, of a namespace, or of every bundle that held a topic, with their sums."""
    every = result.gaps if result.gaps is not None else Spool()
    if of is None:
        return every, list(result.gap_sums or ())
    rows = Spool()
    sums = GapSums()
    for gap in concerning(every, of):
        rows.append(gap)
        sums.take(gap)
    return rows, sums.rows()


def requesters(asked: AuditLog, what: str) -> dict[str, str]:
    """Who requested each operation of the last week, by their own account; a file of the channel's log does not have it.

    Args:
        what: The output, for the note where the requests cannot be read.
    """
    # Only a live audit needs the Kafka client.
    from statechannel.queries.live_log import read_requests

    if isinstance(asked.source, ExportSource) and not asked.source.made_here:
        return _authors(requests_of_file(asked.source.path, asked.reporter) or {})
    if not isinstance(asked.source, LiveSource):
        return {}
    try:
        return _authors(read_requests(asked.connect()))
    except StateChannelError as error:
        asked.reporter.note(f"note: the requests could not be read, {what} does not name who made them: {error}")
        return {}


def _authors(requests: Mapping[str, RequestStory]) -> dict[str, str]:
    return {story.id: story.by for story in requests.values() if story.by}
