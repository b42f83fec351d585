"""A log to be audited: live or exported, its moments and windows, and what the registry shows of its writers.

At the end the types of what is answered from it over HTTP.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from statechannel.audit.engine import (
    LOCAL,
    AuditQuestion,
    AuditResult,
    ExportSource,
    LiveSource,
    ReadMode,
    Source,
    Wants,
    load_engine,
)
from statechannel.audit.errors import AuditQuestionError
from statechannel.audit.gap_list import GapSum
from statechannel.audit.gaps import GapCause, GapEnd
from statechannel.audit.history import KnownState
from statechannel.audit.moments import AsOf, LogWindow, parse_as_of, parse_window, was_yesterday
from statechannel.audit.transfer.export_file import read_header
from statechannel.audit.transfer.line import BadLine
from statechannel.clocks import moment, now_ms
from statechannel.errors import UsageError
from statechannel.protocol.states import State
from statechannel.queries.channel_view import BundleRow
from statechannel.queries.query import Keys, by_name, keys_of, many, object_type
from statechannel.queries.side_files import header_of, writers_of_file
from statechannel.stories.bundle import HistoryLine, LostOwner
from statechannel.stories.processes import Unheard, WritersHeard

if TYPE_CHECKING:  # files are read sooner without the Kafka client
    from statechannel.queries.connection import AnswerReporter, Connection

_AUTHORS_SHOWN = 5
_KNOWN_SHOWN = 10


def hint_of_authors(by: str, authors: Iterable[str]) -> str:
    """Authors that may be meant by a name that no author has, as a sentence with a space; empty if there are none."""
    alike = sorted(
        {author for author in authors if author.partition("@")[0].casefold() == by.partition("@")[0].casefold()}
    )
    return f"Known: {', '.join(alike[:_AUTHORS_SHOWN])}. " if alike else ""


def known_authors(authors: Sequence[str], none: str) -> str:
    """The first of the authors that there are, as a sentence; `none` without any."""
    more = ", ..." if len(authors) > _KNOWN_SHOWN else ""
    return f"Known: {', '.join(authors[:_KNOWN_SHOWN])}{more}." if authors else none


def note_yesterday(name: str, text: str, side: AsOf, now_ms: int, reporter: AnswerReporter) -> None:
    """Note that a time of day is yesterday's: it may have been meant for today, and be in the future."""
    if side.time_ms is not None and was_yesterday(text, side, now_ms):
        meant = f"{name} {text} means {moment(side.time_ms)}"
        reporter.note(f"note: {meant}: today's was still to come at {moment(now_ms)}", once=True)


def window_between(since: str | None, until: str | None, now_ms: int, reporter: AnswerReporter) -> LogWindow:
    """`parse_window`, with its notes.

    Raises:
        AuditQuestionError: As `parse_window`.
    """
    window = parse_window(since, until, now_ms=now_ms)
    for name, text, side in (("--since", since, window.since), ("--until", until, window.until)):
        if text is not None and side is not None:
            note_yesterday(name, text, side, now_ms, reporter)
    return window


def time_window(since: str | None, until: str | None, now_ms: int, reporter: AnswerReporter) -> LogWindow:
    """The window of a list whose rows have no offsets of their own.

    Raises:
        UsageError: A side is an offset.
        AuditQuestionError: A side is neither a time nor an age, or they are in the wrong order.
    """
    window = window_between(since, until, now_ms, reporter)
    for name, text, side in (("--since", since, window.since), ("--until", until, window.until)):
        if side is not None and side.offset is not None:
            raise UsageError(
                f"{name} {text} is an offset: this list has only times",
                hint="Examples: 15m, 2h, 7d, 2026-01-01T00:00:00Z, 1767225600000ms.",
            )
    return window


