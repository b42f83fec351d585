"""Command `statechannel doctor`: gathers facts, as far as possible, and prints problems with their severity and the next step.

Every call to Kafka has a timeout. If the first one fails, no other one is made.
"""

from __future__ import annotations

import shutil
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, TypeVar

import typer
from rich.text import Text

from statechannel.cli.doctor import checks_channel, checks_kafka
from statechannel.cli.doctor.checks import (
    ClockFacts,
    DoctorCheck,
    DoctorFacts,
    DoctorFinding,
    EmbeddedFacts,
    Failed,
    JavaFacts,
    Severity,
    WantedTopic,
    examine,
    exit_code,
    extensions,
    finding_fields,
)
from statechannel.cli.kit.connection import connection_of, embedded_folder
from statechannel.cli.kit.fitted_tables import cell
from statechannel.cli.kit.options import Connect, OutputAs, commands, option, with_connection
from statechannel.cli.kit.output import Output, print_hanging, print_json, stdout, waiting
from statechannel.cli.kit.remarks import remarks
from statechannel.cli.status.figures import StatusInputs, figures, leadership
from statechannel.clocks import now_ms
from statechannel.embedded import KAFKA_VERSION, status
from statechannel.embedded.java import find_java
from statechannel.engine.proven_positions import ProvenPositions
from statechannel.errors import StateChannelError
from statechannel.kafka.client_settings import names_servers
from statechannel.kafka.errors import TopicMissingError
from statechannel.kafka.tail import PartitionTail
from statechannel.kafka.topics import TopicAdmin, client_versions
from statechannel.protocol.log import Topic
from statechannel.protocol.verdict import Verdict
from statechannel.queries.channel_view import read_channel
from statechannel.queries.connection import Connection
from statechannel.queries.live_log import naming_address, notify_if_slow, open_tail, recent_requests
from statechannel.queries.registry import LogClock, log_bounds, positions_lost
from statechannel.settings import Settings, SettingsError
from statechannel.stories.processes import RegistryStory
from statechannel.stories.registry import Registry, RegistryFold

app = commands()

CHECKS: tuple[DoctorCheck, ...] = (*checks_kafka.CHECKS, *checks_channel.CHECKS)
"""Our checks, in the order of the output; those of extensions follow."""

_TIMEOUT_S = 5.0


