"""Changes of a virtual cluster. Brokers, partitions and places (of a replica in its list) are indexes of its arrays."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple


class SwitchLeader(NamedTuple):
    """Switch of the leader to another replica; no data is moved."""

    partition: int
    to: int


class MoveReplica(NamedTuple):
    """Move of the replica at a place of the list to another broker, with its leadership if it leads."""

    partition: int
    place: int
    to: int


class Swap(NamedTuple):
    """Swap of the brokers of two replicas."""

    partition: int
    place: int
    other: int
    other_place: int


class AddReplica(NamedTuple):
    """Addition of a follower at a place."""

    partition: int
    place: int
    broker: int


class RemoveReplica(NamedTuple):
    """Removal of the follower at a place."""

    partition: int
    place: int


class Reorder(NamedTuple):
    """Swap of two places of the list; the leader stays."""

    partition: int
    place: int
    other_place: int


Move = SwitchLeader | MoveReplica | Swap | AddReplica | RemoveReplica | Reorder


def between(partition: int, here: Sequence[int], leader: int, there: Sequence[int], leads: int) -> list[Move]:
    """Changes from one list of replicas to another of the same length, with another leader.

    Args:
        partition: Partition to change.
        here: Present replicas. leader: One of them, or -1.
        there: New replicas. leads: New leader.
    """
    now = list(here)
    moves: list[Move] = []
    coming = [broker for broker in there if broker not in here]
    for place, broker in enumerate(here):
        if broker not in there:
            now[place] = coming.pop(0)
            leader = now[place] if leader == broker else leader
            moves.append(MoveReplica(partition, place, now[place]))
    if leader != leads:
        moves.append(SwitchLeader(partition, leads))
    for place, target in enumerate(there):
        if now[place] != target:
            other = now.index(target)
            now[place], now[other] = now[other], now[place]
            moves.append(Reorder(partition, place, other))
    return moves
