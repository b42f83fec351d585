"""Honest, lagging and hostile writers act as Hypothesis likes; the invariants (section 9) hold after each."""

from __future__ import annotations

import json
from random import Random
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from statechannel.protocol.digest import digest
from statechannel.protocol.joiner import Joiner
from statechannel.protocol.view import View
from tests.twin import judge, junk, moves, wire
from tests.twin.compaction import clean_once
from tests.twin.wire import Line
from tests.unit.core.against_twin import check_counters, debts_of, read, states_of, words_of

NAMESPACES = ("t/a", "t/b")
BROKERS = ("b0", "b1", "b2")
PROBES = (0, 1, 0x3FFFFFFF, 0x40000000, 0x7FFFFFFF, 0x80000000, 0xC0000001, 0xFFFFFFFE, 0xFFFFFFFF)
RNG = st.integers(0, 2**16).map(Random)


class Channel(RuleBasedStateMachine):
    """One partition, its view, the twin, and what has been seen of generations."""

    def __init__(self) -> None:
        super().__init__()
        self.view = View(0, 1)
        self.twin = judge.Judge(0, 1)
        self.lines: list[Line] = []
        self.history: list[dict[str, judge.State]] = [{}]
        self.served: dict[tuple[str, int], tuple[int, str]] = {}
        self.versions: dict[tuple[str, int], int] = {}
        self.written = 0

    # Writing -----------------------------------------------------------------------------

    def write(self, key: bytes | None, value: bytes | None) -> str:
        line = Line(0, len(self.lines), 1000 * len(self.lines), key, value)
        expected = self.twin.read(line)
        assert expected is not None
        assert words_of(read(self.view, line)) == (expected.verdict, expected.version, expected.state)
        self.lines.append(line)
        self._versions_grow_by_one(line, expected.verdict)
        self.history.append(self.twin.states())
        return expected.verdict

    def _versions_grow_by_one(self, line: Line, verdict: str) -> None:
        """An accepted bundle record goes on by one; a namespace never goes back, even below its bundles."""
        name = (line.key or b"").decode("latin-1")
        if verdict != "accepted":
            assert self.twin.states() == self.history[-1]
            return
        before, after = self.history[-1].get(name), self.twin.states()[name]
        if name.count("/") == 2:
            assert before is not None
            assert after.version == before.version + 1
        elif before is not None:
            below = [s.version for k, s in self.history[-1].items() if k.startswith(f"{name}/")]
            assert after.version > max([before.version, *(below if after.state == "Deleted" else [])])

    def put(self, key: str, kind: str, covers: int, fields: dict[str, Any]) -> str:
        self.written += 1
        head = {"format": 1, "kind": kind, "id": f"I{self.written}", "covers": covers}
        by = {"broker": "b0", "incarnation": "i"}
        return self.write(key.encode(), json.dumps(head | {"by": by} | fields).encode())

    def seen(self, rng: Random) -> tuple[int, dict[str, judge.State]]:
        """What a writer has applied: mostly everything, else it lags by some records."""
        lag = rng.choice([0, 0, 0, 1, 2, 5, 20])
        through = max(0, len(self.history) - 1 - lag)
        return through - 1, self.history[through]

    @initialize(rng=RNG)
    def create(self, rng: Random) -> None:
        """Begin with one namespace of a few bundles."""
        fields = moves.next_move(rng, NAMESPACES[0], None, {}, lambda: BROKERS[0], draining=False)
        self.put(NAMESPACES[0], "proposal", -1, fields | {"version": min(fields["version"], 50)})

    @rule(rng=RNG, draining=st.booleans())
    def propose(self, rng: Random, draining: bool) -> None:
        """A legal move on what the writer has seen, which may be old."""
        covers, states = self.seen(rng)
        name = rng.choice(NAMESPACES)
        ring = {key: state for key, state in states.items() if f"{key}/".startswith(f"{name}/")}
        live = sorted(judge.live_bundles(ring))
        idle = all(ring[key].state == "Unassigned" for key in live)
        key = rng.choice(live) if live and (rng.random() < 0.9 or not (draining and idle)) else name
        fields = moves.next_move(rng, key, ring.get(key), ring, lambda: rng.choice(BROKERS), draining=draining)
        if len(fields.get("children", ())) > 100 or fields["version"] > 10**6:
            return
        self.put(key, "proposal", covers, fields)

    @precondition(lambda self: self.lines)
    @rule(rng=RNG, faults=st.integers(1, 3))
    def propose_wrongly(self, rng: Random, faults: int) -> None:
        """A hostile or broken proposer: the right move spoiled, or any fields at all."""
        _, states = self.seen(rng)
        if not states:
            return
        key = rng.choice(sorted(states))
        held = states[key]
        bundle = key.count("/") == 2
        fields: dict[str, Any] = {
            "format": 1, "kind": "proposal", "id": f"H{self.written}",
            "covers": rng.choice([-1, 0, len(self.lines), 2**53 - 1]),
            "by": {"broker": rng.choice(BROKERS), "incarnation": "h"}, "version": held.version + 1, "base": held.id,
            "state": rng.choice(wire.BUNDLE_STATES if bundle else wire.NAMESPACE_STATES),
            "forced": rng.random() < 0.3,
            "children": moves.cut(rng, key.rsplit("/", 1)[1] if bundle else junk.RANGE, rng.choice([1, 2, 3])),
        }  # fmt: skip
        if bundle:
            fields |= {"from": rng.choice([None, held.source, *BROKERS]), "to": rng.choice([None, held.to, *BROKERS])}
            if held.state == "Splitting" and rng.random() < 0.5:
                fields |= {"state": "Deleted", "from": held.source, "to": None, "forced": False}
                fields["children"] = moves.bad_children(rng, fields["children"])
                faults = 0
            for _ in range(faults):
                key, fields = moves.spoil(rng, key, fields, states, rng.choice(BROKERS))
        self.written += 1
        if len(fields.get("children", ())) < 100:
            self.write(key.encode(), json.dumps(fields).encode())

    @rule(rng=RNG, lies=st.booleans())
    def restate(self, rng: Random, lies: bool) -> None:
        """An assert, perhaps of what is no longer so, or never was."""
        covers, states = self.seen(rng)
        key = rng.choice([*sorted(states), f"t/a/{junk.RANGE}", "t/none"])
        fields = {"covers": covers} | moves.restated(key, states.get(key))
        if lies:
            fields = moves.lie(rng, key, fields, states, rng.choice(BROKERS))
        self.put(key, "assert", covers, fields)

    @precondition(lambda self: self.lines)
    @rule(rng=RNG)
    def repeat(self, rng: Random) -> None:
        """An earlier record once more."""
        line = rng.choice(self.lines[-20:])
        self.write(line.key, line.value)

    @rule(rng=RNG)
    def scribble(self, rng: Random) -> None:
        """Nulls and junk on keys that exist, on others, and on keys of no form."""
        states = self.history[-1]
        keys = [*(key.encode() for key in states), b"t/a/0x00000000_0x00000001", b"t/none", None, b"x", b"!x"]
        self.write(rng.choice(keys), rng.choice([None, None, b"", b"junk", b'{"format":1}', b'{"format":0}']))

    @rule()
    def pay(self) -> None:
        """The leader pays all debts; nothing is left."""
        states = self.history[-1]
        for debt in self.twin.debts():
            verdict = self.put(debt.key, "assert", len(self.lines) - 1, moves.restated(debt.key, states.get(debt.key)))
            assert verdict == "assert-equal"
        assert self.twin.debts() == debts_of(self.view) == []

    @rule(rng=RNG, whole=st.booleans())
    def join(self, rng: Random, whole: bool) -> None:
        """Whoever joins where no key is in debt holds what a full reader holds, whatever the cleaner did."""
        if self.twin.debts():
            self.pay()
        lines = clean_once(self.lines, rng, 10**9, 1, whole=whole)
        lines = clean_once(lines, rng, 10**9, 1, whole=whole)
        joiner = Joiner(0, 1)
        for line in lines:
            joiner.read(line.offset, line.key, line.value)
        joined = joiner.view()
        assert states_of(joined) == self.history[-1]
        assert digest([joined]) == digest([self.view])
        check_counters(joined, self.history[-1])

    # Invariants --------------------------------------------------------------------------

    @invariant()
    def one_accepted_history(self) -> None:
        assert states_of(self.view) == self.twin.states() == self.history[-1]
        assert debts_of(self.view) == self.twin.debts()
        assert digest([self.view]) == judge.digest(self.history[-1])

    @invariant()
    def ring_is_covered_once_and_counted_right(self) -> None:
        check_counters(self.view, self.history[-1])

    @invariant()
    def one_broker_a_generation_and_none_goes_back(self) -> None:
        """For every topic (a place on the ring): version and generation only grow, and a generation has one broker."""
        for name in NAMESPACES:
            root = self.view.get(name)
            if root is None or root.ring is None:
                continue
            for place in PROBES:
                key = root.ring.at(place)
                assert key.lower <= place
                assert place < key.upper or place == key.upper == 0xFFFFFFFF
                topic = (name, place)
                assert key.version >= self.versions.get(topic, 0)
                self.versions[topic] = key.version
                if key.owner is None:
                    assert key.generation is None
                    continue
                assert key.generation is not None
                generation, owner = self.served.get(topic, (-1, ""))
                assert key.generation >= generation
                if key.generation == generation:
                    assert key.owner == owner
                self.served[topic] = key.generation, key.owner


