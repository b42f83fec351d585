"""Questions and results of audits, and the registry of audit engines.

An engine is a function from question to result, registered under the entry point group `statechannel.audit_engines`. All
engines judge by `statechannel.protocol` and give the same answers; they differ in how much log they can read, and how fast.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from enum import StrEnum
from importlib import metadata
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from statechannel.audit.errors import AuditQuestionError
from statechannel.audit.gap_list import ALL_GAPS, GapFilter
from statechannel.audit.moments import WHOLE_LOG, AsOf, Cut, LogWindow
from statechannel.extras import install_command

ENGINES_GROUP = "statechannel.audit_engines"
ARCHIVE_EXPORTS_GROUP = "statechannel.archive_exports"
LOCAL = "local"
DEFAULT_COMPACTION_LAG_MS = 3_600_000


class ReadMode(StrEnum):
    """How a log is read."""

    FULL = "full"
    JOIN = "join"
    AUTO = "auto"


@dataclass(frozen=True, slots=True)
class ExportSource:
    """An export file.

    Attributes:
        made_here: It was just created from a topic or an archive, and is known to be complete.
    """

    path: Path
    made_here: bool = False


@dataclass(frozen=True, slots=True)
class LiveSource:
    """The topic of a running channel, up to its end as of the start of the audit.

    Attributes:
        export: Writes the topic to an export file, for engines that read files only.
    """

    bootstrap_servers: str
    topic: str
    properties: Mapping[str, str] = field(repr=False)  # passwords are in it
    export: Callable[[Path], object]


@dataclass(frozen=True, slots=True)
class ArchiveSource:
    """Folder of an audit archive: a path, or a URI that the engine knows."""

    folder: str


Source = ExportSource | LiveSource | ArchiveSource


@dataclass(frozen=True, slots=True)
class Wants:
    """Optional parts of the result.

    Attributes:
        gap_count: Only the number of gaps.
        history: Bundle, topic or namespace whose records are listed.
        cuts: The part of each partition before the moment.
        states: Every accepted state.
        all_records: The records of all namespaces are listed, as a history.
        window: Part of the log to which the history and the rejected records are limited.
        by: Broker to whose records they are limited.
    """

    gaps: bool = False
    gap_count: bool = False
    races: bool = False
    history: str | None = None
    owned: bool = False
    moves: bool = False
    cuts: bool = False
    rejected: bool = False
    states: bool = False
    origins: bool = False
    all_records: bool = False
    window: LogWindow = WHOLE_LOG
    by: str | None = None
    gap_filter: GapFilter = ALL_GAPS

    @property
    def has_history(self) -> bool:
        return self.history is not None or self.all_records


@dataclass(frozen=True, slots=True)
class AuditQuestion:
    """One audit.

    Attributes:
        as_of: Moment of the audit; None: the end of the log.
        compaction_lag_ms: `min.compaction.lag.ms` of the topic.
        verdicts: File for one line per record; only for a full read.
        options: Settings of the engine.
    """

    source: Source
    read: ReadMode = ReadMode.AUTO
    as_of: AsOf | None = None
    compaction_lag_ms: int = DEFAULT_COMPACTION_LAG_MS
    verdicts: Path | None = None
    wants: Wants = field(default_factory=Wants)
    options: Mapping[str, str] = field(default_factory=dict, repr=False)  # object stores have secrets in it


class Rows(Protocol):
    """Findings that can be iterated repeatedly; they need not be in memory."""

    def __len__(self) -> int: ...
    def __iter__(self) -> Iterator[dict[str, Any]]: ...


class GapCount(NamedTuple):
    """Number of gaps in service, and of those that are open."""

    all: int
    open: int


@dataclass(frozen=True, slots=True)
class AuditResult:
    """Result of an audit; each part is None unless requested. Parts have the form of the JSON output (design/cli.md).

    Attributes:
        named: False if the log has no record of the subject of the history.
        cuts: By partition.
        complete: From where on a compacted log is complete, and whether it has the answer; empty without gaps
            (`statechannel.replay.auditor.completeness`).
        gaps, history: May be too large for memory: iterate over them.
        gap_sums: By namespace, with `gaps`.
        states: Lines of the digest, by key.
    """

    answer: dict[str, Any]
    gaps: Rows | None = None
    gap_count: GapCount | None = None
    races: Sequence[dict[str, Any]] | None = None
    history: Rows | None = None
    named: bool = True
    owned: Sequence[dict[str, Any]] | None = None
    moves: Sequence[dict[str, Any]] | None = None
    cuts: Mapping[int, Cut] | None = None
    gap_sums: Sequence[dict[str, Any]] | None = None
    rejected: Mapping[str, Any] | None = None
    states: Sequence[bytes] | None = None
    origins: Mapping[str, Any] | None = None
    complete: Mapping[str, Any] = field(default_factory=dict)


class ProgressBar(Protocol):
    """Shows the progress of a long operation; yields a function that receives the amount done."""

    def __call__(
        self, doing: str, total: int | None, *, unit: str = ""
    ) -> AbstractContextManager[Callable[[int], None]]: ...


class AuditEngine(Protocol):
    """Function that answers a question."""

    def __call__(self, question: AuditQuestion, *, progress: ProgressBar) -> AuditResult:
        """Read the log and answer.

        Raises:
            StateChannelError: The log cannot be read, or does not hold the answer.
        """
        ...


class ArchiveExport(Protocol):
    """Function that writes an archive to an export file."""

    def __call__(
        self, source: ArchiveSource, path: Path, options: Mapping[str, str], *, progress: ProgressBar
    ) -> object:
        """Write it, by the engine's settings.

        Raises:
            StateChannelError: The archive cannot be read, or the file not be written.
        """
        ...


def load_engine(name: str) -> AuditEngine:
    """The engine of that name.

    Raises:
        AuditQuestionError: The engine does not exist, or cannot be loaded.
    """
    engine: AuditEngine = _load(ENGINES_GROUP, name)
    return engine


def load_archive_export(name: str) -> ArchiveExport:
    """The archive exporter of the engine of that name.

    Raises:
        AuditQuestionError: The engine does not exist, or cannot be loaded.
    """
    export: ArchiveExport = _load(ARCHIVE_EXPORTS_GROUP, name)
    return export


def _load(group: str, name: str) -> Any:
    registered = {point.name: point for point in metadata.entry_points(group=group)}
    if name not in registered:
        raise AuditQuestionError(
            f"unknown audit engine {name!r}; installed: {', '.join(sorted(registered)) or 'none'}.",
            hint="Check the name; engines are registered by packages (design/cli.md).",
        )
    point = registered[name]
    try:
        return point.load()
    except (ImportError, AttributeError) as error:
        raise AuditQuestionError(
            f"the audit engine {name!r} ({point.value}) cannot be loaded: {error}.",
            hint=f"Install its dependencies (`{install_command(name)}`), or remove --engine.",
        ) from error


def check_question(question: AuditQuestion) -> None:
    """Refuse questions that no log can answer.

    Raises:
        AuditQuestionError: Verdicts of a join read.
    """
    if question.verdicts is not None and question.read is ReadMode.JOIN:
        raise AuditQuestionError(
            "Verdicts need a full read, not --read join.",
            hint="A joining reader has no verdicts on leniently read records; remove --verdicts or --read join.",
        )


def not_in_full(source: str, why: str, *, verdicts: bool) -> AuditQuestionError:
    return AuditQuestionError(
        f"{source} cannot be read in full: {why}.",
        hint="--verdicts needs a full read." if verdicts else "Use --read join, or auto.",
    )
