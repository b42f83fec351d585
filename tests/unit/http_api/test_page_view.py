"""What the page computes from changes: whatever comes, the present is the fold of it, and every past is that of its prefix."""

import asyncio
from contextlib import asynccontextmanager

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from statechannel.broker.changes import Change, Derived
from statechannel.conditions.facts import broker_rows
from statechannel.engine.membership import Membership, decode_member
from statechannel.http_api.page.bundle_table import BundleStart, ChangeJournal, Holding, LiveBundleTable, holding_of
from statechannel.http_api.page.heat_map import ROWS_MAX, UNASKED, UNSERVED, RowLayout, heat_map_of
from statechannel.http_api.page.page_facts import FLAPS, ReadElsewhere
from statechannel.http_api.page.page_feed import PageFeed
from statechannel.http_api.page.page_routes import BundleRowsQuery, bundle_rows
from statechannel.http_api.page.page_view import PageView
from statechannel.http_api.page.past_page import difference
from statechannel.http_api.problems import ProblemError
from statechannel.protocol.bundle import parse_key
from statechannel.protocol.states import State
from tests.support.http_fakes import FakeSource, broker_row, http_settings, look_of, rigged
from tests.support.page_server import names

SETTINGS = http_settings(page_history_max=1_000, page_column_s=5)
BUNDLES = names(4)
BROKERS = ("b1", "b2", "b3")


def change(offset, bundle, state, from_=None, to=None, at_ms=None, **fields):
    at_ms = 1_000 * offset if at_ms is None else at_ms
    return Change(0, offset, at_ms, bundle, state, offset, from_, to, to or from_ or "b1", "i", **fields)


@st.composite
def logs(draw):
    """Changes of four bundles, any state after any other, splits among them."""
    changes, live = [], list(BUNDLES)
    for offset in range(draw(st.integers(0, 25))):
        bundle = draw(st.sampled_from(live))
        owner, target = draw(st.sampled_from(BROKERS)), draw(st.sampled_from(BROKERS))
        state = draw(
            st.sampled_from([State.ASSIGNED, State.ASSIGNING, State.RELEASING, State.UNASSIGNED, State.DELETED])
        )
        low, high = (int(part, 16) for part in bundle.rpartition("/")[2].split("_"))
        if state is not State.DELETED or high - low < 4:
            changes.append(change(offset, bundle, State.ASSIGNED if state is State.DELETED else state, owner, target))
            continue
        middle = (low + high) // 2
        children = [f"acme/orders/0x{a:08x}_0x{b:08x}" for a, b in ((low, middle), (middle, high))]
        live.remove(bundle)
        live += children
        derived = [Derived(child, State.ASSIGNED, 1, owner) for child in children]
        changes.append(change(offset, bundle, state, owner, flow="split", derived=derived))
    return changes


NOBODY = Holding(State.UNASSIGNED, None)


def begun(holding=NOBODY):
    view = PageView(SETTINGS)
    view.begin([BundleStart(name.encode(), holding) for name in BUNDLES], {0: 0})
    return view


def rows_of(table):
    return {table.name_of(key, upper): holding for key, upper, holding in table.rows()}


def folded(changes):
    """The same, as plainly as can be."""
    rows = dict.fromkeys(BUNDLES, Holding(State.UNASSIGNED, None))
    for item in changes:
        if item.state is State.DELETED:
            del rows[item.bundle]
            rows |= {child.bundle: Holding(child.state, child.owner) for child in item.derived}
        else:
            rows[item.bundle] = holding_of(item.state, item.from_, item.to)
    return rows


@given(logs())
def test_the_present_is_the_fold_and_every_past_that_of_a_prefix(changes):
    view = begun()
    view.take(changes)
    view.take(changes)  # what is known already changes nothing
    assert rows_of(view.journal.table) == folded(changes)
    for place in range(len(changes) + 1):
        table = view.journal.as_of(place)
        assert rows_of(table) == folded(changes[:place])
        assert list(table.keys) == sorted(table.keys)
    before, after = view.journal.as_of(0), view.journal.table
    differing = {name for name, held in folded(changes).items() if name not in BUNDLES or held.owner is not None}
    assert {row["bundle"] for row in difference(before, after)["bundles"]} == differing


