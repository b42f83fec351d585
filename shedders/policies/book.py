"""Fold of `NAME-policies` to the policies in effect. Pure; the time is an argument.

The result depends on the newest record of each key alone, so that a reader of the compacted topic gets the same as one
that has read every record. Newest means the largest offset, whatever the order in which records are added. A null deletes.

An override (key `override/KIND/NAME`, always with an end) takes precedence over the standing policy of that kind and name. It
expires by itself: without another record the standing policy is in effect again.

An unreadable record fails closed: what its key names is restricted (`EffectivePolicies.closed`). A record without a
readable key is only counted. No record raises an error.

A book has bounds. Records beyond them are dropped, and as they may forbid anything, nothing is moved
(`EffectivePolicies.overfull`). The effect of a key is computed when it changes or expires: one record costs little, whatever
the number of policies.
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
from shedders.policies.record import InvalidPolicyReason, PolicyKey, PolicyRecord, decode, decode_key
from statechannel.protocol.side_record import InvalidRecord

_STEP_BYTES = 16  # memory of one step of a pattern's program
_ENTRY_BYTES = 1_000  # memory of a record in addition to its text, an upper estimate


class FoldResult(StrEnum):
    SET = "set"
    DELETED = "deleted"
    OLDER = "older"
    JUNK = "junk"
    NO_ROOM = "no-room"


class BookBounds(NamedTuple):
    """Limits of a book.

    Attributes:
        policies_max: Number of keys that are not deleted; as many deleted ones are remembered.
        bytes_max: Memory of the records, including their compiled patterns.
    """

    policies_max: int = 5_000
    bytes_max: int = 64 * 1024 * 1024


class ReadPolicy(NamedTuple):
    """A decoded record; `policy` None: it deletes its key."""

    offset: int
    timestamp_ms: int
    key: PolicyKey | InvalidRecord
    policy: PolicyRecord | InvalidRecord | None
    size: int
    patterns: tuple[Patterns, ...] = ()


def read(offset: int, timestamp_ms: int, key: bytes | None, value: bytes | None) -> ReadPolicy:
    """Decode a record; thread-safe."""
    named = decode_key(key)
    if isinstance(named, InvalidRecord) or value is None:
        return ReadPolicy(offset, timestamp_ms, named, None, _ENTRY_BYTES)
    policy = decode(named, value)
    if not isinstance(policy, PolicyRecord):
        return ReadPolicy(offset, timestamp_ms, named, policy, _ENTRY_BYTES)
    patterns = _patterns(policy)
    size = _ENTRY_BYTES + len(value) + _STEP_BYTES * sum(pattern.size for pattern in patterns)
    return ReadPolicy(offset, timestamp_ms, named, policy, size, patterns)


def _patterns(record: PolicyRecord) -> tuple[Patterns, ...]:
    if record.key.kind is not PolicyKind.ISOLATION:
        return ()
    lists = [compiled(record.value[part]) for part in ("namespaces", "primary", "secondary")]
    return tuple(patterns for patterns in lists if isinstance(patterns, Patterns))


class _Held(NamedTuple):
    """Newest record of a key; holds its compiled patterns."""

    offset: int
    timestamp_ms: int
    policy: PolicyRecord | InvalidRecord
    size: int
    patterns: tuple[Patterns, ...]


class _Part(NamedTuple):
    """The effect of the records of one kind and name, from `since_ms` until before `until_ms` (None: unlimited)."""

    since_ms: int
    until_ms: int | None
    entries: tuple[PolicyEntry, ...]
    lapsed: tuple[PolicyEntry, ...]


_Name = tuple[PolicyKind, str]


class PolicyBook:
    """The policies read so far. Not thread-safe.

    Attributes:
        position: Largest offset added; -1 before the first.
        last_junk: What is wrong with the newest invalid record; empty if there was none.
        dropped: Number of records dropped for lack of room.
    """

    def __init__(self, bounds: BookBounds | None = None) -> None:
        self._bounds = bounds or BookBounds()
        self._held: dict[PolicyKey, _Held] = {}
        self._deleted: dict[PolicyKey, int] = {}
        self._names: SortedDict[_Name, _Part | None] = SortedDict()
        self._bytes = 0
        self._junk: Counter[str] = Counter()
        self._effective: tuple[int, EffectivePolicies] | None = None
        self.position = -1
        self.last_junk = ""
        self.dropped = 0

    def __len__(self) -> int:
        return len(self._held)

    @property
    def bounds(self) -> BookBounds:
        return BookBounds(len(self._held), self._bytes)

    @property
    def has_room(self) -> bool:
        return len(self._held) < self._bounds.policies_max and self._bytes < self._bounds.bytes_max

    @property
    def overfull(self) -> str:
        """Why not all policies are known; empty if they are."""
        if not self.dropped:
            return ""
        return (
            f"there are more policies than this broker can hold ({self._bounds.policies_max} with "
            f"{self._bounds.bytes_max} bytes in total); {self.dropped} records were dropped, the last at offset {self.position}"
        )

    def newest(self, key: PolicyKey) -> int:
        """Offset of the newest record of a key, if it is readable and not deleted; else -1."""
        held = self._held.get(key)
        return held.offset if held is not None and isinstance(held.policy, PolicyRecord) else -1

    def take(self, offset: int, timestamp_ms: int, key: bytes | None, value: bytes | None) -> FoldResult:
        """Add a record.

        Args:
            timestamp_ms: The log's own time.
        """
        return self.take_read(read(offset, timestamp_ms, key, value))

    def take_read(self, record: ReadPolicy) -> FoldResult:
        self.position = max(self.position, record.offset)
        self._effective = None
        if isinstance(record.key, InvalidRecord):
            return self._junked(record.offset, record.key)
        key, before = record.key, self._held.get(record.key)
        if max(-1 if before is None else before.offset, self._deleted.get(key, -1)) >= record.offset:
            return FoldResult.OLDER
        if record.policy is None:
            self._delete(key, record.offset)
            return FoldResult.DELETED
        policy, size = record.policy, record.size
        if not self._fits(before, size):
            self.dropped += 1
            if before is None:
                return FoldResult.NO_ROOM
            # Its former value is outdated: it counts as an unreadable record.
            policy, size = (
                InvalidRecord(InvalidPolicyReason.TOO_LARGE, f"there is no room for its {size} bytes"),
                _ENTRY_BYTES,
            )
        self._deleted.pop(key, None)
        self._bytes += size - (0 if before is None else before.size)
        self._held[key] = _Held(
            record.offset, record.timestamp_ms, policy, size, record.patterns if policy is record.policy else ()
        )
        self._names[key.kind, key.name] = None
        return self._junked(record.offset, policy) if isinstance(policy, InvalidRecord) else FoldResult.SET

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

    def _junked(self, offset: int, junk: InvalidRecord) -> FoldResult:
        self._junk[str(junk.reason)] += 1
        self.last_junk = f"offset {offset}: {junk.why}"
        return FoldResult.JUNK

    def at(self, now_ms: int) -> EffectivePolicies:
        """The policies in effect.

        Args:
            now_ms: An estimate of the log's time. A policy that expires at this millisecond has expired.
        """
        if self._effective is not None:
            since_ms, effective = self._effective
            if since_ms <= now_ms and (effective.next_change_ms is None or now_ms < effective.next_change_ms):
                return effective
        self._effective = self._compute(now_ms)
        return self._effective[1]

    def _compute(self, now_ms: int) -> tuple[int, EffectivePolicies]:
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
            effects.closed.append(f"{self.overfull}: no bundle is moved automatically")
        return since_ms, self._effective_from(effects, entries, lapsed, min(ends, default=None))

    def _part(self, name: _Name, now_ms: int) -> _Part:
        entries: list[PolicyEntry] = []
        lapsed: list[PolicyEntry] = []
        ends: list[int] = []
        for override in (True, False):
            key = PolicyKey(*name, override)
            held = self._held.get(key)
            if held is None:
                continue
            if isinstance(held.policy, PolicyRecord) and held.policy.until_ms is not None:
                ends.append(held.policy.until_ms)
            entry = _entry(key, held, now_ms, covered=bool(entries))
            (lapsed if entry.force is Force.LAPSED else entries).append(entry)
        since_ms = max((ms for ms in ends if ms <= now_ms), default=0)
        return _Part(since_ms, min((ms for ms in ends if ms > now_ms), default=None), tuple(entries), tuple(lapsed))

    def _effective_from(
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
    if not isinstance(held.policy, PolicyRecord):
        force = Force.OVERRIDDEN if covered else Force.UNREADABLE
        return PolicyEntry(key, force, held.offset, held.timestamp_ms, trouble=held.policy.why)
    record = held.policy
    if record.until_ms is not None and record.until_ms <= now_ms:
        force = Force.LAPSED
    return PolicyEntry(
        key,
        force,
        held.offset,
        held.timestamp_ms,
        record.value,
        record.by,
        record.why,
        record.until_ms,
        record.written_at_ms,
    )