Channel.TestCase.settings = settings(max_examples=100, stateful_step_count=40, deadline=None)
TestChannel = Channel.TestCase


def test_the_machine_gets_far() -> None:
    """Writers that act at random reach every verdict, splits, and re-creation: the rules above are no empty shell."""
    verdicts: set[str] = set()
    reached: set[str] = set()
    for seed in range(12):
        channel = Channel()
        rng = Random(f"machine {seed}")
        channel.create(rng)
        for _ in range(120):
            act = rng.choices(("propose", "wrong", "restate", "repeat", "scribble", "join"), (9, 2, 1, 1, 1, 1))[0]
            if act == "propose":
                channel.propose(rng, rng.random() < 0.3)
            elif act == "wrong":
                channel.propose_wrongly(rng, rng.randint(1, 2))
            elif act == "restate":
                channel.restate(rng, rng.random() < 0.3)
            elif act == "repeat":
                channel.repeat(rng)
            elif act == "scribble":
                channel.scribble(rng)
            else:
                channel.join(rng, rng.random() < 0.5)
            channel.one_accepted_history()
            channel.ring_is_covered_once_and_counted_right()
            channel.one_broker_a_generation_and_none_goes_back()
        verdicts |= {verdict.verdict for verdict in channel.twin.verdicts}
        last: dict[str, str] = {}
        for states in channel.history:
            for key, state in states.items():
                reached.add(f"{last.get(key, 'nothing')} -> {state.state}")
                last[key] = state.state
    assert verdicts >= set(possible_verdicts()), set(possible_verdicts()) - verdicts
    assert {"Splitting -> Deleted", "Active -> Deleted", "Deleted -> Active", "Releasing -> Assigned"} <= reached


def possible_verdicts() -> list[str]:
    """All verdicts but those that one partition without newer formats cannot give."""
    return [
        "control", "purged", "undecodable", "assert-equal", "assert-stale", "duplicate", "unknown-bundle",
        "stale-version", "version-gap", "wrong-base", "illegal-move", "wrong-broker", "bad-children",
        "namespace-in-use", "accepted",
    ]  # fmt: skip