def test_what_lost_its_owner_or_was_declined_does_not_wait_for_a_lookup():
    flows = ["shutdown", *(3 * ["unload"])]
    view = PageView(SETTINGS)
    view.begin(
        [BundleStart(name.encode(), NOBODY, flow=flow) for name, flow in zip(BUNDLES, flows, strict=True)], {0: 0}
    )
    view.take(change(n, BUNDLES[n], State.UNASSIGNED, "b1", flow=flow) for n, flow in ((1, "shutdown"), (2, "unload")))

    def seen(at_ms):
        view.look(look_of([broker_row(name) for name in BROKERS], at_ms=at_ms))
        sections = view.sections()
        waiting = {row["bundle"]: row["who"] for row in sections["between"]["rows"]}
        return sections["head"]["unasked"], sections["head"]["unserved"], waiting, sections["problems"]

    assert seen(2_000) == (2, 2, {BUNDLES[0]: None, BUNDLES[1]: None}, [])
    _, _, _, (problem,) = seen(2_001)
    assert (problem["kind"], problem["subject"]) == ("without-owner", BUNDLES[1])
    view.take([change(n + 3, BUNDLES[n], State.ASSIGNING, None, "b2") for n in (0, 1)])
    view.take([change(n + 5, BUNDLES[n], State.ASSIGNED, None, "b2") for n in (0, 1)])
    assert seen(18_000) == (2, 0, {}, [])
    for n, flow in ((0, "transfer"), (3, "assignment")):
        view.take([change(n + 7, BUNDLES[n], State.UNASSIGNED, "b2", flow=flow, action="decline")])
    assert seen(19_000)[:3] == (1, 2, {}), "who asked for them waits"


@given(logs())
def test_sums_are_those_of_the_rows(changes):
    view = begun()
    view.take(changes)
    view.look(look_of([broker_row(name) for name in BROKERS], at_ms=60_000))
    sections, rows = view.sections(), folded(changes)
    assert {row["broker"]: row["bundles"] for row in sections["brokers"]} == {
        name: sum(held.owner == name for held in rows.values()) for name in BROKERS
    }
    moving = [held for held in rows.values() if held.state in (State.ASSIGNING, State.RELEASING)]
    assert sections["between"]["all"] == len(sections["between"]["rows"]) == len(moving)
    assert sections["head"]["unasked"] == sum(held.state is State.UNASSIGNED for held in rows.values())
    assert sections["head"]["unserved"] == sum(held.state is State.ASSIGNING for held in rows.values())
    orjson.dumps(sections)
    newest = view.heat.document()
    cells = {}
    for column in newest["columns"]:
        cells |= {row: owner for row, owner, *_ in column}
    in_order = sorted(rows)
    if len(newest["rows"]) == len(in_order):
        numbers = {"": UNASKED} | {name: number for number, name in enumerate(newest["owners"])}
        for row, name in enumerate(in_order):
            held = rows[name]
            missing = UNASKED if held.state is State.UNASSIGNED else UNSERVED
            assert cells[row] == (missing if held.owner is None else numbers[held.owner])


def test_older_changes_are_forgotten_and_said_so():
    journal = ChangeJournal(10)
    journal.begin([BundleStart(BUNDLES[0].encode(), Holding(State.ASSIGNED, "b1"))], {0: 0})
    for offset in range(30):
        journal.take(change(offset, BUNDLES[0], State.ASSIGNED, "b1", f"b{offset}"))
    assert len(journal.steps) == 10
    assert journal.whole_from == 20
    assert journal.as_of(19) is None
    assert rows_of(journal.as_of(20))[BUNDLES[0]].owner == "b19"


@pytest.mark.parametrize("bundles", [1, ROWS_MAX, ROWS_MAX + 1, 4_096, 8_192])
def test_rows_have_every_bundle_and_about_equally_many(bundles):
    table = LiveBundleTable()
    table.fill(BundleStart(name.encode(), Holding(State.ASSIGNED, "b1")) for name in reversed(names(bundles)))
    layout = RowLayout(table)
    counts = [0] * len(layout.names)
    for key in table.keys:
        counts[layout.row_of(key)] += 1
    assert len(counts) <= ROWS_MAX
    assert sum(counts) == bundles
    assert max(counts) == counts[0] == layout.bundles_per_row
    assert min(counts[:-1], default=counts[0]) == counts[0]


