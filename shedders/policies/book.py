"""The fold of `NAME-policies`: which policies stand. Pure; times are given.

What stands depends on the newest record of each key alone, so that a reader of the compacted topic comes to the same as one
who has read every record. Newest means the largest offset, whatever the order in which records are taken in. A null deletes.

An override (key `override/KIND/NAME`, always with an end) lies over the standing policy of that kind and name. It is taken back
by itself: nobody has to write anything, what it lay over holds again.

A record that cannot be read never opens what its key names: its kind is closed instead (`EffectivePolicies.closed`). What
has no readable key says nothing and is only counted. Nothing in a record raises.

A book has bounds. What goes beyond them is dropped, and since nobody knows what it forbids, nothing is moved
(`EffectivePolicies.overfull`). What a key stands for is computed when it changes or expires: one record costs little however
many policies there are.
"""

from __future__ import annotations

from collections import Counter
from enum import StrEnum
from typing import NamedTuple

from sortedcontainers import SortedDict

from loaddata.model.broker_load import ResourceWeights
from shedders.model.patterns import Patterns, compiled
from shedders.policies.effective import EffectivePolicies, Effects, Force, PolicyEntry
from shedders.policies.kinds import PolicyKind
from shedders.policies.record import InvalidPolicyReason, PolicyKey, PolicyRecord, UndecodablePolicy, decode, decode_key

_STEP_BYTES = 16
"""Of a step of a pattern's program."""
_ENTRY_BYTES = 1_000
"""Of a record that is held, beside its text: generous."""


class FoldResult(StrEnum):
    """What became of a record."""

    SET = "set"
    DELETED = "deleted"
    OLDER = "older"
    JUNK = "junk"
    NO_ROOM = "no-room"


class BookBounds(NamedTuple):
    """How much a book holds.

    Attributes:
        policies_max: Keys that are not deleted; so many deleted ones are remembered, too.
        bytes_max: Of records that are held, with their patterns ready to match.
    """

    policies_max: int = 5_000
    bytes_max: int = 64 * 1024 * 1024


class ReadPolicy(NamedTuple):
    """A record that has been decoded; `found` None: it deletes its key."""

    offset: int
    timestamp_ms: int
    key: PolicyKey | UndecodablePolicy
    found: PolicyRecord | UndecodablePolicy | None
    size: int
    patterns: tuple[Patterns, ...] = ()


def read(offset: int, timestamp_ms: int, key: bytes | None, value: bytes | None) -> ReadPolicy:
    """Decode a record; in any thread."""
    named = decode_key(key)
    if isinstance(named, UndecodablePolicy) or value is None:
        return ReadPolicy(offset, timestamp_ms, named, None, _ENTRY_BYTES)
    found = decode(named, value)
    if not isinstance(found, PolicyRecord):
        return ReadPolicy(offset, timestamp_ms, named, found, _ENTRY_BYTES)
    patterns = _patterns(found)
    size = _ENTRY_BYTES + len(value) + _STEP_BYTES * sum(pattern.size for pattern in patterns)
    return ReadPolicy(offset, timestamp_ms, named, found, size, patterns)


def _patterns(record: PolicyRecord) -> tuple[Patterns, ...]:
    if record.key.kind is not PolicyKind.ISOLATION:
        return ()
    lists = [compiled(record.value[part]) for part in ("namespaces", "primary", "secondary")]
    return tuple(one for one in lists if isinstance(one, Patterns))


class _Held(NamedTuple):
    """Newest record of a key; its patterns stay ready to match as long as it is held."""

    offset: int
    timestamp_ms: int
    found: PolicyRecord | UndecodablePolicy
    size: int
    patterns: tuple[Patterns, ...]


class _Part(NamedTuple):
    """What the records of one kind and name come to, from `since_ms` until before `until_ms` (None: for good)."""

    since_ms: int
    until_ms: int | None
    entries: tuple[PolicyEntry, ...]
    lapsed: tuple[PolicyEntry, ...]


_Name = tuple[PolicyKind, str]


