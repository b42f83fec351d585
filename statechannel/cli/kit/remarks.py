"""Remarks on the cluster and its brokers, shown by `brokers` and `status`: cordons, for example.

Packages register them in the entry point group `statechannel.remarks`: a function of the connection and of the members that are
alive, by broker, which returns `Remarks`.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from importlib.metadata import entry_points
from typing import NamedTuple

from statechannel.engine.membership import Member
from statechannel.errors import StateChannelError
from statechannel.protocol.record import held_back_by
from statechannel.queries.connection import Connection
from statechannel.stories.incident import Incident

GROUP = "statechannel.remarks"


class Remarks(NamedTuple):
    """Sentences on the whole cluster, and by broker.

    Attributes:
        cordoned: Brokers to which an operator wants no bundles to go.
        changes: Of the last hour, as incidents.
    """

    cluster: Sequence[str] = ()
    brokers: Mapping[str, str] = {}
    cordoned: Collection[str] = frozenset()
    changes: Sequence[Incident] = ()


def remarks(connection: Connection, alive: Mapping[str, Member]) -> Remarks:
    """Remarks of every installed package; a package that fails is named, and the others are still shown."""
    cluster: list[str] = []
    brokers: dict[str, list[str]] = {}
    cordoned: set[str] = set()
    changes: list[Incident] = []
    for point in sorted(entry_points(group=GROUP), key=lambda point: point.name):
        try:
            more = point.load()(connection, alive)
        except StateChannelError as error:
            cluster.append(f"{point.name} could not be read: {error}")
            continue
        cluster += more.cluster
        cordoned |= set(more.cordoned)
        changes += more.changes
        for broker, text in more.brokers.items():
            brokers.setdefault(broker, []).append(text)
    joined = {broker: "; ".join(texts) for broker, texts in brokers.items()}
    return Remarks(cluster, joined, frozenset(cordoned), tuple(changes))


def formats(_: Connection, alive: Mapping[str, Member]) -> Remarks:
    """Brokers that keep the others from writing the newest format; empty if all read the same."""
    newest, waits_for = held_back_by({broker: member.formats for broker, member in alive.items()})
    if not waits_for:
        return Remarks()
    remark = f"does not read format {newest}: upgrade it (design/upgrades.md)"
    return Remarks(
        [f"format {newest} is not written until these brokers are upgraded or stopped: {', '.join(waits_for)}"],
        dict.fromkeys(waits_for, remark),
    )
