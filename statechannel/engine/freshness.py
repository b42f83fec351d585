"""How old a view is: answers from one that is not current say so (protocol, safe mode).

The registry tells whether Kafka is there. But a partition has a leader and a connection of its own: it may stand still while
the registry is heard, or come back later, and then too its view is not the present. And where more is written
than this process takes in, its view falls behind although records arrive all the time: what counts is not when something was
read last, but how long ago everything had been read.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from statechannel.engine.context import Mode
from statechannel.protocol.replica import Phase

if TYPE_CHECKING:
    from statechannel.engine.context import Context
    from statechannel.engine.inputs import Now
    from statechannel.protocol.replica import Replica

SILENT_BEATS = 2
"""A view is old if it was not complete for safe mode's patience and this number of the leader's heartbeats."""


def is_current(context: Context, namespace: str) -> bool:
    return context.mode is not Mode.SAFE and keeps_up(context, namespace)


def keeps_up(context: Context, namespace: str) -> bool:
    """Whether this namespace's partition is judged and was complete lately, whatever is heard of the registry."""
    replica = context.replicas[context.partition_of(namespace)]
    complete = replica.current_at_s is not None and lag_s(context.now, replica) <= patience_s(context)
    return complete and context.judges(replica.partition)


def current_until_s(context: Context, replica: Replica) -> float:
    """Until when answers of a partition come from a current view if nothing more is read of it."""
    if replica.current_at_s is None or context.mode is Mode.SAFE or not context.judges(replica.partition):
        return float("-inf")
    return replica.current_at_s + patience_s(context)


def patience_s(context: Context) -> float:
    """How long ago a partition may have been complete for its view to count as current."""
    return context.config.safe_after_s + SILENT_BEATS * context.config.heartbeat_interval_s


def lag_s(now: Now, replica: Replica) -> float:
    """Seconds since the newest moment at which everything in the partition had been read; since it was opened before."""
    return now.mono_s - (replica.read_at_s if replica.current_at_s is None else replica.current_at_s)


def view_age_s(context: Context, namespace: str, silence_s: float) -> float:
    """Since when the namespace's partition was not complete, or this process not heard in the registry."""
    replica = context.replicas[context.partition_of(namespace)]
    stopped = replica.phase is Phase.STOPPED
    age_s = context.now.mono_s - replica.stopped_at_s if stopped else lag_s(context.now, replica)
    return max(silence_s, age_s)
