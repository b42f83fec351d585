"""The record at which what a replica holds and what the log says of a key part. Pure."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field

from statechannel.audit.difference import accepted_of
from statechannel.core.bundle import parse_key
from statechannel.core.digest import line
from statechannel.core.inputs import RecordRead
from statechannel.core.keys import KeyState
from statechannel.core.verdict import Verdict
from statechannel.core.view import Judgement

_PAST_MAX = 1_000
_MISSED = "the log accepts this record, the replica has not taken it in"


@dataclass(slots=True)
class _Key:
    """One key whose lines differ in the end.

    Attributes:
        said: The replica's line; None where it does not have the key.
        now: The line by the log so far; None while the key does not exist.
        matched: The log once said what the replica says.
        parted: The first record after that which made it say something else.
        derived: That record is one of another key, from which this one was derived.
        accepted_here: A record with the id that the replica calls accepted, and that the log rejects.
        missed: What the log accepted after the base of that record.
        past: The newest changes by the log: id and offset.
        last: Last record on the key, or that changed it.
    """

    said: bytes | None
    now: bytes | None = None
    matched: bool = False
    parted: int = -1
    derived: bool = False
    accepted_here: int = -1
    missed: int = -1
    last: int = -1
    past: deque[tuple[str | None, int]] = field(default_factory=lambda: deque(maxlen=_PAST_MAX))

    def accepted_by_replica(self, base: str | None, offset: int) -> None:
        """The replica took this record in where the log rejects it: it did not know what came after the record's base."""
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
        if now == self.said:
            self.matched, self.parted = True, -1
        elif self.parted < 0:
            self.parted, self.derived = offset, derived


class Parting:
    """Follows some keys through the log up to the replica's offset.

    Args:
        said: The replica's line of each key; None where it does not have it.
        offsets: Of the accepted record by the log, where the log has the key: what a joining reader took was not observed.
    """

    def __init__(self, said: Mapping[str, bytes | None], offsets: Mapping[str, int]) -> None:
        self._offsets = offsets
        self._keys = {name: _Key(told, matched=told is None) for name, told in said.items()}
        self._ids = {name: accepted_of(told).id.partition("/")[0] for name, told in said.items() if told is not None}
        self._by_namespace: dict[str, list[str]] = {}
        for name in said:
            self._by_namespace.setdefault("/".join(name.split("/")[:2]), []).append(name)

    def observe(self, record: RecordRead, judgement: Judgement) -> None:
        """Take in one judged record."""
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
        """A ring has changed: the keys that were derived, or are gone."""
        if name == parent.name:
            return
        found, parts = None, parse_key(name.encode())
        if parent.ring is not None and parts is not None:
            live = parent.ring.live.get(parts.lower)
            near = (live,) if live is not None else ()
            found = next((one for one in (*near, *parent.ring.parents) if one.name == name), None)
        self._keys[name].changed(None if found is None else line(found), offset, derived=True)

    def first(self) -> tuple[int, str, str]:
        """Offset, key and words of the first difference."""
        found = (self._place(name, key) for name, key in self._keys.items())
        return min(found, key=lambda one: (one[0], self._keys[one[1]].derived, one[1]))

    def _place(self, name: str, key: _Key) -> tuple[int, str, str]:
        if key.matched and key.parted >= 0:
            return key.parted, name, _MISSED
        if key.missed >= 0:
            return key.missed, name, _MISSED
        if key.accepted_here >= 0:
            return key.accepted_here, name, "the replica has accepted this record, the log rejects it"
        last = key.last if key.last >= 0 else self._offsets.get(name, -1)
        return last, name, "the last record of the key; the replica holds a state that the log never had there"
