"""Options of an embedded broker, with the reason of every default."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType

from statechannel.embedded.security import BrokerSecurity


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerOptions:
    """Options of one embedded broker.

    Attributes:
        heap_mib: Java heap. 128 serves millions of small records; more only helps page-heavy reads.
        jars: Folder with the jars; None takes STATECHANNEL_KAFKA_JARS, else the user's cache.
        start_timeout_s: Longest wait for the broker to serve. After a kill the old session has to
            end first: about 10 s, and a busy machine needs several times that (56 s were seen).
        stop_timeout_s: Longest wait for a clean stop before the broker is killed.
        min_free_bytes: Least free space on the disk of the data folder for a start: one log segment
            of a topic plus the internal topics.
        fast_cleaner: Wake the log cleaner every 0.2 s instead of 15 s, for tests that must see
            compaction.
        cluster_id: Id of the cluster, for several nodes that are to be one (with `properties` that name their voters);
            None makes a new one.
        properties: Kafka properties that override the ones made here.
        security: TLS, passwords and ACLs; None serves all clients on this machine. To be the same at every start on a
            data folder.
    """

    heap_mib: int = 128
    jars: Path | None = None
    start_timeout_s: float = 120.0
    stop_timeout_s: float = 30.0
    min_free_bytes: int = 64 * 1024 * 1024
    fast_cleaner: bool = False
    cluster_id: str | None = None
    properties: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    security: BrokerSecurity | None = None
