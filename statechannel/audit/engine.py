"""What an audit may be asked, what it answers, and which engine reads the log.

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

from statechannel.audit.as_of import AsOf, Cut
from statechannel.audit.errors import AuditQuestionError

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
        made_here: It was just made of a topic or an archive, so that it is known to be whole.
    """

    path: Path
    made_here: bool = False


@dataclass(frozen=True, slots=True)
class LiveSource:
    """The topic of a running channel, up to its end as of the start of the audit.

    Attributes:
        properties: How to connect, in the words of librdkafka.
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
    """What is wanted besides the answer.

    Attributes:
        gaps: The gaps in service.
        gap_count: Only how many there are.
        races: Who was rejected in favour of whom.
        history: Bundle, topic or namespace whose records are told.
        owned: Who serves what.
        moves: Changes of owner by hour and cause.
        cuts: How much of each partition lies before the moment asked for.
        rejected: What was rejected, by reason, writer and winner.
        states: Every accepted state.
        origins: How each operation began.
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


@dataclass(frozen=True, slots=True)
class AuditQuestion:
    """One audit.

    Attributes:
        as_of: The moment looked at; None: the end of the log.
        compaction_lag_ms: `min.compaction.lag.ms` of the topic.
        verdicts: File to write a line a record to; only for a full read.
        options: Settings of the engine, in its own words.
    """

    source: Source
    read: ReadMode = ReadMode.AUTO
    as_of: AsOf | None = None
    compaction_lag_ms: int = DEFAULT_COMPACTION_LAG_MS
    verdicts: Path | None = None
    wants: Wants = field(default_factory=Wants)
    options: Mapping[str, str] = field(default_factory=dict, repr=False)  # object stores have secrets in it


class Rows(Protocol):
    """Findings that are gone through as often as wanted; they need not be in memory."""

    def __len__(self) -> int:
        """How many."""
        ...

    def __iter__(self) -> Iterator[dict[str, Any]]:
        """One by one, in order."""
        ...


class GapCount(NamedTuple):
    """Number of gaps in service, and of those that are open."""

    all: int
    open: int


@dataclass(frozen=True, slots=True)
class AuditResult:
    """What was found; each part is None where it was not wanted. Parts are as the JSON output has them.

    Attributes:
        answer: The audit's answer (design/cli.md).
        named: False if no record of the log is about what the history was wanted of.
        cuts: By partition.
        complete: From when on a log with gaps tells all, and whether it tells what was asked; empty without gaps
            (`statechannel.replay.auditor.completeness`).
        gaps, history: May be too many for the memory: go through them, do not hold them.
        gap_sums: By namespace, with `gaps` (`statechannel.audit.gap_sums`).
        rejected: See `statechannel.audit.rejections`.
        states: Lines of the digest, by key.
        origins: See `statechannel.audit.origins.put_together`.
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
    """Shows how far a long piece of work is; yields a function that is told how much is done."""

    def __call__(
        self, doing: str, total: int | None, *, unit: str = ""
    ) -> AbstractContextManager[Callable[[int], None]]:
        """Open it."""
        ...


class AuditEngine(Protocol):
    """Answers a question."""

    def __call__(self, question: AuditQuestion, *, progress: ProgressBar) -> AuditResult:
        """Read the log and answer.

        Raises:
            StateChannelError: The log cannot be read, or not answer what was asked.
        """
        ...


class ArchiveExport(Protocol):
    """Writes an archive to an export file, for what reads such files only."""

    def __call__(
        self, source: ArchiveSource, path: Path, options: Mapping[str, str], *, progress: ProgressBar
    ) -> object:
        """Write it.

        Args:
            options: Settings of the engine, in its own words.

        Raises:
            StateChannelError: The archive cannot be read, or the file not be written.
        """
        ...


def load_engine(name: str) -> AuditEngine:
    """The engine of that name.

    Raises:
        AuditQuestionError: There is none, or it cannot be loaded.
    """
    engine: AuditEngine = _load(ENGINES_GROUP, name)
    return engine


def load_archive_export(name: str) -> ArchiveExport:
    """What an engine of that name exports archives with.

    Raises:
        AuditQuestionError: There is none, or it cannot be loaded.
    """
    export: ArchiveExport = _load(ARCHIVE_EXPORTS_GROUP, name)
    return export


def _load(group: str, name: str) -> Any:
    registered = {point.name: point for point in metadata.entry_points(group=group)}
    if name not in registered:
        raise AuditQuestionError(
            f"there is no audit engine {name!r} here, only {', '.join(sorted(registered)) or 'none'}.",
            hint="Check the name; an engine comes with the package that registers it (design/cli.md).",
        )
    point = registered[name]
    try:
        return point.load()
    except (ImportError, AttributeError) as error:
        raise AuditQuestionError(
            f"the audit engine {name!r} ({point.value}) cannot be loaded: {error}.",
            hint="Install what it needs (`pip install 'statechannel[spark]'` for spark), or leave out --engine.",
        ) from error


def check_question(question: AuditQuestion) -> None:
    """Refuse what no log can answer.

    Raises:
        AuditQuestionError: Verdicts of a join read.
    """
    if question.verdicts is not None and question.read is ReadMode.JOIN:
        raise AuditQuestionError(
            "Verdicts are had of a full read only, not of --read join.",
            hint="A joining reader has no verdict on what it takes leniently; leave out --verdicts or --read join.",
        )


def not_in_full(source: str, why: str, *, verdicts: bool) -> AuditQuestionError:
    """The error of a log with gaps that was to be read in full."""
    return AuditQuestionError(
        f"{source} cannot be read in full: {why}.",
        hint="--verdicts needs a full read." if verdicts else "Use --read join, or auto.",
    )