@dataclass(frozen=True, slots=True)
class AuditLog:
    """A log to be audited, and how.

    Attributes:
        as_of: Moment of the audit; None: the end of the log.
        connect: Connects to the channel of the settings, to read its other topics.
        reporter: Gets notes and progress.
        writers: What the registry shows of the processes; None: not read yet, or not to be read.
    """

    source: Source
    as_of: AsOf | None
    read: ReadMode
    compaction_lag_ms: int
    engine: str
    options: Mapping[str, str] = field(repr=False)
    connect: Callable[[], Connection]
    reporter: AnswerReporter
    writers: WritersHeard | None = None

    def window(self, since: str | None, until: str | None) -> LogWindow:
        """The part of the log that is listed; ages count back from the moment of the audit.

        Raises:
            AuditQuestionError: The options are invalid.
        """
        return window_between(since, until, self._ends_ms, self.reporter)

    def time_window(self, since: str | None, until: str | None) -> LogWindow:
        """The same where sides are times.

        Raises:
            AuditQuestionError: The options are invalid.
            UsageError: A side is an offset.
        """
        return time_window(since, until, self._ends_ms, self.reporter)

    def moment(self, text: str, name: str) -> AsOf:
        """The moment that a parameter names; raises as `moment_of`."""
        return moment_of(text, self.source, name, self.reporter)

    @property
    def _ends_ms(self) -> int:
        as_of_ms = None if self.as_of is None else self.as_of.time_ms
        return read_at_ms(self.source) if as_of_ms is None else as_of_ms

    def answer(self, wants: Wants, as_of: AsOf | None = None) -> AuditResult:
        """Result of the audit.

        Raises:
            StateChannelError: The log cannot be read, or does not hold the answer.
        """
        question = AuditQuestion(
            self.source,
            read=self.read,
            as_of=as_of or self.as_of,
            compaction_lag_ms=self.compaction_lag_ms,
            wants=wants,
            options=self.options,
        )
        writers = live_writers_of(self.source, self.connect) if self.writers is None else self.writers
        return answered(self.engine, question, writers, self.reporter)

    def heard(self) -> WritersHeard | None:
        """What the registry shows of the processes, read now for a live log; None: a file or an archive does not have it."""
        return self.writers if self.writers is not None else writers_of(self.source, self.connect, self.reporter)

    @contextmanager
    def as_file(self) -> Iterator[AuditLog]:
        """The same log for several questions: a live topic is exported once, to a temporary file."""
        if not isinstance(self.source, LiveSource) or self.engine != LOCAL:
            yield self
            return
        with tempfile.TemporaryDirectory(prefix="statechannel-audit-") as folder:
            path = Path(folder) / "export.jsonl"
            writers = self.heard()  # before the log: what is written later is not held against it
            self.source.export(path)
            yield replace(self, source=ExportSource(path, made_here=True), writers=writers)


def answered(
    engine: str, question: AuditQuestion, writers: WritersHeard | None, reporter: AnswerReporter
) -> AuditResult:
    """The engine's result; tentative where brokers have read more than the log has, which the registry shows."""
    result = load_engine(engine)(question, progress=reporter.progress)
    _note_moment(question.as_of, result, reporter)
    lost = _positions_lost(question, writers)
    if not lost:
        return result
    by_name = {str(partition): known for partition, known in sorted(lost.items())}
    return replace(result, answer=result.answer | {"tentative": True, "positions_lost": by_name})


def _positions_lost(question: AuditQuestion, writers: WritersHeard | None) -> Mapping[int, int]:
    """Offsets that brokers had read and the log lacks: from the registry for a live log, from the header for an export."""
    if writers is not None and writers.positions_lost:
        return writers.positions_lost
    header = header_of(question.source.path) if isinstance(question.source, ExportSource) else None
    return {} if header is None else header.positions_lost


def writers_of(source: Source, connect: Callable[[], Connection], reporter: AnswerReporter) -> WritersHeard | None:
    """What the registry shows of the processes: the live one, or its file beside an export; None: there is none."""
    if isinstance(source, ExportSource):
        return None if source.made_here else writers_of_file(source.path, reporter)
    return live_writers_of(source, connect)


def live_writers_of(source: Source, connect: Callable[[], Connection]) -> WritersHeard | None:
    """What the registry of a live topic shows of the processes; None for a file or an archive."""
    if not isinstance(source, LiveSource):
        return None
    # Only a live audit needs the Kafka client.
    from statechannel.queries.registry import live_writers

    return live_writers(connect())


