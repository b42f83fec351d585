"""Options shared by `audit` and its subcommands: source of the log, moment, and engine."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import wraps
from pathlib import Path
from typing import Annotated, Any

import typer

from statechannel.audit.engine import LOCAL, ArchiveSource, ExportSource, ReadMode, Source
from statechannel.audit.errors import AuditQuestionError
from statechannel.audit.transfer.export_file import read_header
from statechannel.audit.transfer.line import BadLine
from statechannel.cli.kit.options import BootstrapServers, Connect, OutputAs, with_connection
from statechannel.cli.kit.output import Output, say
from statechannel.cli.kit.progress import TERMINAL
from statechannel.queries.audit_log import AuditLog, moment_of

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


def lag_of(compaction_lag_ms: int | None, connect: Connect) -> int:
    """The compaction lag that was given, else that of the settings."""
    return connect.settings().channel.min_compaction_lag_ms if compaction_lag_ms is None else compaction_lag_ms


@dataclass(frozen=True, slots=True)
class AuditOptions(AuditLog):
    """Options of a subcommand.

    Attributes:
        table: Print tables instead of JSON.
    """

    table: bool = False


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
            None if as_of is None else moment_of(as_of, source, "--as-of", TERMINAL),
            log["read"],
            lag_of(log["compaction_lag_ms"], connect),
            log["engine"],
            options_of(log["engine_options"] or ()),
            connect,
            TERMINAL,
            table=log["output"] is not Output.JSON,
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
    from statechannel.queries.live_log import live_source

    return live_source(connect())


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