def test_a_bundle_that_moved_and_came_back_within_a_column_is_seen():
    journal = ChangeJournal(100)
    journal.begin([BundleStart(name.encode(), Holding(State.ASSIGNED, "b1")) for name in BUNDLES], {0: 0})
    for offset, (state, from_, to) in enumerate(
        [
            (State.RELEASING, "b1", "b2"),
            (State.ASSIGNING, "b1", "b2"),
            (State.ASSIGNED, "b1", "b2"),
            (State.RELEASING, "b2", "b1"),
            (State.ASSIGNING, "b2", "b1"),
            (State.ASSIGNED, "b2", "b1"),
        ]
    ):
        journal.take(change(offset, BUNDLES[1], state, from_, to, at_ms=6_000 + offset))
    columns = heat_map_of(journal, 5_000, 16_000).document()["columns"]
    assert [[cell for cell in column if cell[3]] for column in columns] == [[[1, 0, 1, 2]], [], []]
    then = heat_map_of(journal, 5_000, 6_002, until=3)
    assert then.document()["owners"][then.document()["columns"][-1][1][1]] == "b2"


def test_a_map_of_the_past_has_brokers_lost_from_then_on():
    journal = ChangeJournal(100)
    journal.begin([BundleStart(name.encode(), Holding(State.ASSIGNED, "b1")) for name in BUNDLES[:1]], {0: 0})
    journal.take(change(0, BUNDLES[0], State.ASSIGNED, "b1", "b2", at_ms=1_000))
    document = heat_map_of(journal, 5_000, 21_000, losses=[(7_000, {"b2": 7_000}), (16_000, {})]).document()
    owners, cells = [], None
    for column in document["columns"]:
        cells = column[0][1] if column else cells
        owners.append(cells)
    assert owners == [1, UNSERVED, UNSERVED, 1, 1]


def pairs(cell):
    """Of a cell: bundles by owner."""
    return {cell[1]: cell[2], **dict(zip(cell[4::2], cell[5::2], strict=True))}


def test_a_row_of_many_bundles_hides_no_gap_and_no_owner_and_its_part_has_a_row_for_each():
    bundles = names(65_536)
    journal = ChangeJournal(1_000)
    journal.begin(
        [BundleStart(name.encode(), Holding(State.ASSIGNED, f"b{at % 3}")) for at, name in enumerate(bundles)], {0: 0}
    )
    journal.take(change(0, bundles[70], State.ASSIGNED, "b1", "b7", at_ms=1_000))
    journal.take(change(1, bundles[40], State.ASSIGNING, None, "b2", at_ms=11_000))
    journal.take(change(2, bundles[40], State.ASSIGNED, None, "b2", at_ms=16_000))
    document = heat_map_of(journal, 5_000, 21_000).document()
    assert document["bundles_per_row"] == 32
    cells = [{cell[0]: cell for cell in column} for column in document["columns"]]
    assert pairs(cells[0][2])[document["owners"].index("b7")] == 1
    assert cells[2][1][1:3] == [UNSERVED, 1], "the worst is the first"
    assert UNSERVED not in pairs(cells[3][1])
    assert all(sum(pairs(cell).values()) == 32 for column in cells for cell in column.values())
    start, end = (parse_key(bundles[at].encode()) for at in (32, 96))
    within = (start.namespace, start.lower), (end.namespace, end.lower)
    part = heat_map_of(journal, 5_000, 21_000, within=within).document()
    assert (part["rows"], part["bundles_per_row"]) == (bundles[32:96], 1)
    assert [cell[:3] for column in part["columns"] for cell in column if cell[1] == UNSERVED] == [[8, UNSERVED, 1]]


def shown_owners(document):
    """Of the first row, by column."""
    owners, last = [], None
    for column in document["columns"]:
        last = next((cell[1] for cell in column if cell[0] == 0), last)
        owners.append(last if last < 0 else document["owners"][last])
    return owners


