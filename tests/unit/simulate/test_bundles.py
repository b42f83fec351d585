"""Units fall into the bundle that holds their place, also after a split."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from shedders.contest.bundles import NOBODY, BundleTable, ContestChannel, bounds_of
from shedders.contest.trace import Demand, Units
from statechannel.protocol.bundle import FULL_UPPER, parse_key


def _units(places: list[tuple[int, int]]) -> Units:
    spaces, positions = zip(*places, strict=True)
    return Units(np.array(spaces), np.array(positions), np.arange(len(places)) + 1)


def _demand(count: int) -> Demand:
    rows = [np.arange(count, dtype=np.float64) + 100 * row for row in range(6)]
    return Demand(*rows)


PLACES = st.lists(st.tuples(st.integers(0, 1), st.integers(0, FULL_UPPER)), min_size=1, max_size=60)
CUTS = st.lists(st.tuples(st.integers(0, 40), st.integers(1, 1_000_000)), max_size=6)


@given(PLACES, CUTS)
def test_every_unit_is_counted_where_its_place_is(places: list[tuple[int, int]], cuts: list[tuple[int, int]]) -> None:
    channel, table = ContestChannel(), BundleTable(_units(places))
    live = []
    for index, bundles in enumerate((3, 4)):
        names = channel.create(f"t/n{index}", bounds_of(bundles, ()))
        table.add_namespace(index, names)
        live += names
    for name in live:
        channel.assign(name, "b1")
        table.owner[table.number[name]] = 0
    for which, parts in cuts:
        parent = live[which % len(live)]
        key = parse_key(parent.encode())
        assert key is not None
        at = key.lower + parts % (key.upper - key.lower)
        if not key.lower < at < key.upper:
            continue
        children = channel.split(parent, [at])
        table.split(parent, children)
        live = [name for name in live if name != parent] + children
    demand = table.demand(_demand(len(places)))
    for name in live:
        key = parse_key(name.encode())
        assert key is not None
        inside = [
            unit
            for unit, (space, place) in enumerate(places)
            if f"t/n{space}" == key.namespace and (key.lower <= place < key.upper or place == key.upper == FULL_UPPER)
        ]
        number = table.number[name]
        assert demand[0, number] == sum(inside)
        assert table.topics[number] == len(inside)
        assert table.sessions[number] == sum(unit + 1 for unit in inside)
        assert list(table.units_of(name)) == inside
    by_broker = table.by_broker(demand, 2)
    assert by_broker[1, 0] == sum(unit + 100 for unit in range(len(places)))
    assert set(table.owner[~table.live]) <= {NOBODY}
    assert {entry.bundle for entry in channel.live_bundles()} == set(live)