def read_at_ms(source: Source) -> int:
    """When the log was or is read, milliseconds since 1970: ages such as `10m` count back from here."""
    if isinstance(source, ExportSource):
        with suppress(OSError, BadLine):
            return read_header(source.path).exported_at_ms
    return now_ms()


def moment_of(text: str, source: Source, name: str, reporter: AnswerReporter) -> AsOf:
    """The moment that an option names.

    Raises:
        AuditQuestionError: It is invalid, or in the future.
    """
    now_ms = read_at_ms(source)
    as_of = parse_as_of(text, name, now_ms=now_ms)
    if as_of.is_future(now_ms):
        raise AuditQuestionError(
            f"{name} {text} is in the future: the log was read at {moment(now_ms)}.",
            hint=f"Remove {name} for the end of the log, or give an earlier time.",
        )
    note_yesterday(name, text, as_of, now_ms, reporter)
    return as_of


def _note_moment(as_of: AsOf | None, result: AuditResult, reporter: AnswerReporter) -> None:
    """Note that a moment lies before the first record, or past the last one."""
    if as_of is not None and result.cuts:
        ends = result.answer["end_offsets"].values()
        some = any(cut.records for cut in result.cuts.values())
        note_outside(as_of, ends, reporter, some=some, whole=not result.complete)


def note_outside(as_of: AsOf, ends: Collection[int], reporter: AnswerReporter, *, some: bool, whole: bool) -> None:
    """The same, for those that judge the log themselves.

    Args:
        ends: End offsets.
        some: There are records up to the moment.
        whole: The log is complete from its beginning on.
    """
    if not some and any(ends):
        when = moment(as_of.time_ms) if as_of.time_ms is not None else f"offset {as_of.offset}"
        before = "there was no namespace and no bundle then" if whole else "what was there then is unknown"
        reporter.note(f"note: the log has no record up to {when}: {before}")
    elif as_of.offset is not None and as_of.offset >= max(ends, default=0):
        meant = f"; a time has the suffix ms: {as_of.offset}ms" if as_of.offset >= _LIKE_A_TIME else ""
        end = "is past the end of every partition: it means the end of the log"
        reporter.note(f"note: offset {as_of.offset} {end}{meant}")


_LIKE_A_TIME = 10**12
"""Milliseconds since 1970 of any log; far above its offsets."""


# --- types of answers over HTTP -----------------------------------------------------------------------------------------