def test_the_gap_of_a_lost_owner_is_filled_in_once_it_is_known():
    log = [
        change(0, BUNDLES[0], State.ASSIGNED, "b1", "b2", at_ms=1_000),
        change(
            1,
            BUNDLES[0],
            State.ASSIGNING,
            None,
            "b3",
            18_500,
            flow="repair",
            lost={"broker": "b2", "last_heard_ms": 12_300},
        ),
        change(2, BUNDLES[0], State.ASSIGNED, None, "b3", 18_600, flow="repair"),
    ]
    journal = ChangeJournal(100)
    journal.begin([BundleStart(name.encode(), Holding(State.ASSIGNED, "b1")) for name in BUNDLES], {0: 0})
    for item in log:
        journal.take(item)
    repaired = ["b2", "b2", UNSERVED, UNSERVED, "b3"]
    assert shown_owners(heat_map_of(journal, 5_000, 24_000).document()) == repaired
    view = begun(Holding(State.ASSIGNED, "b1"))
    members = [broker_row(name) for name in BROKERS]
    view.look(look_of(members, at_ms=1_000))
    view.take(log[:1])
    view.look(look_of(members, at_ms=16_000))
    known = view.heat_layout
    members[1] |= {"state": "lost", "heard_ago_ms": 6_000}
    view.look(look_of(members, at_ms=18_300))
    assert shown_owners(view.heat.document()) == ["b2", "b2", UNSERVED, UNSERVED]
    assert view.heat_layout != known, "pages get the whole map"
    view.take(log[1:])
    view.look(look_of(members, at_ms=24_000))
    assert shown_owners(view.heat.document()) == repaired


def test_who_is_behind_is_known_by_what_others_have_read():
    seen, whole = ReadElsewhere(), {0: 9, 1: 4}
    assert seen.behind_ms(0, whole, [None, "x"]) is None
    for at_ms in range(0, 60_000, 500):
        assert seen.behind_ms(at_ms, whole, [{"0": 9, "1": 3}, {"0": 8, "1": True}]) == 0, "nobody writes"
    assert seen.behind_ms(60_000, whole, [{"0": 12}, {}]) == 0
    assert seen.behind_ms(63_000, {0: 11, 1: 4}, [{"0": 20}]) == 3_000
    assert seen.behind_ms(64_000, {0: 12, 1: 4}, [{"0": 20}]) == 1_000
    assert seen.behind_ms(65_000, {0: 20, 1: 4}, [{"0": 20}]) == 0


def flights(bundle, moves):
    """The records of moves to and fro, each begun by what is given."""
    offset = 0
    for number, fields in enumerate(moves):
        source, target = BROKERS[(number + 1) % 2], BROKERS[number % 2]
        yield change(offset, bundle, State.RELEASING, source, target, at_ms=1_000 * number, **fields)
        yield change(offset + 1, bundle, State.ASSIGNING, source, target, at_ms=1_000 * number, flow="transfer")
        yield change(offset + 2, bundle, State.ASSIGNED, source, target, at_ms=1_000 * number, flow="transfer")
        offset += 3


BALANCED = {"decision": "d1", "flow": "transfer"}
FAILED = {"lost": {"broker": "b1"}, "flow": "repair"}
BY_A_PERSON = {"flow": "transfer", "reason": "disks"}


@pytest.mark.parametrize(
    ("moves", "drains", "flaps"),
    [
        ([BALANCED] * FLAPS, (), True),
        ([FAILED] * FLAPS, (), True),
        ([BALANCED, FAILED, BY_A_PERSON, BALANCED, FAILED], (), True),
        ([BY_A_PERSON] * 2 * FLAPS, (), False),
        ([BALANCED] * 2 * FLAPS, ("d1",), False),
        ([BALANCED] * (FLAPS - 1) + [BY_A_PERSON] * FLAPS, (), False),
    ],
)
def test_only_moves_of_the_balancer_and_after_failures_make_a_bundle_flap(moves, drains, flaps):
    view = begun(Holding(State.ASSIGNED, "b2"))
    view.drains = frozenset(drains)
    view.take(flights(BUNDLES[2], moves))
    members = [broker_row(name) for name in BROKERS]
    view.look(look_of(members, at_ms=10_000))
    problems = view.sections()["problems"]
    assert [problem["subject"] for problem in problems] == ([BUNDLES[2]] if flaps else [])
    assert sum(row["came"] for row in view.sections()["brokers"]) == len(moves)
    view.look(look_of(members, at_ms=400_000))
    assert view.sections()["problems"] == []


