"""Options shared by `audit` and its subcommands: source of the log, moment, and engine."""

from __future__ import annotations

import inspect
import tempfile
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from statechannel.audit.engine import (
    LOCAL,
    ArchiveSource,
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
from statechannel.audit.moments import AsOf, LogWindow, parse_as_of
from statechannel.audit.transfer.export_file import read_header
from statechannel.audit.transfer.line import BadLine
from statechannel.audit.writers import WritersHeard
from statechannel.cli.kit.listing import remark_yesterday, time_window, window_between
from statechannel.cli.kit.options import BootstrapServers, Connect, OutputAs, with_connection
from statechannel.cli.kit.output import Output, moment, say
from statechannel.cli.kit.progress import progress
from statechannel.cli.kit.side_files import header_of, writers_of_file
from statechannel.clocks import now_ms

if TYPE_CHECKING:  # files are read on machines without the Kafka client
    from statechannel.cli.kit.connection import Connection

File = Annotated[Path | None, typer.Option("--file", metavar="F", help="Export file to audit.")]
Archive = Annotated[str | None, typer.Option("--archive", metavar="DIR", help="Audit archive (with --engine spark).")]
AsOfText = Annotated[
    str | None,
    typer.Option(
        "--as-of", metavar="AGE|TIME|OFFSET", help="Moment of the audit, inclusive: an offset, a time, or 10m (ago)."
    ),
]
HowRead = Annotated[ReadMode, typer.Option("--read", help="full (strict), join (as a joining broker), or auto.")]
CompactionLag = Annotated[
    int | None,
    typer.Option(
        "--compaction-lag-ms", min=0, help="The topic's min.compaction.lag.ms. Default: the channel's, by the settings."
    ),
]
EngineName = Annotated[str, typer.Option("--engine", metavar="NAME", help="Audit engine: local or spark.")]
EngineOptions = Annotated[
    list[str] | None,
    typer.Option("--engine-option", metavar="KEY=VALUE", help="Setting of the engine; may be repeated."),
]


@dataclass(frozen=True, slots=True)
class AuditOptions:
    """Options of a subcommand.

    Attributes:
        as_of: Moment of the audit; None: the end of the log.
        table: Print tables instead of JSON.
        connect: Connects to the channel of the settings, to read its other topics.
        writers: What the registry shows of the processes; None: not read yet, or not to be read.
    """

    source: Source
    as_of: AsOf | None
    read: ReadMode
    compaction_lag_ms: int
    engine: str
    options: Mapping[str, str] = field(repr=False)
    table: bool
    connect: Callable[[], Connection]
    writers: WritersHeard | None = None

    def window(self, since: str | None, until: str | None) -> LogWindow:
        """The part of the log that is listed; ages count back from the moment of the audit.

        Raises:
            AuditQuestionError: The options are invalid.
        """
        return window_between(since, until, self._ends_ms)

    def time_window(self, since: str | None, until: str | None) -> LogWindow:
        """The same where sides are times.

        Raises:
            AuditQuestionError: The options are invalid.
            CommandError: A side is an offset.
        """
        return time_window(since, until, self._ends_ms)

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
        return answered(self.engine, question, writers)

    def heard(self) -> WritersHeard | None:
        """What the registry shows of the processes, read now for a live log; None: a file or an archive does not have it."""
        return self.writers if self.writers is not None else writers_of(self.source, self.connect)

    @contextmanager
    def as_file(self) -> Iterator[AuditOptions]:
        """The same log for several questions: a live topic is exported once, to a temporary file."""
        if not isinstance(self.source, LiveSource) or self.engine != LOCAL:
            yield self
            return
        with tempfile.TemporaryDirectory(prefix="statechannel-audit-") as folder:
            path = Path(folder) / "export.jsonl"
            writers = self.heard()  # before the log: what is written later is not held against it
            self.source.export(path)
            yield replace(self, source=ExportSource(path, made_here=True), writers=writers)


def answered(engine: str, question: AuditQuestion, writers: WritersHeard | None) -> AuditResult:
    """The engine's result; tentative where brokers have read more than the log has, which the registry shows."""
    result = load_engine(engine)(question, progress=progress)
    remark_moment(question.as_of, result)
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


def writers_of(source: Source, connect: Callable[[], Connection]) -> WritersHeard | None:
    """What the registry shows of the processes: the live one, or its file beside an export; None: there is none."""
    if isinstance(source, ExportSource):
        return None if source.made_here else writers_of_file(source.path)
    return live_writers_of(source, connect)


def live_writers_of(source: Source, connect: Callable[[], Connection]) -> WritersHeard | None:
    """What the registry of a live topic shows of the processes; None for a file or an archive."""
    if not isinstance(source, LiveSource):
        return None
    # Only a live audit needs the Kafka client.
    from statechannel.cli.kit.registry import live_writers

    return live_writers(connect())


def lag_of(compaction_lag_ms: int | None, connect: Connect) -> int:
    """The compaction lag that was given, else that of the settings."""
    return connect.settings().channel.min_compaction_lag_ms if compaction_lag_ms is None else compaction_lag_ms


def audit_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options of the log and of the connection to a command; its first argument is an `AuditOptions`.

    A command with an argument `as_of` of its own resolves its moments itself.
    """
    own = list(inspect.signature(command, eval_str=True).parameters.values())[1:]
    names = {parameter.name for parameter in own}
    shared = [parameter for parameter in _LOG.values() if parameter.name not in names]

    @wraps(command)
    def run(connect: Connect, **arguments: Any) -> Any:
        log = {parameter.name: arguments.pop(parameter.name) for parameter in shared}
        as_of = log.get("as_of")
        source = source_of(log["file"], log["archive"], log["bootstrap_servers"], connect)
        asked = AuditOptions(
            source,
            None if as_of is None else moment_of(as_of, source),
            log["read"],
            lag_of(log["compaction_lag_ms"], connect),
            log["engine"],
            options_of(log["engine_options"] or ()),
            log["output"] is not Output.JSON,
            connect,
        )
        return command(asked, **arguments)

    first = inspect.Parameter("connect", inspect.Parameter.POSITIONAL_OR_KEYWORD, annotation=Connect)
    keyword = [parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY) for parameter in (*own, *shared)]
    run.__signature__ = inspect.Signature([first, *keyword])  # type: ignore[attr-defined]
    return with_connection(run)


def _log(
    file: File = None,
    archive: Archive = None,
    bootstrap_servers: BootstrapServers = None,
    as_of: AsOfText = None,
    read: HowRead = ReadMode.AUTO,
    compaction_lag_ms: CompactionLag = None,
    engine: EngineName = LOCAL,
    engine_options: EngineOptions = None,
    output: OutputAs = Output.TABLE,
) -> None:
    """The options themselves, as a signature."""


_LOG = dict(inspect.signature(_log, eval_str=True).parameters)


def source_of(file: Path | None, archive: str | None, bootstrap_servers: str | None, connect: Connect) -> Source:
    """Source of the log that the options name; by default the channel of the settings.

    Raises:
        AuditQuestionError: The options name several.
    """
    named = {"--file": file, "--archive": archive, "--bootstrap-servers": bootstrap_servers}
    options = [option for option, value in named.items() if value is not None]
    if len(options) > 1:
        raise AuditQuestionError(f"{options[0]} and {options[1]} exclude each other.", hint="Use one of them.")
    if file is not None:
        remark_unchained(file)
        return ExportSource(file)
    if archive is not None:
        return ArchiveSource(archive)
    # Only a live audit needs the Kafka client; files are read on machines that have none of it.
    from statechannel.cli.kit.live_log import live_source

    return live_source(connect())


def read_at_ms(source: Source) -> int:
    """When the log was or is read, milliseconds since 1970: ages such as `10m` count back from here."""
    if isinstance(source, ExportSource):
        with suppress(OSError, BadLine):
            return read_header(source.path).exported_at_ms
    return now_ms()


def moment_of(text: str, source: Source, name: str = "--as-of") -> AsOf:
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
    remark_yesterday(name, text, as_of, now_ms)
    return as_of


def remark_moment(as_of: AsOf | None, result: AuditResult) -> None:
    """Remark on standard error that a moment lies before the first record, or past the last one."""
    if as_of is not None and result.cuts:
        ends = result.answer["end_offsets"].values()
        some = any(cut.records for cut in result.cuts.values())
        remark_outside(as_of, ends, some=some, whole=not result.complete)


def remark_outside(as_of: AsOf, ends: Collection[int], *, some: bool, whole: bool) -> None:
    """The same, for those that judge the log themselves.

    Args:
        ends: End offsets.
        some: There are records up to the moment.
        whole: The log is complete from its beginning on.
    """
    if not some and any(ends):
        when = moment(as_of.time_ms) if as_of.time_ms is not None else f"offset {as_of.offset}"
        before = "there was no namespace and no bundle then" if whole else "what was there then is unknown"
        say(f"note: the log has no record up to {when}: {before}")
    elif as_of.offset is not None and as_of.offset >= max(ends, default=0):
        meant = f"; a time has the suffix ms: {as_of.offset}ms" if as_of.offset >= _LIKE_A_TIME else ""
        say(f"note: offset {as_of.offset} is past the end of every partition: it means the end of the log{meant}")


_LIKE_A_TIME = 10**12
"""Milliseconds since 1970 of any log; far above its offsets."""


def remark_unchained(path: Path) -> None:
    """Warn that edits of this file are not detected; its reader reports all other problems."""
    with suppress(OSError, BadLine):
        if path.is_file() and read_header(path).digest is None:
            say(
                f"note: {path} has no digest of its records (of an earlier version, or removed): edits cannot be detected"
            )


def refuse_format(path: Path) -> None:
    """Refuse a file named like an output format: `-o` names the file in commands that write one.

    Raises:
        AuditQuestionError: It is one.
    """
    if str(path) in {output.value for output in Output}:
        raise AuditQuestionError(
            f"`{path}` names a file here, not the format of the output.",
            hint=f"The format is `--output {path}`; choose another name for the file.",
        )


def options_of(options: Sequence[str]) -> dict[str, str]:
    """Settings of an engine.

    Raises:
        AuditQuestionError: One is not KEY=VALUE.
    """
    settings = {}
    for option in options:
        name, equals, value = option.partition("=")
        if not (name and equals):
            raise AuditQuestionError(f"--engine-option {option!r} is not KEY=VALUE.", hint="Use KEY=VALUE.")
        settings[name] = value
    return settings
