"""Random logs with cold starts, some of them void, with late records, junk and heartbeats; whole, cleaned, or with markers."""

from collections.abc import Iterable
from random import Random
from typing import Any

import orjson

from statechannel.protocol.codec import COLD_START_KEY, HEARTBEAT_KEY
from statechannel.protocol.joiner import Joiner
from statechannel.protocol.keys import KeyState
from statechannel.protocol.log import RecordRead, Topic
from statechannel.protocol.overruling import OverruledState
from statechannel.protocol.replica import Replica
from statechannel.protocol.states import State
from statechannel.protocol.view import View

LAG_MS = 100_000
START_MS = 1_750_000_000_000
NAMESPACES = ("t/n", "t/m")
RING = ("0x00000000_0x80000000", "0x80000000_0xffffffff")
HALVES = {
    RING[0]: ["0x00000000_0x40000000", "0x40000000_0x80000000"],
    RING[1]: ["0x80000000_0xc0000000", "0xc0000000_0xffffffff"],
}


class ColdStartWorld:
    """Writes a log; a reader of the whole of it says what is accepted, so that most records can be valid.

    Attributes:
        records: The whole log.
        overruled: What the reader's cold starts changed, by the offset of their marks; only those that changed something.
    """

    def __init__(self, seed: int) -> None:
        self.chance = Random(seed)
        self.records: list[RecordRead] = []
        self.overruled: dict[int, list[OverruledState]] = {}
        self.reader = Replica(0, 1, compaction_lag_s=LAG_MS / 1000, kept_records_max=10_000)
        self.reader.opened(0.0, 0, 1_000_000)
        self.now_ms = START_MS
        self._numbers = 0
        self._seen: int | None = None  # by members that write while another process starts cold: their records are late
        self._heartbeats: list[bytes] = []
        self._starter: View | None = None  # of the process that started cold last: it vouches for the log, too
        for _ in range(self.chance.randint(1, 4)):
            self._live(self.chance.randint(2, 25))
            if self.chance.random() < 0.8:
                self._start_cold()
        self._live(self.chance.randint(0, 15))

    def write(self, key: bytes, value: bytes | None) -> int:
        """Append a record; returns its offset."""
        self.now_ms += self.chance.choice([1, 100, 3_000])
        record = RecordRead(Topic.CHANNEL, 0, len(self.records), self.now_ms, key, value)
        self.records.append(record)
        self.reader.read(0.0, record)
        if self._starter is not None:
            self._starter.read(record.offset, key, value)
        if self.reader.overruled:
            self.overruled[record.offset], self.reader.overruled = self.reader.overruled, []
        return record.offset

    def cleaned(self, records: Iterable[RecordRead]) -> list[RecordRead]:
        """What a cleaner may have left of records: the newest of each key, and none that is younger than the lag."""
        every = list(records)
        newest = {record.key: record.offset for record in every if record.timestamp_ms <= self.now_ms - LAG_MS}
        return [record for record in every if record.offset >= newest.get(record.key, -1) or self.chance.random() < 0.3]

    def _live(self, steps: int) -> None:
        """Members work: moves, junk, repairs, heartbeats."""
        for _ in range(steps):
            self.chance.choices([self._move, self._junk, self._repair, self._heartbeat, self._create], [8, 2, 2, 3, 1])[
                0
            ]()

    def _start_cold(self) -> None:
        """A process takes what the cleaner left of the log for the truth; others may write meanwhile, or be heard."""
        self.now_ms += self.chance.choice([0, LAG_MS // 2, 2 * LAG_MS])
        writer = f"x{len(self.records)}"
        through = len(self.records) - 1
        joiner = Joiner(0, 1)
        for record in self.cleaned(self.records):
            joiner.read(record.offset, record.key, record.value)
        view, self._starter = joiner.view(), joiner.view()
        self._seen = through
        for name in joiner.last:
            self._assert(view.keys[name], writer, through)
            if self.chance.random() < 0.15:
                self.chance.choice([self._move, self._junk, self._repair])()
            if self.chance.random() < 0.05:
                self._heartbeat()
        self._seen = None
        if self.chance.random() < 0.9:
            mark = {"through": through, "by": {"broker": "x", "incarnation": writer}}
            self.write(COLD_START_KEY, orjson.dumps(mark) if self.chance.random() < 0.95 else b"junk")
        if self.reader.marks.newest <= through:
            self._starter = None  # the cold start was given up
        if self.chance.random() < 0.7:
            self._heartbeat()

    def _record(self, kind: str, **fields: Any) -> bytes:
        self._numbers += 1
        writer = fields.pop("writer", "m")
        seen = len(self.records) - 1 if self._seen is None else self._seen
        covers = fields.pop("covers", seen if self.chance.random() < 0.7 else self.chance.randint(-1, min(9, seen)))
        head = {"format": 1, "kind": kind, "id": f"r{self._numbers}", "covers": covers}
        return orjson.dumps(head | {"by": {"broker": writer[0], "incarnation": writer}} | fields)

    def _assert(self, key: KeyState, writer: str, covers: int) -> None:
        exists = key.state is not None
        fields: dict[str, Any] = {"version": key.version if exists else 0, "state": key.state or State.ABSENT}
        fields |= {"asserts": key.accepted_id if exists else None, "writer": writer, "covers": covers}
        if not key.is_namespace:
            fields |= {"from": key.from_, "to": key.to}
        if exists and key.bounds is not None:
            fields["children"] = key.children
        self.write(key.key, self._record("assert", **fields))

    def _repair(self) -> None:
        """An assert of what is accepted, or of an outdated state."""
        existing = list(self.reader.view.existing())
        if existing:
            seen = len(self.records) - 1 if self._seen is None else self._seen
            self._assert(self.chance.choice(existing), self.chance.choice(["m", "k"]), seen)

    def _create(self) -> None:
        name = self.chance.choice(NAMESPACES)
        held = self.reader.view.keys.get(name.encode())
        is_active = held is not None and held.state is State.ACTIVE
        version = 1 if held is None else held.version + 1
        fields: dict[str, Any] = {"version": version, "base": None if held is None else held.record_id}
        fields |= {"state": "Deleted"} if is_active else {"state": "Active", "children": RING}
        self.write(name.encode(), self._record("proposal", **fields))

    def _move(self) -> None:
        live = [*self.reader.view.live()]
        if not live:
            self._create()
            return
        key = self.chance.choice(live)
        broker = self.chance.choice("abc")
        moves: dict[State | None, list[tuple[str, str | None, str | None]]] = {
            State.UNASSIGNED: [("Assigning", None, broker)],
            State.ASSIGNING: [("Assigned", key.from_, key.to), ("Unassigned", key.to, None)],
            State.ASSIGNED: [("Releasing", key.to, None), ("Releasing", key.to, broker), ("Splitting", key.to, None)],
            State.RELEASING: [("Assigning" if key.to else "Unassigned", key.from_, key.to)],
            State.SPLITTING: [("Deleted", key.from_, None), ("Assigned", None, key.from_)],
        }
        state, from_, to = self.chance.choice(moves[key.state])
        fields: dict[str, Any] = {"version": key.version + 1, "base": key.accepted_id}
        fields |= {"state": state, "from": from_, "to": to}
        if state in ("Splitting", "Deleted"):
            children = HALVES.get(key.name.rpartition("/")[2])
            if children is None:
                return
            fields |= {"children": children} if state == "Deleted" else {}
        self.write(key.key, self._record("proposal", **fields))

    def _junk(self) -> None:
        """A proposal that every reader rejects, and a lenient one may take."""
        name = f"{self.chance.choice(NAMESPACES)}/{self.chance.choice(RING)}"
        fields: dict[str, Any] = {"state": "Assigned", "from": None, "to": "z"}
        if self.chance.random() < 0.2:
            name, fields = self.chance.choice(NAMESPACES), {"state": "Deleted"}
        key = self.reader.view.keys.get(name.encode())
        version = self.chance.randint(2, 6) + (0 if key is None else key.version)
        self.write(name.encode(), self._record("proposal", version=version, base="unknown", **fields))

    def _heartbeat(self) -> None:
        """A heartbeat, or a late copy of one."""
        if self._heartbeats and self.chance.random() < 0.2:
            self.write(HEARTBEAT_KEY, self.chance.choice(self._heartbeats[-3:]))
            return
        views = [self.reader.view] if self._starter is None else [self.reader.view, self._starter]
        clean = not any(view.ledger.open for view in views)
        clean_to = len(self.records) - 1 if clean else -1
        self._heartbeats.append(self._record("heartbeat", clean_to=clean_to, covers=len(self.records) - 1))
        if self.chance.random() < 0.9:  # else it is late
            self.write(HEARTBEAT_KEY, self._heartbeats[-1])