def test_the_page_says_who_differs_as_heartbeats_do():
    def differs(offset, keys=5, their_keys=6):
        return [
            {"partition": 0, "broker": "b1", "offset": offset, "equal_at": 4, "keys": keys, "their_keys": their_keys}
        ]

    def seen(*members, **look):
        view = begun(Holding(State.ASSIGNED, "b2"))
        view.look(look_of(list(members), at_ms=10_000)._replace(**look))
        sections = view.sections()
        problems = [problem for problem in sections["problems"] if problem["kind"] == "replicas-differ"]
        assert all(problem["severe"] for problem in problems)
        return sections["replicas"], [problem["subject"] for problem in problems]

    b1, joins = broker_row("b1", phase="caught-up"), broker_row("b4", phase="joining")
    b2, b3 = (broker_row(name, phase="caught-up", differs=differs(9)) for name in ("b2", "b3"))
    agree = broker_row("b3", phase="caught-up")
    tile, problems = seen(b1, joins, agree)
    assert (tile, problems) == ({"differing": []}, [])
    tile, problems = seen(b1, b2, b3, joins)
    assert (tile["differing"][0]["brokers"], problems) == (("b1",), ["b1"]), "the odd one is named"
    tile, problems = seen(b1, b2, agree)
    assert (tile["differing"][0]["brokers"], problems) == (("b1", "b2"), ["b1"]), "of two either may be right"
    assert "at offset 9 (6 and 5 keys), equal through offset 4" in tile["differing"][0]["message"]
    _, problems = seen({**b1, "state": "lost"}, b2)
    assert problems == [], "nobody differs from one that is gone"
    tile, _ = seen(b1, agree, broker="", differs=differs(7))
    assert tile["differing"][0]["brokers"] == ("b1", "this console")


async def test_cordons_that_cannot_be_read_now_are_those_read_last():
    answers = [
        {"cordons": [{"broker": "b2", "drain_state": None}]},
        ProblemError("too-busy", "two topics are being read already"),
        {"cordons": []},
    ]

    async def cordons():
        answer = answers.pop(0)
        if isinstance(answer, ProblemError):
            raise answer
        return answer

    feed = PageFeed(FakeSource(), http_settings())
    feed.topics = {"cordons": cordons}
    for known in ({"b2"}, {"b2"}, set()):
        await feed._topics_read()
        assert set(feed.view.cordons) == known


def test_names_of_namespaces_and_brokers_that_are_gone_are_forgotten():
    view = PageView(http_settings(page_history_max=100))
    view.begin([BundleStart(BUNDLES[0].encode(), Holding(State.ASSIGNED, "b1"))], {0: 0})
    view.look(look_of([broker_row("b1")], at_ms=1))
    offset = 0
    for number in range(400):
        space, bundle = f"t/n{number}", f"t/n{number}/0x00000000_0xffffffff"
        for name, state, to, derived in (
            (space, State.ACTIVE, None, [Derived(bundle, State.UNASSIGNED, 1, None)]),
            (bundle, State.ASSIGNED, f"broker-{number}", ()),
            (space, State.DELETED, None, ()),
        ):
            view.take([change(offset, name, state, None, to, at_ms=1_000 * offset, derived=derived)])
            offset += 1
        view.look(look_of([broker_row("b1")], at_ms=1_000 * offset))
    table = view.journal.table
    named = [name for name in table.namespaces if name]
    assert table.names_gone <= 120  # those of the steps that are kept, and of a minute
    assert len(table.namespaces) < 200
    assert {"acme/orders", "t/n399"} <= set(named)
    assert rows_of(table) == {BUNDLES[0]: Holding(State.ASSIGNED, "b1")}
    for place in range(view.journal.whole_from, view.journal.place + 1):
        for name in rows_of(view.journal.as_of(place)):
            assert name == BUNDLES[0] or name.startswith("t/n3")
    assert len(view.sections()["colours"]) < 400
    view.take([change(offset, BUNDLES[1], State.ASSIGNED, None, "b1", at_ms=1_000 * offset)])
    assert rows_of(table)[BUNDLES[1]].owner == "b1"