@app.command()
@with_connection
def doctor(
    connect: Connect,
    timeout_s: Annotated[
        float, option("--timeout SECONDS", "Timeout of each call to Kafka.", min=0.5, max=600)
    ] = _TIMEOUT_S,
    no_log: Annotated[bool, option("--no-log", "Skip the channel's log, which may be long.")] = False,
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
        connection = facts.connection
        _show(findings, "" if connection is None else replace(connection, context=connect.context).place)
    if code:
        raise typer.Exit(code)


def learn(read: Callable[[], Settings], *, read_log: bool) -> tuple[DoctorFacts, list[DoctorCheck]]:
    """All facts that can be gathered, and the checks of extensions.

    Args:
        read: Resolves the settings; may raise if they are invalid.
    """
    installed = list(extensions())
    checks = [DoctorCheck(name, item.about, item.look, item.needs) for name, item in installed]
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
    others = [topic for _, item in installed for topic in item.topics(connection)]
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


_INDENT = 9


def _show(findings: Sequence[DoctorFinding], place: str = "") -> None:
    unlooked: dict[str, list[str]] = {}
    for finding in findings:
        if not finding.checked:
            unlooked.setdefault(finding.what, []).append(finding.title or finding.check)
            continue
        severity = Text(f"{finding.severity.value:<{_INDENT}}", style=_STYLES.get(finding.severity, ""))
        print_hanging(severity, f"{_line(finding.title or finding.check)}: {_line(finding.what)}")
        for mark, words in (("", finding.why), ("-> ", finding.todo)):
            if words:
                print_hanging(" " * _INDENT + mark, _line(words))
    for what, checks in unlooked.items():
        stdout().print(Text(f"not checked: {', '.join(checks)} ({_line(what)})"))
    stdout().print(Text(_summary(findings) + (f" on {place}" if place else ""), style="bold"))


def _line(words: str) -> str:
    """In one line, without control characters."""
    return cell(" ".join(words.split()))


def _summary(findings: Sequence[DoctorFinding]) -> str:
    count = Counter(finding.severity for finding in findings)
    grave = [severity for severity in reversed(Severity) if count[severity] and severity.rank > Severity.INFO.rank]
    bad = [f"{count[severity]} {severity.value}" for severity in grave]
    return ", ".join(bad) if bad else "no problems"


_NODES_MAX = 100
_HEARTBEATS = 3
T = TypeVar("T")


def facts_here(
    settings: Settings,
    connection: Connection | None,
    *,
    problems: Sequence[str],
    settings_known: bool,
    away: Failed | None,
) -> DoctorFacts:
    """Facts that do not need Kafka.

    Args:
        connection: None if no address is known, or Kafka cannot be reached; then `away` says why.
        problems: Invalid settings. `settings_known`: False: `settings` are the defaults instead.
    """
    failed: dict[str, Failed] = {} if away is None else {"kafka": away}
    java = _try(failed, "java", _java, reported=True)
    versions = client_versions() | {"embedded Kafka": KAFKA_VERSION}
    address = None if connection is None else connection.client.bootstrap_servers
    by_default = settings_known and not names_servers(settings)
    embedded = _try(failed, "embedded", lambda: _embedded(settings, address, by_default=by_default))
    return DoctorFacts(
        settings,
        settings_known=settings_known,
        problems=tuple(problems),
        address=address,
        versions={name: version for name, version in versions.items() if name != "embedded Kafka" or _used(embedded)},
        java=java,
        embedded=embedded,
        failed=failed,
        connection=connection,
    )


def _used(embedded: EmbeddedFacts | None) -> bool:
    return embedded is not None and embedded.used


def facts_of_kafka(
    facts: DoctorFacts, connection: Connection, others: Sequence[WantedTopic], *, read_log: bool
) -> DoctorFacts:
    """The same with facts from Kafka.

    Args:
        others: Topics of extensions.
        read_log: Also read the channel's log, which may take long.
    """
    failed = dict(facts.failed)
    admin = TopicAdmin(connection.client, timeout_s=connection.timeout_s)

    def first() -> Any:
        with notify_if_slow(connection):
            return admin.cluster()

    cluster = _try(failed, "kafka", first, reported=True)
    if cluster is None:
        return replace(facts, failed=failed)
    wanted = [WantedTopic(name, policy) for name, policy in connection.topics.policies.items()] + list(others)
    names = [topic.name for topic in wanted]
    nodes = _try(
        failed, "nodes", lambda: {node.node: admin.node_settings(node.node) for node in cluster.nodes[:_NODES_MAX]}
    )
    topics = _try(failed, "topics", lambda: admin.describe(names))
    places = _try(failed, "topics", lambda: admin.places(names))
    group = _try(failed, "group", lambda: admin.group_members(connection.topics.leader_group))
    story = RegistryStory(connection.settings.membership.expiry_s)
    channel = (topics or {}).get(connection.topics.channel)
    positions = None if channel is None else ProvenPositions(channel.topic_id, channel.partitions)
    heard = _try(failed, "registry", lambda: _registry(connection, story, positions))
    registry, clock = heard if heard is not None else (None, ClockFacts())
    bounds = _try(failed, "head", lambda: log_bounds(connection), reported=True) or {}
    lost = _try(failed, "head", lambda: positions_lost(connection, positions, bounds), reported=True)
    figures_of_log: dict[str, Any] = {} if registry is None else leadership(registry, story, registry.read_at_ms)
    keys = misplaced = 0
    if not read_log:
        failed["log"] = Failed("the log was not read (--no-log)", reported=True)
    elif registry is not None:
        judged = _try(failed, "log", lambda: _read_log(connection, registry, story))
        figures_of_log, keys, misplaced = judged if judged is not None else (figures_of_log, 0, 0)
    else:
        failed["log"] = failed["registry"]._replace(reported=True)
    return replace(
        facts,
        cluster=cluster,
        nodes=nodes or {},
        wanted=wanted,
        topics=topics or {},
        places=places or {},
        first_offsets={partition: each.low for partition, each in bounds.items()},
        positions_lost=lost or {},
        misplaced=misplaced,
        group=group or (),
        clock=clock,
        registry=registry,
        story=story,
        status=figures_of_log,
        keys=keys,
        failed=failed,
    )


def _try(failed: dict[str, Failed], name: str, learn: Callable[[], T], *, reported: bool = False) -> T | None:
    """The fact, or None; a failure is noted.

    Args:
        reported: Another check reports a failure.
    """
    try:
        return learn()
    except StateChannelError as error:
        # A missing topic is reported by the check of topics.
        failed[name] = Failed(str(error).rstrip("."), error.hint, reported or isinstance(error, TopicMissingError))
    except OSError as error:
        failed[name] = Failed(f"{error.filename or name}: {error.strerror}", reported=reported)
    return None


def _java() -> JavaFacts:
    java = find_java()
    return JavaFacts(str(java.executable), java.major)


def _embedded(settings: Settings, address: str | None, *, by_default: bool) -> EmbeddedFacts:
    folder = embedded_folder(settings).resolve()
    broker = status(folder)
    place = next(parent for parent in (folder, *folder.parents) if parent.exists())
    disk = shutil.disk_usage(place)
    return EmbeddedFacts(
        state=broker.state,
        folder=folder,
        log=broker.log_path,
        address=broker.bootstrap_servers,
        used=by_default if address is None else address == broker.bootstrap_servers,
        exists=folder.exists(),
        free_bytes=disk.free,
        total_bytes=disk.total,
        data_bytes=_size_bytes(folder),
        least_free_bytes=settings.embedded.min_free_mib * 1024 * 1024,
    )


def _size_bytes(folder: Path) -> int:
    """Disk usage of the files: Kafka preallocates some."""
    total = 0
    for path in folder.rglob("*"):
        try:
            total += path.lstat().st_blocks * 512
        except OSError:  # gone meanwhile, or not for us to see
            continue
    return total


def _registry(
    connection: Connection, story: RegistryStory, positions: ProvenPositions | None
) -> tuple[Registry, ClockFacts]:
    """Read the whole registry, then some heartbeats as they arrive, for Kafka's time."""
    membership = connection.settings.membership
    clock = LogClock()
    fold = RegistryFold(
        membership.expiry_s,
        observe=story.observe,
        clock=clock.now_ms,
        lost_shown_s=membership.lost_shown_s,
        positions=positions,
    )
    with open_tail(connection, Topic.REGISTRY, 0) as tail:
        span = tail.span()
        fold.take(tail.records(span))
        newest_ms = now_ms() - story.newest_ms if story.newest_ms else None
        if fold.silent:
            _listen(tail, span.end, fold, clock, 2 * membership.interval_s)
        registry = fold.registry().without(recent_requests(connection).dismissals)
        return registry, ClockFacts(clock.ahead_ms, newest_ms)


def _listen(tail: PartitionTail, start: int, fold: RegistryFold, clock: LogClock, at_most_s: float) -> None:
    ends_s = time.monotonic() + at_most_s
    heard: list[int] = []
    quiet = False

    def is_enough() -> bool:
        return (len(heard) >= _HEARTBEATS and not fold.unsure) or time.monotonic() > ends_s

    with waiting("listening for heartbeats", at_most_s) as tick:
        for batch in tail.follow(start, stop=is_enough):
            tick("")
            fold.take(batch, live=True)
            if batch and quiet:  # what had come before it was waited for says nothing about now
                clock.heard(batch[-1].timestamp_ms)
                heard.append(batch[-1].offset)
            quiet = quiet or not batch
    fold.listened()


def _read_log(connection: Connection, registry: Registry, story: RegistryStory) -> tuple[dict[str, Any], int, int]:
    inputs = StatusInputs(story)
    with naming_address(connection):
        views = read_channel(connection, inputs.observers())
    fields = figures(
        views,
        registry,
        inputs,
        remarks(connection, registry.members.alive),
        channel=connection.topics.channel,
        bootstrap_servers=connection.client.bootstrap_servers,
    )
    misplaced = sum(part.verdicts[Verdict.WRONG_PARTITION] for part in views.parts)
    return fields, sum(len(part.view.keys) for part in views.parts), misplaced