_INTS, _TEXT, _NUMBER, _ANY = dict[str, int], str | None, int | None, dict[str, Any]
_PLACE = object_type("LogPlace", "Where a partition is complete from.", (int, "offset timestamp_ms"))
_STOP = object_type("FormatStop", "The first record of a newer format.", (int, "offset format"))
LOG_READ = object_type(
    "LogRead",
    "How much of the log an answer is from. `complete` is false where reading stopped before the end of the log; `stopped_at` "
    "has the first offset that was left out, by partition.",
    (bool, "complete"),
    (_INTS, "stopped_at"),
)
_READ: Sequence[Keys] = ((LOG_READ, "log"), (many(str), "notes"))
_GAPPED: Sequence[Keys] = ((by_name(_PLACE | None), "complete_from"), (many(int), "incomplete"))
_OF_LOG: Sequence[Keys] = ((str, "digest read"), (int, "records"), (_INTS, "end_offsets"), *_READ)
_MAY_BE: Sequence[Keys] = (
    *_GAPPED, (bool, "tentative"), (_INTS, "heads_lost positions_lost"), (by_name(_STOP), "stopped"),
    (many(_ANY), "cold_starts"),
)  # fmt: skip
_DEBT = object_type(
    "DebtRow", "A key that awaits repair.", (str, "key"), (int, "since_offset newest_offset highest_version")
)
AUDIT = object_type(
    "AuditDocument", "State of the log.", *_OF_LOG, (int, "accepted duplicates purged namespaces bundles"),
    (_INTS, "rejected asserts owners"), (many(_DEBT), "debts"), sometimes=_MAY_BE,
)  # fmt: skip
_GAP: Sequence[Keys] = (
    (str, "bundle why"), (GapCause, "cause"), (GapEnd, "end"), (int, "partition start_offset start_ms on_request_ms"),
    (int, "unassigned_ms"), (_NUMBER, "end_offset end_ms length_ms stood_still_ms"), (_TEXT, "from to operation"),
    (bool, "repaired certain"),
)  # fmt: skip
_UNHEARD = object_type("UnheardOwner", "An owner that was not heard lately.", *keys_of(Unheard))
_BEGAN = object_type("OperationBegan", "Its first record.", (int, "offset"), (_TEXT, "by action reason"))
OWNER = object_type(
    "OwnerDocument", "Who owned a bundle at a moment.", *keys_of(BundleRow), (str, "name as_of"), (int, "partition last_offset"),
    (_NUMBER, "as_of_ms since_offset since_ms changed_ms"), (_TEXT, "by action reason decision note"), *_READ,
    (_BEGAN | None, "began"), (_UNHEARD | None, "unheard"), (_ANY | None, "heard_again"),
    (object_type("GapThen", "A gap in service.", *_GAP) | None, "gap"),
)  # fmt: skip
_STATE: Sequence[Keys] = keys_of(KnownState)
_CHILDREN = object_type(
    "RecordChildren", "Bundles that a record makes.", (int, "count"),
    (many(object_type("ChildRow", "A new bundle.", (str, "key"), *_STATE)), "of_this"),
)  # fmt: skip
_WINNER = object_type(
    "WinnerRecord", "The accepted record because of which another is rejected.", (_TEXT, "id by operation"),
    (int, "version offset"), (State, "state"),
)  # fmt: skip
_RECORD = object_type(
    "HistoryRow", "A record.", *keys_of(HistoryLine), (str, "relation"), (_TEXT, "incarnation flow decision requested_by"),
    (_BEGAN | None, "began"), (object_type("KnownState", "Accepted state of a key.", *_STATE) | None, "before after"),
    (_CHILDREN | None, "children"), (_WINNER | None, "winner"),
    (object_type("LostOwner", "Whose loss a repair names.", *keys_of(LostOwner)) | None, "lost"),
)  # fmt: skip
_WINDOW = object_type("LogWindow", "What is listed; null: no bound.", (_INTS | None, "since until"))
HISTORY = object_type(
    "HistoryDocument", "Records, the oldest first.", *_OF_LOG, (str, "of"), (_TEXT, "by"), (_WINDOW, "window"),
    (many(_RECORD), "history"), (int, "rows_left_out"), sometimes=_MAY_BE,
)  # fmt: skip
_SUM = keys_of(GapSum)
GAPS = object_type(
    "GapsDocument", "Gaps in service, the oldest first.", *_OF_LOG, (_WINDOW, "window"), (int, "rows_left_out"),
    (many(object_type("GapRow", "A gap in service.", *_GAP, (_TEXT, "requested_by"))), "gaps"),
    (many(object_type("NamespaceGaps", "Gaps of a namespace.", (str, "namespace"), *_SUM)), "namespaces"),
    (object_type("AllGaps", "Gaps of all namespaces.", *_SUM), "all"), (many(_UNHEARD), "unheard"), sometimes=_MAY_BE,
)  # fmt: skip
_SIDE = object_type(
    "DifferenceSide", "A moment.", (str, "as_of read"), (_NUMBER, "timestamp_ms"), (_TEXT, "digest"), (_INTS, "last_offsets")
)  # fmt: skip
_THEN = object_type(
    "StateThen", "Accepted state of a key.", (State, "state"), (_TEXT, "owner from to id"), (_NUMBER, "generation"),
    (int, "version"),
)  # fmt: skip
_CHANGED = object_type(
    "DifferenceRow", "A key whose state differs.", (str, "key"), (int, "partition"), (Literal["namespace", "bundle"], "kind"),
    (Literal["came", "went", "changed", "came-and-went"], "change"), (many(str), "differs"), (_THEN | None, "before after"),
)  # fmt: skip
DIFFERENCE = object_type(
    "DifferenceDocument", "What differs between two moments.", (_SIDE, "from to"), (_INTS, "counts changed"), *_READ,
    (by_name(_INTS), "owners"), (many(_CHANGED), "differences"), (int, "rows_left_out"), sometimes=_GAPPED,
)  # fmt: skip
