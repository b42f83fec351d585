"""Commands `statechannel audit`, with its subcommands, and `statechannel export`."""

from __future__ import annotations

import shutil
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from statechannel.audit.engine import LOCAL, AuditQuestion, AuditResult, ReadMode, Wants
from statechannel.audit.errors import AuditQuestionError, ExportFileError
from statechannel.cli.audit import tables
from statechannel.cli.audit.actions import actions
from statechannel.cli.audit.gaps import gaps_of, overlaps_of
from statechannel.cli.audit.options import (
    Archive,
    AsOfText,
    CompactionLag,
    EngineName,
    EngineOptions,
    File,
    HowRead,
    lag_of,
    options_of,
    refuse_format,
    source_of,
)
from statechannel.cli.audit.origins import origins
from statechannel.cli.audit.parts import diff, history_of, rejected, report
from statechannel.cli.audit.verify import verify, verify_export
from statechannel.cli.kit.options import BootstrapServers, Connect, OutputAs, options_used, with_connection
from statechannel.cli.kit.output import Output, print_json_lists, say, silence_stdout
from statechannel.cli.kit.progress import TERMINAL
from statechannel.files import check_writable
from statechannel.queries.audit_log import answered, live_writers_of, moment_of
from statechannel.queries.side_files import SideRole, side_file

if TYPE_CHECKING:
    from statechannel.audit.transfer.line import ExportHeader
    from statechannel.queries.connection import Connection

app = typer.Typer(add_completion=False, rich_markup_mode=None)
export_app = typer.Typer(add_completion=False, rich_markup_mode=None)


@app.callback(invoke_without_command=True)
@with_connection
def audit(
    connect: Connect,
    context: typer.Context,
    file: File = None,
    archive: Archive = None,
    bootstrap_servers: BootstrapServers = None,
    as_of: AsOfText = None,
    read: HowRead = ReadMode.AUTO,
    compaction_lag_ms: CompactionLag = None,
    verdicts: Annotated[
        Path | None,
        typer.Option("--verdicts", metavar="OUT", help="Write each record's verdict to this file (full read)."),
    ] = None,
    owned: Annotated[bool, typer.Option("--owned", help="List the owner of each bundle, and since when.")] = False,
    moves: Annotated[
        bool, typer.Option("--moves", help="Count the changes of owner by hour of log time and cause.")
    ] = False,
    engine: EngineName = LOCAL,
    engine_options: EngineOptions = None,
    output: OutputAs = Output.TABLE,
) -> None:
    """Audit the log: accepted states, verdicts, keys awaiting repair, owners, gaps in service and their causes."""
    if context.invoked_subcommand is not None:
        _nothing_before(context)
        return
    source = source_of(file, archive, bootstrap_servers, connect)
    lag_ms = lag_of(compaction_lag_ms, connect)
    moment = None if as_of is None else moment_of(as_of, source, "--as-of", TERMINAL)
    table = output is not Output.JSON
    question = AuditQuestion(
        source,
        read=read,
        as_of=moment,
        compaction_lag_ms=lag_ms,
        verdicts=verdicts,
        wants=Wants(gap_count=table, races=table, owned=owned, moves=moves, cuts=moment is not None),
        options=options_of(engine_options or ()),
    )
    result = answered(engine, question, live_writers_of(source, connect), TERMINAL)
    past = moment is not None or owned or moves
    if table:
        cuts = None if moment is None or result.cuts is None else tables.MomentAndRest(moment, result.cuts)
        tables.show(result, cuts)
    else:
        print_json_lists(result.answer | (dict(result.complete) if past else {}), _extra(result, moment is not None))


def _nothing_before(context: typer.Context) -> None:
    """Refuse options of `audit` itself before a subcommand: they would be ignored."""
    options = options_used(context)
    if options:
        option = options[0]
        command = context.invoked_subcommand
        raise AuditQuestionError(
            f"The option {option} comes before `{command}`.",
            hint=f"Use `statechannel audit {command} ... {option} ...`.",
        )


def _extra(result: AuditResult, of_a_moment: bool) -> dict[str, Any]:
    parts = {"owned": _known_owners(result, of_a_moment), "moves": result.moves}
    return {name: part for name, part in parts.items() if part is not None}


def _known_owners(result: AuditResult, of_a_moment: bool) -> list[dict[str, Any]] | None:
    """Owners, without partitions whose states are no longer in the log."""
    unsure = set(result.complete.get("incomplete", ())) if of_a_moment else set()
    return None if result.owned is None else [row for row in result.owned if row["partition"] not in unsure]


app.command("actions")(actions)
app.command("history")(history_of)
app.command("gaps")(gaps_of)
app.command("overlaps")(overlaps_of)
app.command("rejected")(rejected)
app.command("origins")(origins)
app.command("diff")(diff)
app.command("report")(report)
app.command("verify")(verify)
app.command("verify-export")(verify_export)


