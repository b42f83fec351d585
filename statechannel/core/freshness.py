"""How old a view is: answers from one that is not current say so (protocol, safe mode).

The registry tells whether Kafka is there. But a partition has a leader and a connection of its own: it may stand still while
the registry is heard, or come back later, and then too nobody may take its view for the present.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from statechannel.core.presence import Mode
from statechannel.core.replica import Phase

if TYPE_CHECKING:
    from statechannel.core.engine import Engine

SILENT_BEATS = 2
"""A partition is silent if nothing comes for safe mode's patience and so many heartbeats of the leader."""


def is_current(engine: Engine, namespace: str) -> bool:
    """Whether answers about this namespace come from a current view."""
    replica = engine.replicas[engine.partition_of(namespace)]
    patience_s = engine.config.safe_after_s + SILENT_BEATS * engine.config.heartbeat_interval_s
    heard = engine.now.mono_s - replica.read_at_s <= patience_s
    return heard and engine.judges(replica.partition) and engine.mode is not Mode.SAFE


def view_age_s(engine: Engine, namespace: str) -> float:
    """Since when the namespace's partition, or this process in the registry, was not heard."""
    replica = engine.replicas[engine.partition_of(namespace)]
    since_s = replica.stopped_at_s if replica.phase is Phase.STOPPED else replica.read_at_s
    return max(engine.presence.silence_s, engine.now.mono_s - since_s)
