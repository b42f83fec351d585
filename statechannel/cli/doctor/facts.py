"""Facts that checks look at: plain values, gathered once. What could not be learned is named in `DoctorFacts.failed`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from statechannel.audit.registry_incidents import RegistryStory
from statechannel.cli.kit.connection import Connection
from statechannel.cli.kit.registry import Registry
from statechannel.embedded import BrokerState
from statechannel.kafka.cluster import KafkaCluster, PartitionPlace
from statechannel.kafka.topic_policy import TopicPolicy
from statechannel.kafka.topics import TopicInfo
from statechannel.settings import Settings


class Failed(NamedTuple):
    """Facts that could not be learned.

    Attributes:
        reported: A finding says so already; what hangs on these facts is only named as not checked.
    """

    what: str
    hint: str = ""
    reported: bool = False


class JavaFacts(NamedTuple):
    """A Java that answers."""

    executable: str
    major: int


@dataclass(frozen=True, slots=True)
class EmbeddedFacts:
    """The embedded Kafka of this machine.

    Attributes:
        used: The channel that is looked at lives on it.
        exists: Its folder is there.
        free_bytes, total_bytes: Of the disk that its folder lies on.
        data_bytes: What its data takes.
        least_free_bytes: Without so much it does not start.
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
    """A topic that there should be.

    Attributes:
        owner: Who wants it: `channel`, or the name of a plug-in.
        optional: The channel works without it.
    """

    name: str
    policy: TopicPolicy
    owner: str = "channel"
    optional: bool = False


@dataclass(frozen=True, slots=True)
class ClockFacts:
    """Our clock beside Kafka's.

    Attributes:
        ahead_ms: Ours minus the log's, at the coming of a heartbeat that was waited for; None: none came.
        newest_ahead_ms: Ours minus the time of the newest record of all; negative is a proof that ours is behind.
    """

    ahead_ms: int | None = None
    newest_ahead_ms: int | None = None


@dataclass(frozen=True, slots=True)
class DoctorFacts:
    """See the module. A field whose name is in `failed` has no meaning.

    Attributes:
        address: Of Kafka; None where none is known.
        settings_known: False: they cannot be read, and `settings` are the defaults.
        problems: Settings that are refused, or do not go together.
        nodes: Settings of each Kafka broker, by node.
        wanted: Topics that there should be. `topics`: those that exist. `places`: where their partitions lie.
        status: What `statechannel status` tells.
        failed: By `java`, `embedded`, `kafka`, `nodes`, `topics`, `registry`, `log`.
        connection: For checks of other packages that have to ask; None where no Kafka is named.
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
