"""Facts for the checks: plain values, gathered once. `DoctorFacts.failed` names those that could not be gathered."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from statechannel.audit.incidents import RegistryStory
from statechannel.cli.kit.connection import Connection
from statechannel.cli.kit.registry import Registry
from statechannel.embedded import BrokerState
from statechannel.kafka.topic_policy import TopicPolicy
from statechannel.kafka.topics import KafkaCluster, PartitionPlace, TopicInfo
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
        status: Document of `statechannel status`.
        failed: By `java`, `embedded`, `kafka`, `nodes`, `topics`, `registry`, `log`.
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
    clock: ClockFacts = field(default_factory=ClockFacts)
    registry: Registry | None = None
    story: RegistryStory | None = None
    status: Mapping[str, Any] = field(default_factory=dict)
    keys: int = 0
    failed: Mapping[str, Failed] = field(default_factory=dict)
    connection: Connection | None = None
