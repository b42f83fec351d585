"""The fold of `NAME-policies`: which policies stand. Pure; times are given.

What stands depends on the newest record of each key alone, so that a reader of the compacted topic comes to the same as one
who has read every record. Newest means the largest offset, whatever the order in which records are taken in. A null deletes.

An override (key `override/KIND/NAME`, always with an end) lies over the standing policy of that kind and name. It is taken back
by itself: nobody has to write anything, what it lay over holds again.

A record that cannot be read never opens what its key names: its kind says what is forbidden instead (`Standing.closed`). What
has no readable key says nothing and is only counted. Nothing in a record raises.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from enum import StrEnum
from typing import NamedTuple

from loaddata.broker_load import ResourceWeights
from shedders.live.policy_kinds import PolicyKind
from shedders.live.policy_record import PolicyKey, PolicyRecord, Undecodable, decode, decode_key
from shedders.live.policy_standing import Effects, Entry, Force, Standing


class Taken(StrEnum):
    """What became of a record."""

    SET = "set"
    DELETED = "deleted"
    OLDER = "older"
    JUNK = "junk"


class _Held(NamedTuple):
    """Newest record of a key; `found` None: it is deleted."""

    offset: int
    timestamp_ms: int
    found: PolicyRecord | Undecodable | None


class PolicyBook:
    """The policies as far as they have been read. Not for more than one thread.

    Attributes:
        position: Largest offset taken in; -1 before the first.
        last_junk: What was wrong with the newest record that could not be used; empty while none was.
    """

    def __init__(self) -> None:
        self._held: dict[PolicyKey, _Held] = {}
        self._junk: Counter[str] = Counter()
        self._standing: tuple[int, Standing] | None = None
        self.position = -1
        self.last_junk = ""

    def take(self, offset: int, timestamp_ms: int, key: bytes | None, value: bytes | None) -> Taken:
        """Take one record in.

        Args:
            timestamp_ms: The log's own time.
        """
        self.position = max(self.position, offset)
        self._standing = None
        named = decode_key(key)
        if isinstance(named, Undecodable):
            return self._dropped(offset, named)
        held = self._held.get(named)
        if held is not None and held.offset >= offset:
            return Taken.OLDER
        found = None if value is None else decode(named, value)
        self._held[named] = _Held(offset, timestamp_ms, found)
        if isinstance(found, Undecodable):
            return self._dropped(offset, found)
        return Taken.DELETED if found is None else Taken.SET

    def _dropped(self, offset: int, junk: Undecodable) -> Taken:
        self._junk[str(junk.reason)] += 1
        self.last_junk = f"offset {offset}: {junk.why}"
        return Taken.JUNK

    def at(self, now_ms: int) -> Standing:
        """What stands.

        Args:
            now_ms: An estimate of the log's time. What lapses at this very millisecond has lapsed.
        """
        if self._standing is not None:
            since_ms, found = self._standing
            if since_ms <= now_ms and (found.next_change_ms is None or now_ms < found.next_change_ms):
                return found
        since_ms = max((ms for ms in self._ends() if ms <= now_ms), default=0)
        self._standing = (since_ms, self._make(now_ms))
        return self._standing[1]

    def _ends(self) -> Iterable[int]:
        for held in self._held.values():
            if isinstance(held.found, PolicyRecord) and held.found.until_ms is not None:
                yield held.found.until_ms

    def _make(self, now_ms: int) -> Standing:
        entries: list[Entry] = []
        lapsed: list[Entry] = []
        effects = Effects.none()
        for kind, name in sorted({(key.kind, key.name) for key in self._held}):
            covered = False
            for override in (True, False):
                entry = self._entry(PolicyKey(kind, name, override), now_ms, covered=covered)
                if entry is None:
                    continue
                if entry.force is Force.LAPSED:
                    lapsed.append(entry)
                    continue
                entries.append(entry)
                covered = True
                if entry.force is Force.IN_FORCE:
                    effects.add(entry)
                elif entry.force is Force.UNREADABLE:
                    effects.close(entry)
        return self._standing_of(effects, entries, lapsed, now_ms)

    def _entry(self, key: PolicyKey, now_ms: int, *, covered: bool) -> Entry | None:
        held = self._held.get(key)
        if held is None or held.found is None:
            return None
        if isinstance(held.found, Undecodable):
            force = Force.OVERRIDDEN if covered else Force.UNREADABLE
            return Entry(key, force, held.offset, held.timestamp_ms, trouble=held.found.why)
        one = held.found
        force = Force.OVERRIDDEN if covered else Force.IN_FORCE
        if one.until_ms is not None and one.until_ms <= now_ms:
            force = Force.LAPSED
        return Entry(
            key, force, held.offset, held.timestamp_ms, one.value, one.by, one.why, one.until_ms, one.written_at_ms
        )

    def _standing_of(self, effects: Effects, entries: list[Entry], lapsed: list[Entry], now_ms: int) -> Standing:
        single = effects.single
        weights = single.get(PolicyKind.WEIGHTS)
        ends = [ms for ms in self._ends() if ms > now_ms]
        return Standing(
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
            weights=None if weights is None else ResourceWeights(**{name: float(one) for name, one in weights.items()}),
            entries=tuple(entries),
            lapsed=tuple(lapsed),
            deleted={key: held.offset for key, held in self._held.items() if held.found is None},
            junk=dict(sorted(self._junk.items())),
            closed=tuple(effects.closed),
            next_change_ms=min(ends, default=None),
        )
