"""What the tests of the core share: the twin's words for what the core holds, and naive counts."""

import os
from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from inspect import isdatadescriptor
from typing import Any

from statechannel.protocol.keys import KeyState
from statechannel.protocol.log import RecordRead, Topic
from statechannel.protocol.verdict import Verdict
from statechannel.protocol.view import Judgement, View
from tests.twin import judge, loggen
from tests.twin.wire import Line

SEEDS_FACTOR = int(os.environ.get("STATECHANNEL_TEST_SEEDS_FACTOR", "1"))
"""Multiplies the number of seeds of every seeded test: raise it for long runs."""

KNOBS = {
    "honest": replace(loggen.HONEST, large=False),
    "junky": replace(loggen.JUNKY, large=False),
    "wild": replace(loggen.WILD, large=False),
    "newer": replace(loggen.WILD, large=False, newer=1.0),
}


def seeds(number: int) -> range:
    """The seeds of a test that takes `number` of them by default."""
    return range(number * SEEDS_FACTOR)


def without_made_up_id(state: judge.State) -> judge.State:
    """The ids that a lenient reader derives from an assert that names none mean nothing: left out of comparisons."""
    made_up = state.id is not None and state.id.startswith("None/")
    return replace(state, id=None) if made_up else state


def state_of(key: KeyState) -> judge.State:
    """One accepted state, as the twin words it."""
    children = None if key.children is None else tuple(key.children)
    return judge.State(key.version, str(key.state), key.from_, key.to, key.accepted_id, children)


def states_of(view: View) -> dict[str, judge.State]:
    """All accepted states of a view, as the twin words them."""
    return {key.name: state_of(key) for key in view.existing()}


def debts_of(view: View) -> list[judge.Debt]:
    """All open debts of a view, as the twin words them."""
    results = [
        judge.Debt(key.name, debt.since_offset, debt.newest_offset, debt.highest_version)
        for key, debt in view.ledger.open.items()
    ]
    return sorted(results, key=lambda debt: debt.key)


def words_of(judgement: Judgement) -> tuple[str, int | None, str | None]:
    """Verdict, version and state, as a line of the audit's verdicts has them."""
    record = judgement.record
    if record is None:
        return str(judgement.verdict), None, None
    return str(judgement.verdict), record.version, str(record.state)


def record_of(line: Line) -> RecordRead:
    """A line of the twin as the core reads it."""
    return RecordRead(Topic.CHANNEL, line.partition, line.offset, line.timestamp_ms, line.key, line.value)


def read(view: View, line: Line) -> Judgement:
    """Let a view read a line of the twin."""
    return view.read(line.offset, line.key, line.value)


def by_partition(log: loggen.Log) -> dict[int, list[Line]]:
    """The lines of each partition; empty partitions are there too."""
    return {number: [line for line in log.lines if line.partition == number] for number in log.end_offsets}


FIELDS = [name for name, value in vars(KeyState).items() if isdatadescriptor(value)]
"""What can be asked of a key, whether its class is compiled or not."""


def fingerprint(view: View, *but: str) -> dict[str, Any]:
    """Everything that a reader may ask of the existing keys of a view, but for what settled them and what is named."""
    skipped = {"settled", "purged", "ring", "bounds", *but}
    names = [name for name in FIELDS if name not in skipped]
    keys: dict[str, Any] = {key.name: ([getattr(key, name) for name in names], key.children) for key in view.existing()}
    rings = {
        key.name: (list(key.ring.live), sorted(parent.name for parent in key.ring.parents), key.ring.owned)
        for key in view.existing()
        if key.is_namespace and key.ring is not None
    }
    return {"keys": keys, "rings": rings, "load": dict(view.load), "in_flight": {key.name for key in view.in_flight}}


def bound_for(state: judge.State) -> str | None:
    """The broker that a bundle counts for in placement."""
    results = {
        "Assigning": state.to,
        "Assigned": state.to,
        "Releasing": state.to if state.to is not None else state.source,
        "Splitting": state.source,
    }
    return results.get(state.state)


def check_counters(view: View, accepted: dict[str, judge.State]) -> None:
    """Hold the counts that a view keeps in place against counts made anew from `accepted` (protocol.md section 9)."""
    live = judge.live_bundles(accepted)
    load = Counter(broker for state in live.values() if (broker := bound_for(state)) is not None)
    assert view.load == load
    assert {key.name for key in view.in_flight} == {
        name for name, state in live.items() if state.state in ("Assigning", "Releasing", "Splitting")
    }
    assert {key.name for key in view.live()} == set(live)
    for name, state in accepted.items():
        if name.count("/") == 1:
            key = view.get(name)
            assert key is not None
            _check_ring(key, state, {k: s for k, s in accepted.items() if k.startswith(f"{name}/")})


def _check_ring(root: KeyState, state: judge.State, bundles: dict[str, judge.State]) -> None:
    if state.state != "Active":
        assert root.ring is None
        assert not bundles
        return
    ring = root.ring
    assert ring is not None
    live = judge.live_bundles(bundles)
    assert {key.name for key in ring.live.values()} == set(live)
    assert {key.name for key in ring.parents} == set(bundles) - set(live)
    assert len(ring.parents) == len(bundles) - len(live)
    assert all(key.ring is ring for key in (*ring.live.values(), *ring.parents))
    assert ring.owned == sum(state.state != "Unassigned" for state in live.values())
    assert ring.highest == max([state.version, *(state.version for state in live.values())])
    check_tiling((key.lower, key.upper) for key in ring.live.values())
    assert list(ring.live) == [key.lower for key in ring.live.values()]


def check_tiling(ranges: Iterable[tuple[int, int]]) -> None:
    """Ranges in order cover the ring exactly once."""
    at = 0
    for lower, upper in ranges:
        assert (at, True) == (lower, lower < upper)
        at = upper
    assert at == 0xFFFFFFFF


def difference(records: Iterable[RecordRead], partition: int, partitions: int) -> str:
    """What the two implementations say otherwise of a log; empty if nothing."""
    view, twin = View(partition, partitions), judge.Judge(partition, partitions)
    for record in records:
        ours = view.read(record.offset, record.key, record.value)
        theirs = twin.read(Line(partition, record.offset, record.timestamp_ms, record.key, record.value))
        said = None if theirs is None else (theirs.verdict, theirs.version, theirs.state)
        if said != words_of(ours):
            return f"offset {record.offset}: {words_of(ours)}, and {said}"
        if ours.verdict is Verdict.UNSUPPORTED_FORMAT:  # nobody judges beyond
            break
    if twin.states() != states_of(view):
        return "other accepted states at the end"
    return "" if twin.debts() == debts_of(view) else "other debts at the end"
