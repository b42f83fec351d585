"""Seeded logs, nastier than the examples: racing writers, asserts, purges, junk, compaction.

Run `python -m tests.twin.loggen --seed N` to print one as an export file.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from random import Random
from typing import Any

from tests.twin import junk, moves, wire
from tests.twin.audit import to_export
from tests.twin.compaction import WEEK_MS, compact
from tests.twin.judge import Judge, State, live_bundles
from tests.twin.wire import Line


@dataclass(frozen=True)
class Knobs:
    """What a log is made of; weights are relative.

    Attributes:
        steps: how often some writer acts.
        lagging: how often a proposer builds on an old view.
        lag_steps: how old at most, in records of the partition.
        junk: weight of odd values and keys.
        hostile: weight of false asserts and heartbeats (ACLs keep these out in real life).
        newer: probability that the log holds one record of a newer format.
        pay: weight of asserts that pay debts.
        large: whether values of hundreds of kilobytes and rings of 32,768 may occur.
        step_ms: mean time between records.
    """

    steps: int = 150
    partitions: int | None = None
    namespaces: int = 4
    brokers: int = 4
    lagging: float = 0.3
    lag_steps: int = 25
    move: float = 10.0
    restate: float = 2.0
    pay: float = 3.0
    beat: float = 3.0
    purge: float = 0.7
    repeat: float = 1.0
    wrong: float = 2.0
    junk: float = 1.5
    hostile: float = 0.7
    newer: float = 0.1
    large: bool = True
    step_ms: int = 60_000
    lag_ms: int = 3_600_000
    tombstone_ms: int = WEEK_MS


HONEST = Knobs(junk=0, hostile=0, newer=0, wrong=0)
JUNKY = Knobs(hostile=0, newer=0, junk=3, wrong=4)
WILD = Knobs()


@dataclass
class View:
    """What a writer had seen of a partition when it had applied through an offset."""

    through: int
    states: dict[str, State]
    debts: list[str]


@dataclass
class Log:
    """A generated log."""

    lines: list[Line]
    end_offsets: dict[int, int]
    exported_at_ms: int

    def export(self) -> str:
        """Return the export file."""
        return to_export(self.lines, self.end_offsets, self.exported_at_ms)

    def compacted(self, seed: int, knobs: Knobs) -> Log:
        """Return what the cleaner may have left of it."""
        rng = Random(f"compaction {seed}")
        lines = compact(self.lines, rng, self.exported_at_ms, knobs.lag_ms, tombstone_ms=knobs.tombstone_ms)
        return replace(self, lines=lines)


@dataclass
class World:
    """The generator at work."""

    rng: Random
    knobs: Knobs
    partitions: int
    now_ms: int = 1_700_000_000_000
    written: int = 0
    judges: list[Judge] = field(default_factory=list)
    views: list[list[View]] = field(default_factory=list)
    lines: list[Line] = field(default_factory=list)
    names: list[str] = field(default_factory=list)
    draining: set[str] = field(default_factory=set)

    # Writing -----------------------------------------------------------------------------

    def append(self, partition: int, key: bytes | None, value: bytes | None) -> None:
        """Write one record and let the views go on."""
        if self.rng.random() < 0.6:
            self.now_ms += int(self.rng.expovariate(1 / self.knobs.step_ms))
        judge = self.judges[partition]
        offset = len(self.views[partition]) - 1
        line = Line(partition, offset, self.now_ms, key, value)
        self.lines.append(line)
        judge.read(line)
        debts = [debt.key for debt in judge.debts()]
        self.views[partition].append(View(offset, judge.states(), debts))

    def put(self, partition: int, key: str, fields: dict[str, Any]) -> None:
        """Write one record of ours, in one of the ways JSON can be written."""
        if self.rng.random() < 0.2:
            fields = fields | {"written_at_ms": self.now_ms, "reason": "café", "x-later": [1.5, None]}
        names = list(fields)
        if self.rng.random() < 0.3:
            self.rng.shuffle(names)
        text = json.dumps(
            {name: fields[name] for name in names},
            ensure_ascii=self.rng.random() < 0.5,
            separators=(",", ":") if self.rng.random() < 0.5 else None,
        )
        self.append(partition, key.encode(), text.encode())

    def view(self, partition: int) -> View:
        """Return the view of some writer, which may lag."""
        views = self.views[partition]
        if self.rng.random() >= self.knobs.lagging:
            return views[-1]
        return views[-1 - self.rng.randint(0, min(self.knobs.lag_steps, len(views) - 1))]

    def header(self, kind: str, covers: int) -> dict[str, Any]:
        """Return the fields that all records have, with a fresh id."""
        self.written += 1
        by = {"broker": self.broker(), "incarnation": f"i{self.rng.randint(1, 3)}"}
        new_id = f"01T{self.written:06d}-{self.rng.getrandbits(24):06X}"
        return {"format": 1, "kind": kind, "id": new_id, "covers": covers, "by": by}

    def broker(self) -> str:
        """Return some broker."""
        return f"broker-{self.rng.randrange(self.knobs.brokers)}"

    def partition_of(self, key: str) -> int:
        """Return the partition of a key."""
        return wire.home("/".join(key.split("/")[:2]), self.partitions)

    # Proposals ---------------------------------------------------------------------------

    def draft(self, partition: int, view: View) -> tuple[str, dict[str, Any]] | None:
        """Return a proposal that is legal in `view`, or None if nothing comes to mind."""
        names = [name for name in self.names if self.partition_of(name) == partition]
        if not names:
            return None
        name = self.rng.choice(names)
        if self.rng.random() < 0.03:
            self.draining ^= {name}
        ring = {key: state for key, state in view.states.items() if f"{key}/".startswith(f"{name}/")}
        active = name in ring and ring[name].state == "Active"
        if not active or self.rng.random() < 0.05 or (name in self.draining and self._idle(ring)):
            key, held = name, ring.get(name)
            self.draining.discard(name)
        else:
            live = live_bundles(ring)
            # Down one path rather than over all, so that rings get deep and states get far.
            key = max(live, key=lambda k: live[k].version) if self.rng.random() < 0.3 else (
                self.rng.choice(sorted(live)))  # fmt: skip
            held = live[key]
        fields = moves.next_move(self.rng, key, held, ring, self.broker, draining=name in self.draining)
        if not self.knobs.large and len(fields.get("children", ())) > 1000:
            fields["children"] = ["0x00000000_0xffffffff"]
        return key, self.header("proposal", view.through) | fields

    @staticmethod
    def _idle(ring: dict[str, State]) -> bool:
        return all(state.state == "Unassigned" for state in live_bundles(ring).values())

    def step_move(self, partition: int) -> None:
        """An honest proposal, perhaps on an old view."""
        if drafted := self.draft(partition, self.view(partition)):
            self.put(partition, *drafted)

    def step_wrong(self, partition: int) -> None:
        """A proposal that is wrong in one or two respects, or in another partition."""
        drafted = self.draft(partition, self.views[partition][-1])
        if not drafted:
            return
        key, fields = drafted
        view = self.views[partition][-1]
        for _ in range(self.rng.randint(1, 2)):
            key, fields = moves.spoil(self.rng, key, fields, view.states, self.broker())
        if self.rng.random() < 0.15:
            partition = self.rng.randrange(self.partitions)
        self.put(partition, key, fields)

    def step_repeat(self, partition: int) -> None:
        """An earlier record once more: a late or doubled produce."""
        mine = [line for line in self.lines if line.partition == partition]
        if mine:
            line = self.rng.choice(mine[-30:])
            if line.value is None or wire.newer_format(line.value) is None:
                if self.knobs.junk and self.rng.random() < 0.1:
                    partition = self.rng.randrange(self.partitions)
                self.append(partition, line.key, line.value)

    # Asserts, heartbeats, purges ---------------------------------------------------------

    def assertion(self, key: str, view: View) -> dict[str, Any]:
        """Return the assert of what `view` holds for `key`."""
        return self.header("assert", view.through) | moves.restated(key, view.states.get(key))

    def step_restate(self, partition: int) -> None:
        """An assert that nobody asked for."""
        view = self.view(partition)
        if not view.states:
            return
        key = self.rng.choice(sorted(view.states))
        self.put(partition, key, self.assertion(key, view))

    def step_pay(self, partition: int) -> None:
        """The leader pays debts, often all of them, sometimes late."""
        view = self.view(partition) if self.rng.random() < 0.2 else self.views[partition][-1]
        debts = view.debts if self.rng.random() < 0.6 else view.debts[:1]
        for key in debts:
            self.put(partition, key, self.assertion(key, view))
        if self.rng.random() < 0.7:
            self.step_beat(partition)

    def step_beat(self, partition: int) -> None:
        """An honest heartbeat."""
        view = self.view(partition)
        clean_to = -1 if view.debts else view.through
        fields = self.header("heartbeat", view.through) | {"clean_to": clean_to}
        self.put(partition, "!heartbeat", fields)

    def step_purge(self, partition: int) -> None:
        """A null: on keys that do not exist, on others by mistake, on odd ones."""
        states = self.views[partition][-1].states
        seen = {line.key for line in self.lines if line.partition == partition}
        gone = [key for key in seen if key is not None and key.decode("latin-1") not in states]
        roll = self.rng.random()
        if self.knobs.junk and roll < 0.25:
            self.append(partition, self.rng.choice([*seen, *junk.ODD_KEYS, None]), None)
        elif gone:
            key = self.rng.choice(sorted(gone))
            if not key.startswith(b"!") and (self.knobs.junk or key.count(b"/") == 2):
                self.append(partition, key, None)

    # Junk and malice ---------------------------------------------------------------------

    def step_junk(self, partition: int) -> None:
        """An odd value on a sound key, or a sound value on an odd key."""
        roll = self.rng.random()
        drafted = self.draft(partition, self.views[partition][-1])
        if roll < 0.1 or not drafted:
            key = self.rng.choice(junk.CONTROL_KEYS)
            self.append(partition, key, self.rng.choice([b"junk", b"[1]", b'{"format":2}', None, b""]))
            return
        key_text, fields = drafted
        if roll < 0.2:
            value = json.dumps(fields).encode()
            self.append(partition, self.rng.choice(junk.ODD_KEYS), value)
            return
        if roll < 0.4:
            key_text, fields = self._plain(partition) or drafted
        if roll > 0.9:
            key_text = "!heartbeat"
            through = self.views[partition][-1].through
            fields = self.header("heartbeat", through) | {"clean_to": -1}
        key_kind = wire.read_key(key_text.encode()).kind
        found = [way for way in junk.ways(fields, key_kind) if way.outcome != junk.NEWER]
        groups = sorted({way.name.split("-")[0] for way in found})
        group = self.rng.choice(groups)
        way = self.rng.choice([way for way in found if way.name.split("-")[0] == group])
        if not junk.is_large(way) or (self.knobs.large and self.rng.random() < 0.05):
            self.append(partition, key_text.encode(), way.value)

    def _plain(self, partition: int) -> tuple[str, dict[str, Any]] | None:
        view = self.views[partition][-1]
        if not view.states:
            return None
        key = self.rng.choice(sorted(view.states))
        return key, self.assertion(key, view)

    def step_hostile(self, partition: int) -> None:
        """An assert or a heartbeat that lies."""
        view = self.view(partition)
        if self.rng.random() < 0.4:
            end = len(self.views[partition])
            lie = self.rng.choice([end + 5, end - 1, end - 2, self.rng.randrange(-1, end + 1), 2**53 - 1])
            fields = self.header("heartbeat", self.rng.randrange(-1, end)) | {"clean_to": max(-1, lie)}
            self.put(partition, "!heartbeat", fields)
            return
        plain = self._plain(partition)
        if plain is None:
            return
        key, fields = plain
        self.put(partition, key, moves.lie(self.rng, key, fields, view.states, self.broker()))

    def step_newer(self, partition: int) -> None:
        """One record of a newer format."""
        sound = self.header("assert", -1) | moves.restated("a/b", None)
        found = [way for way in junk.ways(sound, "namespace") if way.outcome == junk.NEWER]
        way = self.rng.choice([way for way in found if not junk.is_large(way)] * 3 + found)
        key = self.rng.choice([self.rng.choice(self.names).encode(), b"\xff", None, b"t/ns"])
        self.append(partition, key, way.value)


def namespace_names(rng: Random, count: int) -> list[str]:
    """Return names of every shape the format allows."""
    pool = [
        "acme/q", "acme/chat", "zeta/iot_x", "a-1/m.2", "T=:./n=:.-_", "t/0x00000000_0xffffffff",
        "a" * 128 + "/" + "b" * 128, "-/.", "acme/m.2", "zeta/q", "Acme/q", "a/b",
    ]  # fmt: skip
    return rng.sample(pool, min(count, len(pool)))


def generate(seed: int, knobs: Knobs = WILD) -> Log:
    """Return the log of a seed."""
    rng = Random(f"log {seed}")
    partitions = knobs.partitions or rng.choice([1, 1, 1, 2, 3, 4])
    world = World(rng, knobs, partitions)
    world.judges = [Judge(number, partitions) for number in range(partitions)]
    world.views = [[View(-1, {}, [])] for _ in range(partitions)]
    world.names = namespace_names(rng, rng.randint(1, knobs.namespaces))
    newer_at = rng.randrange(knobs.steps) if rng.random() < knobs.newer else -1
    steps: list[tuple[Callable[[int], None], float]] = [
        (world.step_move, knobs.move), (world.step_restate, knobs.restate),
        (world.step_pay, knobs.pay), (world.step_beat, knobs.beat),
        (world.step_purge, knobs.purge), (world.step_repeat, knobs.repeat),
        (world.step_wrong, knobs.wrong), (world.step_junk, knobs.junk),
        (world.step_hostile, knobs.hostile),
    ]  # fmt: skip
    homes = [world.partition_of(name) for name in world.names]
    for number in range(knobs.steps):
        busy = rng.random() < 0.9 or partitions == 1
        partition = rng.choice(homes) if busy else rng.randrange(partitions)
        if number == newer_at:
            world.step_newer(partition)
            continue
        step = rng.choices([step for step, _ in steps], [weight for _, weight in steps])[0]
        step(partition)
    ends = {number: len(views) - 1 for number, views in enumerate(world.views)}
    exported_at_ms = world.now_ms + rng.choice([0, 1, 1000, knobs.lag_ms // 10, knobs.lag_ms * 2])
    world.lines.sort(key=lambda line: (line.partition, line.offset))
    return Log(world.lines, ends, exported_at_ms)


def main() -> None:
    """Print the export file of a seed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--knobs", choices=("honest", "junky", "wild"), default="wild")
    parser.add_argument("--steps", type=int)
    parser.add_argument("--compacted", action="store_true")
    options = parser.parse_args()
    knobs = {"honest": HONEST, "junky": JUNKY, "wild": WILD}[options.knobs]
    if options.steps:
        knobs = replace(knobs, steps=options.steps)
    log = generate(options.seed, knobs)
    if options.compacted:
        log = log.compacted(options.seed, knobs)
    sys.stdout.write(log.export())


if __name__ == "__main__":
    main()
