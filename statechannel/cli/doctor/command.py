"""Command `statechannel doctor`: problems with their severity and the next step."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Annotated, Any

import typer
from rich.text import Text

from statechannel.cli.doctor import checks_channel, checks_here, checks_kafka, checks_topics
from statechannel.cli.doctor.facts import DoctorFacts, Failed
from statechannel.cli.doctor.findings import DoctorCheck, DoctorFinding, Severity, examine, exit_code, finding_fields
from statechannel.cli.doctor.gather import facts_here, facts_of_kafka
from statechannel.cli.doctor.plugins import plugins
from statechannel.cli.kit.connection import Connection, connection_of
from statechannel.cli.kit.options import Connect, OutputAs, with_connection
from statechannel.cli.kit.output import Output, cell, print_json, stdout
from statechannel.errors import StateChannelError
from statechannel.settings import Settings, SettingsError

app = typer.Typer(add_completion=False, rich_markup_mode=None)

CHECKS: tuple[DoctorCheck, ...] = (
    *checks_here.CHECKS,
    *checks_kafka.CHECKS,
    *checks_topics.CHECKS,
    *checks_channel.CHECKS,
)
"""Our checks, in the order of the output; those of plug-ins follow."""

_TIMEOUT_S = 5.0


@app.command()
@with_connection
def doctor(
    connect: Connect,
    timeout_s: Annotated[
        float,
        typer.Option("--timeout", metavar="SECONDS", min=0.5, max=600, help="Timeout of each call to Kafka."),
    ] = _TIMEOUT_S,
    no_log: Annotated[bool, typer.Option("--no-log", help="Skip the channel's log, which may be long.")] = False,
    output: OutputAs = Output.TABLE,
) -> None:
    """Check the channel, Kafka and this machine for problems; changes nothing."""
    wanted = f"kafka.command_timeout_s={timeout_s}"
    facts, others = learn(lambda: connect.settings(wanted), read_log=not no_log)
    findings = examine((*CHECKS, *others), facts)
    code = exit_code(findings)
    if output is Output.JSON:
        print_json(_document(facts, findings, code))
    else:
        _show(findings)
    if code:
        raise typer.Exit(code)


def learn(read: Callable[[], Settings], *, read_log: bool) -> tuple[DoctorFacts, list[DoctorCheck]]:
    """All facts that can be gathered, and the checks of plug-ins.

    Args:
        read: Resolves the settings; may raise if they are invalid.
    """
    installed = list(plugins())
    checks = [check for _, plugin in installed for check in plugin.checks]
    known: Settings | None
    problems: list[str] = []
    away: Failed | None = None
    connection: Connection | None = None
    try:
        known = read()
    except SettingsError as error:
        known, problems = error.settings, error.problems
    except StateChannelError as error:  # an option that is none, a file that cannot be read
        known, problems = None, [str(error)]
    settings = known or Settings.model_construct()
    if known is None:
        away = Failed("Kafka is not queried, as the settings are invalid", "Fix the settings first.", reported=True)
    else:
        try:
            connection = connection_of(settings)
            settings = connection.settings
        except StateChannelError as error:  # no address and no embedded Kafka that runs, or a property that is refused
            away = Failed(str(error).rstrip("."), error.hint, reported=True)
    facts = facts_here(settings, connection, problems=problems, settings_known=known is not None, away=away)
    if connection is None:
        return facts, checks
    others = [topic for _, plugin in installed for topic in plugin.topics(connection)]
    return facts_of_kafka(facts, connection, others, read_log=read_log), checks


def _document(facts: DoctorFacts, findings: Sequence[DoctorFinding], code: int) -> dict[str, Any]:
    count = Counter(finding.severity for finding in findings)
    return {
        "bootstrap_servers": facts.address,
        "channel": None if facts.connection is None else facts.connection.topics.channel,
        "worst": max(
            (finding.severity for finding in findings), key=lambda finding: finding.rank, default=Severity.OK
        ).value,
        "exit_code": int(code),
        "counts": {severity.value: count[severity] for severity in Severity},
        "findings": [finding_fields(finding) for finding in findings],
    }


_STYLES = {Severity.CRITICAL: "bold red", Severity.ERROR: "red", Severity.WARNING: "yellow", Severity.INFO: "cyan"}


def _show(findings: Sequence[DoctorFinding]) -> None:
    console = stdout()
    unlooked: dict[str, list[str]] = {}
    for finding in findings:
        if not finding.checked:
            unlooked.setdefault(finding.what, []).append(finding.check)
            continue
        line = Text(f"{finding.severity.value:<9}", style=_STYLES.get(finding.severity, ""))
        line.append(f"{_line(finding.check)}: ", style="bold")
        line.append(_line(finding.what), style="default")
        console.print(line)
        for words in filter(None, (finding.why, finding.todo and f"-> {finding.todo}")):
            console.print(Text(f"{'':9}{_line(words)}"))
    for what, checks in unlooked.items():
        console.print(Text(f"not checked: {', '.join(checks)} ({_line(what)})"))
    console.print(Text(_summary(findings), style="bold"))


def _line(words: str) -> str:
    """In one line, without control characters."""
    return cell(" ".join(words.split()))


def _summary(findings: Sequence[DoctorFinding]) -> str:
    count = Counter(finding.severity for finding in findings)
    grave = [severity for severity in reversed(Severity) if count[severity] and severity.rank > Severity.INFO.rank]
    bad = [f"{count[severity]} {severity.value}" for severity in grave]
    return ", ".join(bad) if bad else "no problems"
