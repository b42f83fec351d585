"""Differences between the accepted states of two moments. Pure functions over the lines of the digest."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import orjson

from statechannel.protocol.bundle import parse_key, partition_of
from statechannel.protocol.digest import line
from statechannel.protocol.keys import KeyState
from statechannel.protocol.log import RecordRead
from statechannel.protocol.states import State
from statechannel.protocol.verdict import Verdict
from statechannel.protocol.view import Judgement


class AcceptedState(NamedTuple):
    """One accepted state, as the digest has it."""

    key: str
    version: int
    state: str
    from_: str | None
    to: str | None
    id: str

    @property
    def owner(self) -> str | None:
        if self.state == State.ASSIGNED:
            return self.to
        return self.from_ if self.state in (State.RELEASING, State.SPLITTING) else None

    @property
    def generation(self) -> int | None:
        """Version of the record by which it serves."""
        if self.state == State.ASSIGNED:
            return self.version
        return self.version - 1 if self.state in (State.RELEASING, State.SPLITTING) else None

    @property
    def is_live(self) -> bool:
        """Whether it exists: not for a Deleted namespace, or a bundle that was split."""
        return self.state != State.DELETED


def accepted_of(line: bytes) -> AcceptedState:
    """A line of the digest."""
    return AcceptedState(*orjson.loads(line))


def sides(before: Iterable[bytes], after: Iterable[bytes]) -> Iterator[tuple[bytes | None, bytes | None]]:
    """The lines that differ, paired by key; both sides are sorted by key."""
    left, right = iter(before), iter(after)
    before_line, after_line = next(left, None), next(right, None)
    while before_line is not None or after_line is not None:
        if before_line == after_line:
            before_line, after_line = next(left, None), next(right, None)
            continue
        first = None if before_line is None else _key(before_line)
        second = None if after_line is None else _key(after_line)
        if first is not None and (second is None or first <= second):
            yield before_line, after_line if first == second else None
            before_line = next(left, None)
            if first == second:
                after_line = next(right, None)
        else:
            yield None, after_line
            after_line = next(right, None)


def _key(line: bytes) -> bytes:
    return line[2 : line.index(b'"', 2)]


class StateDifferences:
    """Rows and sums of differences.

    Args:
        partitions: Of the channel.
        unknown: Partitions whose states at one of the moments are unknown: they are skipped.

    Attributes:
        counts: Rows by kind and change; and by kind and what differs, of all that both moments have, also of what went.
        changed: By kind and what differs, of what neither came nor went.
    """

    def __init__(self, partitions: int, unknown: frozenset[int] = frozenset()) -> None:
        self._partitions = partitions
        self._unknown = unknown
        self.counts: Counter[str] = Counter()
        self.changed: Counter[str] = Counter()
        self.owners: dict[str, list[int]] = {}

    def rows(self, before: Iterable[bytes], after: Iterable[bytes]) -> Iterator[dict[str, Any]]:
        for before_line, after_line in sides(before, after):
            left = None if before_line is None else accepted_of(before_line)
            right = None if after_line is None else accepted_of(after_line)
            name = left.key if left is not None else "" if right is None else right.key
            partition = key_partition(name, self._partitions)
            if partition in self._unknown:
                continue
            row = _row(name, partition, left, right)
            self._count(row, left, right)
            yield row

    def _count(self, row: dict[str, Any], left: AcceptedState | None, right: AcceptedState | None) -> None:
        self.counts[f"{row['kind']}s_{row['change']}"] += 1
        for what in row["differs"]:
            self.counts[f"{row['kind']}s_{what}"] += 1
            self.changed[f"{row['kind']}s_{what}"] += row["change"] == "changed"
        for place, side in enumerate((left, right)):
            if side is not None and side.owner is not None:
                self.owners.setdefault(side.owner, [0, 0])[place] += 1

    def moved(self) -> dict[str, dict[str, int]]:
        return {name: {"before": was, "after": now} for name, (was, now) in sorted(self.owners.items())}


def _row(name: str, partition: int, left: AcceptedState | None, right: AcceptedState | None) -> dict[str, Any]:
    was = left is not None and left.is_live
    now = right is not None and right.is_live
    change = "came" if now and not was else "went" if was and not now else "changed"
    if left is None and not now:
        change = "came-and-went"
    differs = []
    if left is not None and right is not None:
        differs = [what for what in ("state", "owner", "generation") if getattr(left, what) != getattr(right, what)]
    return {
        "key": name,
        "partition": partition,
        "kind": "namespace" if name.count("/") == 1 else "bundle",
        "change": change,
        "differs": differs,
        "before": side_fields(left),
        "after": side_fields(right),
    }


def side_fields(accepted: AcceptedState | None) -> dict[str, Any] | None:
    if accepted is None:
        return None
    return {
        "state": accepted.state,
        "owner": accepted.owner,
        "generation": accepted.generation,
        "from": accepted.from_,
        "to": accepted.to,
        "version": accepted.version,
        "id": accepted.id,
    }


def key_partition(name: str, partitions: int) -> int:
    """Partition of a key of the digest; -1 if it is not a valid key."""
    parts = parse_key(name.encode(errors="replace"))
    return -1 if parts is None else partition_of(parts.namespace, partitions)


_PAST_MAX = 1_000
_MISSED = "the log accepts this record, the replica has not applied it"


@dataclass(slots=True)
class _Key:
    """One key whose lines differ in the end.

    Attributes:
        claimed: The replica's line; None if it does not have the key.
        now: The line by the log so far; None while the key does not exist.
        matched: The log once had the replica's state.
        parted: The first record after that which changed it.
        derived: That record is on another key, from which this one was derived.
        accepted_here: A record with the id that the replica has accepted, and that the log rejects.
        missed: The record that the log accepted after the base of that record.
        past: The newest changes by the log: id and offset.
        last: Last record on the key, or that changed it.
    """

    claimed: bytes | None
    now: bytes | None = None
    matched: bool = False
    parted: int = -1
    derived: bool = False
    accepted_here: int = -1
    missed: int = -1
    last: int = -1
    past: deque[tuple[str | None, int]] = field(default_factory=lambda: deque(maxlen=_PAST_MAX))

    def accepted_by_replica(self, base: str | None, offset: int) -> None:
        """The replica has accepted a record that the log rejects: it had missed the records after its base."""
        self.accepted_here = offset
        self.missed = -1
        held = base is None
        for accepted, at in self.past:
            if held:
                self.missed = at
                return
            held = accepted == base

    def changed(self, now: bytes | None, offset: int, *, derived: bool = False) -> None:
        if now == self.now and self.last >= 0:
            return
        if now != self.now:
            self.past.append((None if now is None else accepted_of(now).id, offset))
        self.now = now
        self.last = offset
        if now == self.claimed:
            self.matched, self.parted = True, -1
        elif self.parted < 0:
            self.parted, self.derived = offset, derived


class Parting:
    """Follows some keys through the log up to the replica's offset.

    Args:
        lines: The replica's line of each key; None if it does not have it.
        offsets: Of the log's accepted record, if the log has the key: records that a joining reader took were not observed.
    """

    def __init__(self, lines: Mapping[str, bytes | None], offsets: Mapping[str, int]) -> None:
        self._offsets = offsets
        self._keys = {name: _Key(value, matched=value is None) for name, value in lines.items()}
        self._ids = {
            name: accepted_of(value).id.partition("/")[0] for name, value in lines.items() if value is not None
        }
        self._by_namespace: dict[str, list[str]] = {}
        for name in lines:
            self._by_namespace.setdefault("/".join(name.split("/")[:2]), []).append(name)

    def observe(self, record: RecordRead, judgement: Judgement) -> None:
        key = judgement.key
        if key is None or key.namespace not in self._by_namespace:
            return
        accepted = judgement.verdict is Verdict.ACCEPTED
        own = self._keys.get(key.name)
        if own is not None:
            own.changed(line(key) if key.state is not None else None, record.offset)
            own.last = record.offset
            decoded = judgement.record
            if decoded is not None and not accepted and decoded.id == self._ids.get(key.name):
                own.accepted_by_replica(decoded.base, record.offset)
        if accepted and judgement.record is not None and (key.is_namespace or judgement.record.children is not None):
            for name in self._by_namespace[key.namespace]:
                self._derived(name, key, record.offset)

    def _derived(self, name: str, parent: KeyState, offset: int) -> None:
        """Apply a change of the ring: keys that were derived or removed."""
        state, parts = None, parse_key(name.encode())
        if parts is not None and parts.is_namespace:
            return  # only bundles are derived
        if parent.ring is not None and parts is not None:
            live = parent.ring.live.get(parts.lower)
            near = (live,) if live is not None else ()
            state = next((child for child in (*near, *parent.ring.parents) if child.name == name), None)
        self._keys[name].changed(None if state is None else line(state), offset, derived=True)

    def first(self) -> tuple[int, str, str]:
        """Offset, key and description of the first difference."""
        places = (self._place(name, key) for name, key in self._keys.items())
        return min(places, key=lambda place: (place[0], self._keys[place[1]].derived, place[1]))

    def _place(self, name: str, key: _Key) -> tuple[int, str, str]:
        if key.matched and key.parted >= 0:
            return key.parted, name, _MISSED
        if key.missed >= 0:
            return key.missed, name, _MISSED
        if key.accepted_here >= 0:
            return key.accepted_here, name, "the replica has accepted this record, the log rejects it"
        last = key.last if key.last >= 0 else self._offsets.get(name, -1)
        return last, name, "the last record of the key; the replica has a state that the log never had"
