"""Checks as data: facts in, findings out; and the conditions of other packages (entry point group `statechannel.conditions`).

Facts are plain values, gathered once; `DoctorFacts.failed` names those that could not be gathered.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from functools import partial
from importlib.metadata import entry_points
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple, cast

from statechannel.conditions.facts import Condition, ConditionLimits, ConditionSeverity, Detection
from statechannel.conditions.table import current
from statechannel.embedded import BrokerState
from statechannel.engine.membership import Member
from statechannel.errors import ExitCode, StateChannelError
from statechannel.kafka.errors import TopicMissingError, TopicPolicyError
from statechannel.kafka.topic_policy import TopicPolicy
from statechannel.kafka.topics import GroupMember, KafkaCluster, PartitionPlace, TopicInfo
from statechannel.protocol.log import Topic
from statechannel.queries.connection import Connection
from statechannel.settings import Settings
from statechannel.stories.processes import RegistryStory
from statechannel.stories.registry import Registry

if TYPE_CHECKING:
    from statechannel.conditions.facts import Facts, Occurrence


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

    @property
    def alive(self) -> Mapping[str, Member]:
        """Live brokers; none where the registry is not known."""
        return {} if self.registry is None else self.registry.members.alive

    @property
    def nobody(self) -> bool:
        """Whether it is known that no broker is alive."""
        return self.registry is not None and not self.alive

    @property
    def channel(self) -> TopicInfo | None:
        """The channel's topic, as Kafka describes it."""
        name = next((topic.name for topic in self.wanted if topic.policy.role == Topic.CHANNEL), None)
        return None if name is None else self.topics.get(name)


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
        reason: The condition that it is, as `status` and the page name it; None: it is none.
    """

    severity: Severity
    what: str
    why: str = ""
    todo: str = ""
    check: str = ""
    checked: bool = True
    title: str = ""
    reason: str | None = None

    @classmethod
    def of(cls, severity: Severity, condition: Occurrence, more: str = "") -> DoctorFinding:
        """A condition, its sentence with `more` at the end."""
        return cls(
            severity, condition.message + more, condition.consequence, condition.next_step, reason=condition.code
        )


ok, info, warning, error, critical = (partial(DoctorFinding, severity) for severity in Severity)
"""A finding of this severity."""


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
        yield info(missing.what, checked=False)
        return
    try:
        findings = list(check.look(facts))
    except Exception as raised:
        yield error(
            f"the check itself failed: {type(raised).__name__}: {raised}",
            "Its subject was not checked.",
            "This is a bug of the package of the check. Report it.",
        )
        return
    yield from findings or [ok(check.about)]


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
        "reason": finding.reason,
        "what": finding.what,
        "why": finding.why,
        "todo": finding.todo,
    }


GROUP = "statechannel.conditions"


@dataclass(frozen=True, slots=True)
class ConditionExtension:
    """Conditions of another package, beside those of the channel: an entry point names one, and a check has its name.

    Attributes:
        about: Subject of the check; also its output without findings.
        kinds: As those of `statechannel.conditions.table`. They make no verdict of the channel.
        read: Further keys of the facts; what it raises is a finding. May query Kafka (`DoctorFacts.connection`), within
            `Connection.timeout_s`.
        needs: Facts that it needs (`DoctorFacts.failed`).
        topics: Optional topics whose settings and replicas are checked as well as the channel's own.
    """

    about: str
    kinds: Sequence[Condition]
    read: Callable[[DoctorFacts], Mapping[str, Any]]
    needs: Sequence[str] = ()
    topics: Callable[[Connection], Sequence[WantedTopic]] = lambda _: ()

    def look(self, facts: DoctorFacts) -> Iterator[DoctorFinding]:
        """Its conditions that hold."""
        try:
            known = {**facts.status, **self.read(facts)}
        except (TopicPolicyError, TopicMissingError):  # reported by the check of topics
            yield info("its topics cannot be read until they are valid", checked=False)
        except StateChannelError as raised:
            yield error(f"cannot be read: {raised}", "It was not checked.", raised.hint)
        else:
            for item in current(cast("Facts", known), ConditionLimits.of(facts.settings), self.kinds):
                yield DoctorFinding.of(SEVERITIES[item.severity], item)


SEVERITIES: Final = {
    ConditionSeverity.UNKNOWN: Severity.CRITICAL,
    ConditionSeverity.DOWN: Severity.CRITICAL,
    ConditionSeverity.DEGRADED: Severity.ERROR,
    ConditionSeverity.WARNING: Severity.WARNING,
    ConditionSeverity.NOTE: Severity.INFO,
}


def extensions() -> Iterator[tuple[str, ConditionExtension]]:
    """Those that are installed, by name; one that cannot be loaded has itself as its only condition."""
    for point in sorted(entry_points(group=GROUP), key=lambda point: point.name):
        try:
            loaded = point.load()
        except (ImportError, AttributeError) as error:
            yield point.name, _unusable(point.name, str(error))
            continue
        usable = isinstance(loaded, ConditionExtension)
        yield point.name, loaded if usable else _unusable(point.name, f"{point.value} is not a ConditionExtension")


def _unusable(name: str, why: str) -> ConditionExtension:
    kind = Condition(
        "extension-unusable", ConditionSeverity.WARNING, lambda *_: [Detection(f"{name} cannot be loaded: {why}")], (),
        "What it is about was not checked.", "Reinstall the package that registers it.",
    )  # fmt: skip
    return ConditionExtension(f"the conditions of {name}", (kind,), lambda _: {})