_STDOUT = "-"


@export_app.command()
@with_connection
def export(
    connect: Connect,
    file: Annotated[
        Path | None, typer.Argument(metavar="FILE", help="Output file; replaced if it exists. -: standard output.")
    ] = None,
    out: Annotated[Path | None, typer.Option("-o", "--out", metavar="FILE", help="Output file (same as FILE).")] = None,
    with_topics: Annotated[
        bool,
        typer.Option(
            "--with-topics", help="Also write the registry, requests, policies and decisions, to files beside FILE."
        ),
    ] = False,
    with_verdicts: Annotated[
        bool,
        typer.Option(
            "--with-verdicts",
            help="Also judge the records, and write each verdict and the digest of the states into the file.",
        ),
    ] = False,
) -> None:
    """Export the channel's topic to a file, for `audit --file` and other programs."""
    path = _one_of(file, out)
    if out is not None:
        refuse_format(out)
    to_stdout = str(path) == _STDOUT
    if to_stdout and with_topics:
        raise AuditQuestionError("--with-topics writes several files.", hint="Name a file instead of `-`.")
    if not to_stdout:
        check_writable(path)
    from statechannel.conditions.kinds import positions_lost_sentence
    from statechannel.queries.live_log import export_live
    from statechannel.queries.registry import live_writers

    # Before the log: what is written later is not held against it.
    lost = live_writers(connect()).positions_lost
    sides = _export_side_topics(connect(), path) if with_topics else {}
    beside = {role.value: side.digest for role, side in sides.items() if side.digest is not None}
    if to_stdout:
        with tempfile.TemporaryDirectory(prefix="statechannel-export-") as folder:
            scratch = Path(folder) / "export.jsonl"  # the first line is known at the end only
            header = export_live(connect(), scratch, beside=beside, positions_lost=lost)
            header = _judged(scratch) if with_verdicts else header
            _copy_to_stdout(scratch)
    else:
        header = export_live(connect(), path, beside=beside, positions_lost=lost)
        header = _judged(path) if with_verdicts else header
    ends = ", ".join(f"{partition}: {end}" for partition, end in sorted(header.end_offsets.items()))
    where = "standard output" if to_stdout else path
    covers = ", which covers the files next to it" if sides else ""
    say(f"{header.topic} written to {where} (end offsets {ends}; digest {header.digest}{covers})")
    if header.replay is not None:
        say(f"verdicts written into it (digest of the states {header.replay.digest})")
    for role, side in sides.items():
        say(
            f"{side.topic} written to {side_file(path, role)} (end offsets 0: {side.end_offsets[0]}; digest {side.digest})"
        )
    for role in SideRole if not to_stdout else ():
        if role not in sides and side_file(path, role).is_file():
            say(f"note: {side_file(path, role)} is of an earlier export, and is not read with this one")
    for partition, known in lost.items():
        say(f"note: {positions_lost_sentence(header.topic, partition, known)}")
    if not with_topics:
        say("note: who requested what, policies, decisions and the registry are in other topics (--with-topics)")


def _export_side_topics(connection: Connection, path: Path) -> dict[SideRole, ExportHeader]:
    from statechannel.kafka.topic_policy import decisions_topic, policies_topic
    from statechannel.protocol.log import Topic
    from statechannel.queries.live_log import export_side_topics

    names, channel = connection.topics.names, connection.topics.channel
    topics = {
        SideRole.REGISTRY: names[Topic.REGISTRY],
        SideRole.REQUESTS: names[Topic.REQUESTS],
        SideRole.POLICIES: policies_topic(channel).name,
        SideRole.DECISIONS: decisions_topic(channel).name,
    }
    written = export_side_topics(connection, {name: side_file(path, role) for role, name in topics.items()})
    return {role: written[name] for role, name in topics.items() if name in written}


def _judged(path: Path) -> ExportHeader:
    from statechannel.audit.replay_check import record_verdicts
    from statechannel.audit.transfer.export_file import read_header
    from statechannel.cli.kit.progress import progress

    record_verdicts(path, progress)
    return read_header(path)


def _copy_to_stdout(path: Path) -> None:
    try:
        with path.open("rb") as whole:
            shutil.copyfileobj(whole, sys.stdout.buffer)
        sys.stdout.buffer.flush()
    except BrokenPipeError:
        raise
    except OSError as error:
        silence_stdout()
        raise ExportFileError(
            f"standard output cannot be written: {error.strerror}",
            hint="Free space where it goes, or choose another place.",
        ) from error


def _one_of(file: Path | None, out: Path | None) -> Path:
    path = file or out
    if path is None or (file is not None and out is not None):
        raise AuditQuestionError("The export needs exactly one output file.", hint="Use `statechannel export FILE`.")
    return path