class PolicyBook:
    """The policies as far as they have been read. Not for more than one thread.

    Attributes:
        position: Largest offset taken in; -1 before the first.
        last_junk: What was wrong with the newest record that could not be used; empty while none was.
        dropped: Records for which there was no room.
    """

    def __init__(self, bounds: BookBounds | None = None) -> None:
        self._bounds = bounds or BookBounds()
        self._held: dict[PolicyKey, _Held] = {}
        self._deleted: dict[PolicyKey, int] = {}
        self._names: SortedDict[_Name, _Part | None] = SortedDict()
        self._bytes = 0
        self._junk: Counter[str] = Counter()
        self._standing: tuple[int, EffectivePolicies] | None = None
        self.position = -1
        self.last_junk = ""
        self.dropped = 0

    def __len__(self) -> int:
        return len(self._held)

    @property
    def bounds(self) -> BookBounds:
        """How much of what it may hold it holds."""
        return BookBounds(len(self._held), self._bytes)

    @property
    def has_room(self) -> bool:
        """One more would be taken in."""
        return len(self._held) < self._bounds.policies_max and self._bytes < self._bounds.bytes_max

    @property
    def overfull(self) -> str:
        """Why not all policies are known; empty: they are."""
        if not self.dropped:
            return ""
        return (
            f"there are more policies than this broker takes in ({self._bounds.policies_max} of "
            f"{self._bounds.bytes_max} bytes together); {self.dropped} records were dropped, the last at offset {self.position}"
        )

    def newest(self, key: PolicyKey) -> int:
        """Offset of the newest record of a key, if it is one that can be read and is not deleted; else -1."""
        held = self._held.get(key)
        return held.offset if held is not None and isinstance(held.found, PolicyRecord) else -1

    def take(self, offset: int, timestamp_ms: int, key: bytes | None, value: bytes | None) -> FoldResult:
        """Take one record in.

        Args:
            timestamp_ms: The log's own time.
        """
        return self.take_read(read(offset, timestamp_ms, key, value))

    def take_read(self, one: ReadPolicy) -> FoldResult:
        """Take in a record that was decoded elsewhere."""
        self.position = max(self.position, one.offset)
        self._standing = None
        if isinstance(one.key, UndecodablePolicy):
            return self._junked(one.offset, one.key)
        key, before = one.key, self._held.get(one.key)
        if max(-1 if before is None else before.offset, self._deleted.get(key, -1)) >= one.offset:
            return FoldResult.OLDER
        if one.found is None:
            self._delete(key, one.offset)
            return FoldResult.DELETED
        found, size = one.found, one.size
        if not self._fits(before, size):
            self.dropped += 1
            if before is None:
                return FoldResult.NO_ROOM
            # What it held before is not what holds now: it counts as every record that nobody can read.
            found, size = (
                UndecodablePolicy(InvalidPolicyReason.TOO_LARGE, f"there is no room for its {size} bytes"),
                _ENTRY_BYTES,
            )
        self._deleted.pop(key, None)
        self._bytes += size - (0 if before is None else before.size)
        self._held[key] = _Held(one.offset, one.timestamp_ms, found, size, one.patterns if found is one.found else ())
        self._names[key.kind, key.name] = None
        return self._junked(one.offset, found) if isinstance(found, UndecodablePolicy) else FoldResult.SET

    def _fits(self, before: _Held | None, size: int) -> bool:
        if before is None and len(self._held) >= self._bounds.policies_max:
            return False
        return self._bytes + size - (0 if before is None else before.size) <= self._bounds.bytes_max

    def _delete(self, key: PolicyKey, offset: int) -> None:
        held = self._held.pop(key, None)
        if held is not None:
            self._bytes -= held.size
        self._deleted.pop(key, None)
        self._deleted[key] = offset
        if len(self._deleted) > self._bounds.policies_max:
            del self._deleted[next(iter(self._deleted))]
        name = key.kind, key.name
        if key._replace(override=not key.override) in self._held:
            self._names[name] = None
        else:
            self._names.pop(name, None)

    def _junked(self, offset: int, junk: UndecodablePolicy) -> FoldResult:
        self._junk[str(junk.reason)] += 1
        self.last_junk = f"offset {offset}: {junk.why}"
        return FoldResult.JUNK

    def at(self, now_ms: int) -> EffectivePolicies:
        """What stands.

        Args:
            now_ms: An estimate of the log's time. What lapses at this very millisecond has lapsed.
        """
        if self._standing is not None:
            since_ms, found = self._standing
            if since_ms <= now_ms and (found.next_change_ms is None or now_ms < found.next_change_ms):
                return found
        self._standing = self._make(now_ms)
        return self._standing[1]

    def _make(self, now_ms: int) -> tuple[int, EffectivePolicies]:
        """What stands, and since when."""
        entries: list[PolicyEntry] = []
        lapsed: list[PolicyEntry] = []
        effects = Effects.none()
        since_ms, ends = 0, []
        for name, known in self._names.items():
            part = known
            if part is None or now_ms < part.since_ms or (part.until_ms is not None and part.until_ms <= now_ms):
                part = self._names[name] = self._part(name, now_ms)
            entries.extend(part.entries)
            lapsed.extend(part.lapsed)
            since_ms = max(since_ms, part.since_ms)
            if part.until_ms is not None:
                ends.append(part.until_ms)
            for entry in part.entries:
                if entry.force is Force.IN_FORCE:
                    effects.add(entry)
                elif entry.force is Force.UNREADABLE:
                    effects.close(entry)
        if self.overfull:
            effects.forbids.append(self.overfull)
            effects.closed.append(f"{self.overfull}: nothing is moved by itself")
        return since_ms, self._standing_of(effects, entries, lapsed, min(ends, default=None))

    def _part(self, name: _Name, now_ms: int) -> _Part:
        entries: list[PolicyEntry] = []
        lapsed: list[PolicyEntry] = []
        ends: list[int] = []
        for override in (True, False):
            key = PolicyKey(*name, override)
            held = self._held.get(key)
            if held is None:
                continue
            if isinstance(held.found, PolicyRecord) and held.found.until_ms is not None:
                ends.append(held.found.until_ms)
            entry = _entry(key, held, now_ms, covered=bool(entries))
            (lapsed if entry.force is Force.LAPSED else entries).append(entry)
        since_ms = max((ms for ms in ends if ms <= now_ms), default=0)
        return _Part(since_ms, min((ms for ms in ends if ms > now_ms), default=None), tuple(entries), tuple(lapsed))

    def _standing_of(
        self, effects: Effects, entries: list[PolicyEntry], lapsed: list[PolicyEntry], next_change_ms: int | None
    ) -> EffectivePolicies:
        single = effects.single
        weights = single.get(PolicyKind.WEIGHTS)
        return EffectivePolicies(
            position=self.position,
            policies=effects.policies(),
            domains=effects.domains,
            manager=single.get(PolicyKind.MANAGER, {}).get("manager"),
            shedding_on=not effects.forbids,
            shedding_why="; ".join(effects.forbids),
            unload_mode=single.get(PolicyKind.UNLOAD_MODE, {}).get("mode"),
            shed_with_policies=single.get(PolicyKind.SHED_WITH_POLICIES, {}).get("allowed"),
            settings=effects.settings,
            quotas=effects.quotas,
            weights=None
            if weights is None
            else ResourceWeights(**{name: float(weight) for name, weight in weights.items()}),
            entries=tuple(entries),
            lapsed=tuple(lapsed),
            deleted=dict(self._deleted),
            junk=dict(sorted(self._junk.items())),
            closed=tuple(effects.closed),
            overfull=self.overfull,
            next_change_ms=next_change_ms,
        )


def _entry(key: PolicyKey, held: _Held, now_ms: int, *, covered: bool) -> PolicyEntry:
    force = Force.OVERRIDDEN if covered else Force.IN_FORCE
    if not isinstance(held.found, PolicyRecord):
        force = Force.OVERRIDDEN if covered else Force.UNREADABLE
        return PolicyEntry(key, force, held.offset, held.timestamp_ms, trouble=held.found.why)
    one = held.found
    if one.until_ms is not None and one.until_ms <= now_ms:
        force = Force.LAPSED
    return PolicyEntry(
        key, force, held.offset, held.timestamp_ms, one.value, one.by, one.why, one.until_ms, one.written_at_ms
    )
