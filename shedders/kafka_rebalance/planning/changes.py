"""What changes a virtual cluster. Brokers, partitions and places (of a replica in its list) are numbers of its arrays."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple


class SwitchLeader(NamedTuple):
    """Another replica leads; no data is moved."""

    partition: int
    to: int


class MoveReplica(NamedTuple):
    """The replica at a place of the list goes to another broker; where it leads, leadership goes with it."""

    partition: int
    place: int
    to: int


class Swap(NamedTuple):
    """Two replicas change brokers."""

    partition: int
    place: int
    other: int
    other_place: int


class AddReplica(NamedTuple):
    """A further follower, inserted at a place."""

    partition: int
    place: int
    broker: int


class RemoveReplica(NamedTuple):
    """The follower at a place is dropped."""

    partition: int
    place: int


class Reorder(NamedTuple):
    """Two places of the list are exchanged; who leads stays."""

    partition: int
    place: int
    other_place: int


Move = SwitchLeader | MoveReplica | Swap | AddReplica | RemoveReplica | Reorder


def between(partition: int, here: Sequence[int], leader: int, there: Sequence[int], leads: int) -> list[Move]:
    """Moves that turn one list of replicas into another of the same length, with another leader.

    Args:
        partition: Whose.
        here: Its replicas. leader: One of them, or -1.
        there: Those it is to have. leads: Who is to lead.
    """
    now = list(here)
    found: list[Move] = []
    coming = [one for one in there if one not in here]
    for place, one in enumerate(here):
        if one not in there:
            now[place] = coming.pop(0)
            leader = now[place] if leader == one else leader
            found.append(MoveReplica(partition, place, now[place]))
    if leader != leads:
        found.append(SwitchLeader(partition, leads))
    for place, one in enumerate(there):
        if now[place] != one:
            other = now.index(one)
            now[place], now[other] = now[other], now[place]
            found.append(Reorder(partition, place, other))
    return found