async def test_all_pages_are_sent_the_same_bytes_and_a_slow_one_skips_to_the_newest():
    feed = PageFeed(FakeSource(), http_settings(page_each_s=0.05, page_readers_max=3))
    feed.start()
    fast, second, slow = feed.stream(), feed.stream(), feed.stream()
    parts = [[await anext(stream), await anext(stream)] for stream in (fast, second, slow)]
    assert all(part[1].startswith(b"event: page\n") for part in parts)
    with pytest.raises(ProblemError, match="3 pages are open"):
        await anext(feed.stream())
    await asyncio.gather(anext(fast), anext(second))  # the first has missed some while the others began
    for _ in range(5):
        one, other = await asyncio.gather(anext(fast), anext(second))
        assert one is other  # encoded once
    newest = orjson.loads((await anext(slow)).split(b"data: ")[1])
    assert {"head", "brokers", "heat", "events"} <= newest["sections"].keys()
    for stream in (fast, second, slow):
        await stream.aclose()
    await feed.close()
    assert feed.readers == 0


async def looked(feed):
    """The feed after its first look."""
    feed.start()
    stream = feed.stream()
    await anext(stream)
    await anext(stream)
    await stream.aclose()
    await feed.close()


@asynccontextmanager
async def page_client(feed):
    """A client of the page's paths over this feed."""
    async with rigged() as (rig, client):
        for route in rig.routes:
            if route.name.startswith("page-"):
                route.handler.__self__._feed = feed
        yield client


async def asked(feed, path):
    """The answer of the page's path over this feed."""
    async with page_client(feed) as client:
        return (await client.get(path)).json()


async def test_times_of_a_log_that_go_back_lose_no_change():
    source = FakeSource()
    source.log = [
        change(0, BUNDLES[2], State.ASSIGNED, None, "b1", at_ms=9_000),
        change(1, BUNDLES[1], State.ASSIGNED, None, "b2", at_ms=8_000),
        change(2, BUNDLES[0], State.ASSIGNED, "b1", "b3", at_ms=8_500),
    ]
    feed = PageFeed(source, http_settings(page_each_s=0.05))
    await looked(feed)
    assert {name: held.owner for name, held in rows_of(feed.view.journal.table).items()} == {
        BUNDLES[0]: "b3",
        BUNDLES[1]: "b2",
        BUNDLES[2]: "b1",
    }
    assert (await asked(feed, f"/v1/page/bundle?name={BUNDLES[0]}"))["whole"] is True


def test_bundles_that_are_read_again_bring_nothing_of_their_former_keys():
    view = begun()
    view.take(
        change(offset, BUNDLES[1], State.ASSIGNED, "b1", BROKERS[offset % 2], decision="d1") for offset in range(FLAPS)
    )
    view.take([change(FLAPS, BUNDLES[1], State.RELEASING, "b2"), change(FLAPS + 1, BUNDLES[1], State.UNASSIGNED)])
    view.look(look_of([broker_row(name) for name in BROKERS], at_ms=10_000))
    assert [row["open"] for row in view.sections()["events"]] == [1]
    before, layout = view.journal.place, view.heat_layout
    other = BUNDLES[1].replace("acme/orders", "other/one")
    view.begin([BundleStart(other.encode(), Holding(State.ASSIGNED, "b1"))], {0: 99})
    view.look(look_of([broker_row(name) for name in BROKERS], at_ms=11_000))
    sections = view.sections()
    assert sections["problems"] == []
    assert [row["open"] for row in sections["events"]] == [0]
    assert [row["came"] for row in sections["brokers"]] == [0, 0, 0]
    assert view.journal.as_of(before) is None  # what came in between is not known
    assert view.heat_layout != layout


def test_a_deletion_does_not_rename_what_others_of_the_incident_lack():
    view, names = PageView(SETTINGS), (BUNDLES[0], BUNDLES[1].replace("acme/orders", "other/one"))
    view.begin([BundleStart(name.encode(), Holding(State.ASSIGNED, "b1")) for name in names], {0: 0})
    for number, name in enumerate(names):
        view.take([change(2 * number, name, State.RELEASING, "b1", flow="unload", at_ms=1_000)])
        view.take([change(2 * number + 1, name, State.UNASSIGNED, flow="unload", at_ms=1_050)])
    view.take([change(4, "acme/orders", State.DELETED, at_ms=2_000)])
    view.look(look_of([broker_row("b1")], at_ms=3_000))
    assert {row["cause"] for row in view.sections()["events"] if row["open"]} == {"unload"}


