"""Checks as data: facts in, findings out; and the checks of other packages (entry point group `statechannel.doctor`).

Facts are plain values, gathered once; `DoctorFacts.failed` names those that could not be gathered.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any, NamedTuple

from statechannel.audit.registry_story import RegistryStory
from statechannel.cli.kit.connection import Connection
from statechannel.cli.kit.registry import Registry
from statechannel.embedded import BrokerState
from statechannel.errors import ExitCode
from statechannel.kafka.topic_policy import TopicPolicy
from statechannel.kafka.topics import GroupMember, KafkaCluster, PartitionPlace, TopicInfo
from statechannel.settings import Settings


class Failed(NamedTuple):
    """A fact that could not be gathered.

    Attributes:
        reported: Another finding reports it; checks that need it are only listed as not checked.
    """

    what: str
    hint: str = ""
    reported: bool = False


class JavaFacts(NamedTuple):
    """A working Java."""

    executable: str
    major: int


@dataclass(frozen=True, slots=True)
class EmbeddedFacts:
    """The embedded Kafka of this machine.

    Attributes:
        used: It hosts the channel.
        exists: Its folder exists.
        free_bytes, total_bytes: Of the disk of its folder.
        data_bytes: Size of its data.
        least_free_bytes: Free space that it needs to start.
    """

    state: BrokerState
    folder: Path
    log: Path
    address: str | None
    used: bool
    exists: bool
    free_bytes: int
    total_bytes: int
    data_bytes: int
    least_free_bytes: int


@dataclass(frozen=True, slots=True)
class WantedTopic:
    """An expected topic.

    Attributes:
        owner: Who needs it: `channel`, or the name of a plug-in.
        optional: The channel works without it.
    """

    name: str
    policy: TopicPolicy
    owner: str = "channel"
    optional: bool = False


@dataclass(frozen=True, slots=True)
class ClockFacts:
    """Our clock compared with Kafka's.

    Attributes:
        ahead_ms: Ours minus the log's, at the arrival of a heartbeat; None: none arrived.
        newest_ahead_ms: Ours minus the time of the newest record of all; negative proves that ours is behind.
    """

    ahead_ms: int | None = None
    newest_ahead_ms: int | None = None


@dataclass(frozen=True, slots=True)
class DoctorFacts:
    """All facts. Fields whose names are in `failed` have no meaning.

    Attributes:
        address: Of Kafka; None where none is known.
        settings_known: False: the settings are invalid, and `settings` are the defaults.
        problems: Settings that are invalid, or contradict each other.
        nodes: Settings of each Kafka broker, by node.
        wanted: Expected topics. `topics`: existing ones. `places`: the replicas of their partitions.
        first_offsets: First offset of each partition that the channel uses.
        positions_lost: By partition, highest offset that brokers had read and that the log does not have, unless restated.
        misplaced: Number of records in partitions in which their namespaces do not belong.
        group: Members of the election's group.
        status: Document of `statechannel status`.
        failed: By `java`, `embedded`, `kafka`, `nodes`, `topics`, `head`, `group`, `registry`, `log`.
        connection: For checks of other packages that query Kafka; None if no address is known.
    """

    settings: Settings
    settings_known: bool = True
    problems: Sequence[str] = ()
    address: str | None = None
    versions: Mapping[str, str] = field(default_factory=dict)
    java: JavaFacts | None = None
    embedded: EmbeddedFacts | None = None
    cluster: KafkaCluster | None = None
    nodes: Mapping[int, Mapping[str, str]] = field(default_factory=dict)
    wanted: Sequence[WantedTopic] = ()
    topics: Mapping[str, TopicInfo] = field(default_factory=dict)
    places: Mapping[str, Sequence[PartitionPlace]] = field(default_factory=dict)
    first_offsets: Mapping[int, int] = field(default_factory=dict)
    positions_lost: Mapping[int, int] = field(default_factory=dict)
    misplaced: int = 0
    group: Sequence[GroupMember] = ()
    clock: ClockFacts = field(default_factory=ClockFacts)
    registry: Registry | None = None
    story: RegistryStory | None = None
    status: Mapping[str, Any] = field(default_factory=dict)
    keys: int = 0
    failed: Mapping[str, Failed] = field(default_factory=dict)
    connection: Connection | None = None


class Severity(StrEnum):
    """Severity of a finding, the lowest first."""

    OK = "ok"
    INFO = "info"  # worth knowing; nothing need be done
    WARNING = "warning"  # works, and will not for ever, or not under all faults
    ERROR = "error"  # something does not work, or one more failure would lose data
    CRITICAL = "critical"  # bundles are not served, or what the protocol rests on is void

    @property
    def rank(self) -> int:
        return list(Severity).index(self)


class DoctorFinding(NamedTuple):
    """One result of a check.

    Attributes:
        check: Name of the check; filled in by `examine`.
        title: The same for people, where it is another; filled in likewise.
        checked: False: facts that the check needs are missing, and `what` says why.
        what: The finding, with its figures.
        why: Consequences. Empty without a problem.
        todo: Next step, if possible a command. Empty if nothing is to be done.
    """

    severity: Severity
    what: str
    why: str = ""
    todo: str = ""
    check: str = ""
    checked: bool = True
    title: str = ""


@dataclass(frozen=True, slots=True)
class DoctorCheck:
    """A check.

    Attributes:
        name: One word, or several with hyphens.
        about: Subject of the check; also its output without findings.
        look: DoctorFacts in, findings out. Our own checks do no I/O.
        needs: Facts that it needs (`DoctorFacts.failed`).
        title: Its name for people; empty: `name`.
    """

    name: str
    about: str
    look: Callable[[DoctorFacts], Iterable[DoctorFinding]]
    needs: Sequence[str] = ()
    title: str = ""


def examine(checks: Iterable[DoctorCheck], facts: DoctorFacts) -> list[DoctorFinding]:
    """Run all checks; the worst findings first, within a severity in the order of the checks."""
    findings = [
        finding._replace(check=check.name, title=check.title) for check in checks for finding in _examine(check, facts)
    ]
    return sorted(findings, key=lambda finding: -finding.severity.rank)


def _examine(check: DoctorCheck, facts: DoctorFacts) -> Iterator[DoctorFinding]:
    missing = next((facts.failed[need] for need in check.needs if need in facts.failed), None)
    if missing is not None:
        yield DoctorFinding(Severity.INFO, missing.what, checked=False)
        return
    try:
        findings = list(check.look(facts))
    except Exception as error:
        yield DoctorFinding(
            Severity.ERROR,
            f"the check itself failed: {type(error).__name__}: {error}",
            "Its subject was not checked.",
            "This is a bug of the package of the check. Report it.",
        )
        return
    yield from findings or [DoctorFinding(Severity.OK, check.about)]


_CODES = {
    Severity.WARNING: ExitCode.DOCTOR_WARNING,
    Severity.ERROR: ExitCode.DOCTOR_ERROR,
    Severity.CRITICAL: ExitCode.DOCTOR_CRITICAL,
}


def exit_code(findings: Iterable[DoctorFinding]) -> ExitCode:
    worst = max((finding.severity for finding in findings), key=lambda severity: severity.rank, default=Severity.OK)
    return _CODES.get(worst, ExitCode.OK)


def finding_fields(finding: DoctorFinding) -> dict[str, Any]:
    return {
        "check": finding.check,
        "severity": finding.severity.value,
        "checked": finding.checked,
        "what": finding.what,
        "why": finding.why,
        "todo": finding.todo,
    }


GROUP = "statechannel.doctor"


@dataclass(frozen=True, slots=True)
class Plugin:
    """Checks and topics of a package; the entry point names a plug-in.

    Attributes:
        checks: Run after ours. They may query Kafka (`DoctorFacts.connection`), within `Connection.timeout_s`.
        topics: Optional topics whose settings and replicas are checked as well as the channel's own.
    """

    checks: Sequence[DoctorCheck] = ()
    topics: Callable[[Connection], Sequence[WantedTopic]] = lambda _: ()


def plugins() -> Iterator[tuple[str, Plugin]]:
    """Installed plug-ins by name; one that cannot be loaded becomes a check that reports it."""
    for point in sorted(entry_points(group=GROUP), key=lambda point: point.name):
        try:
            loaded = point.load()
        except (ImportError, AttributeError) as error:
            yield point.name, Plugin((_unusable(point.name, str(error)),))
            continue
        if isinstance(loaded, Plugin):
            yield point.name, loaded
        else:
            yield point.name, Plugin((_unusable(point.name, f"{point.value} is not a Plugin"),))


def _unusable(name: str, why: str) -> DoctorCheck:
    finding = DoctorFinding(
        Severity.WARNING,
        f"the checks of {name} cannot be loaded: {why}",
        "Their subjects were not checked.",
        "Reinstall the package that registers them.",
    )
    return DoctorCheck(name, f"the checks of {name}", lambda _: [finding])