def test_a_namespace_that_is_deleted_is_not_counted():
    view = begun(Holding(State.ASSIGNED, "b1"))
    view.take([change(0, BUNDLES[0], State.RELEASING, "b1", flow="unload", at_ms=1_000)])
    view.take([change(1, BUNDLES[0], State.UNASSIGNED, flow="unload", at_ms=1_050)])
    view.take([change(2, "acme/orders", State.DELETED, at_ms=90_000)])
    view.look(look_of([broker_row("b1")], at_ms=10_000))
    (event,) = view.sections()["events"]
    assert (event["cause"], event["longest_ms"], event["open"]) == ("deletion", 0, 0), "nobody asked for it any more"
    head = view.sections()["head"]
    assert (head["bundles"], head["namespaces"]) == (0, 0)
    view.take([change(3, "acme/orders", State.ACTIVE, derived=[Derived(BUNDLES[0], State.UNASSIGNED, 1, None)])])
    assert view.sections()["head"]["namespaces"] == 1


_ODD = st.sampled_from([None, True, -1, 2**64 - 1, -(2**63), 1.5, "x", [], [1], {}, {"x": 1}])
_TROUBLE = st.fixed_dictionaries(
    {"at_ms": _ODD, "since_ms": _ODD, "times": _ODD, "seconds": _ODD, "bundle": st.just("b"), "error": st.just("e"),
     "place": _ODD, "hook": _ODD, "bundles": _ODD, "reason": st.just("r"),
     "message": st.just("m"), "cause": _ODD}
)  # fmt: skip
_HEARTBEAT = st.fixed_dictionaries(
    {},
    optional=dict.fromkeys(("mode", "phase", "software", "started_at_ms", "http", "draining", "extensions"), _ODD)
    | dict.fromkeys(("leading", "term", "formats", "properties", "listeners", "repair_paused"), _ODD)
    | {"blocked": _TROUBLE, "unplaced": _TROUBLE, "sent_at_ms": _ODD}
    | {"hooks_failed": st.dictionaries(st.just("on_own"), _TROUBLE), "applied": st.dictionaries(st.just("0"), _ODD)},
)


@given(st.lists(_HEARTBEAT, min_size=2, max_size=3))
def test_no_heartbeat_that_counts_as_one_keeps_the_page_from_being_sent(heartbeats):
    members = Membership(2.0)
    for number, fields in enumerate(heartbeats):
        info = {"format": 1, "kind": "member", "broker": BROKERS[number], "incarnation": f"i{number}", "seq": 1}
        read = decode_member(orjson.dumps(info | {"since": 0, "sent_at_ms": 1} | fields))
        members.heard(1.0, number, 1_000, read)
    assert set(members.alive) == set(BROKERS[: len(heartbeats)])
    view = begun()
    for at_ms in (1_000, 2_000):
        rows = broker_rows(members, {}, {0: 5, 1: 2**63 - 1}, lambda _: 1)
        view.look(look_of(rows, at_ms=at_ms))
        assert {row["broker"] for row in orjson.loads(orjson.dumps(view.sections()))["brokers"]} == set(members.alive)


@pytest.mark.parametrize(
    ("asked", "rows"),
    [
        ({}, [0, 1, 2, 3]),
        ({"descending": True, "limit": 2}, [3, 2]),
        ({"broker": "b2"}, [2]),
        ({"state": "Assigned"}, [0, 2]),
        ({"unserved": True}, [1, 2]),  # its owner is lost
        ({"sort": "load", "descending": True, "load_min": 1}, [3, 1]),
        ({"text": BUNDLES[3][-12:]}, [3]),
        ({"text": "acme/x"}, []),
    ],
)
def test_the_table_of_bundles_is_filtered_and_sorted(asked, rows):
    table = LiveBundleTable()
    held = [Holding(State.ASSIGNED, "b1"), Holding(State.ASSIGNING, None, "b1"), Holding(State.ASSIGNED, "b2"), NOBODY]
    table.fill(BundleStart(name.encode(), holding) for name, holding in zip(BUNDLES, held, strict=True))
    loads = [{"bundle": BUNDLES[at], "msg_throughput_in": at, "msg_throughput_out": at} for at in (3, 1)]
    document = bundle_rows(table, BundleRowsQuery.model_validate(asked), {"b1"}, {}, loads)
    assert [BUNDLES.index(row["bundle"]) for row in document["rows"]] == rows
    assert document["all"] == (4 if asked.get("limit") else len(rows))
