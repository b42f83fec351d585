"""The page as of a moment, and the difference of two: from memory, from the log, and what is unknown of them."""

import asyncio
from dataclasses import replace

import pytest

from statechannel.http_api.page.bundle_table import BundleStart, Holding
from statechannel.http_api.page.page_feed import PageFeed
from statechannel.http_api.page.past_page import MemberHistory
from statechannel.http_api.problems import ProblemError
from statechannel.protocol.states import State
from statechannel.router import ChangesGap
from tests.support.http_fakes import FakeSource, broker_row, http_settings, look_of
from tests.unit.http_api.test_page_view import BROKERS, BUNDLES, asked, change, looked, page_client


async def feed_behind_its_log(**newest: int):
    """A feed that keeps one change, of a bundle whose earlier two are in the log only."""
    source = FakeSource()
    source.starts = [BundleStart(BUNDLES[0].encode(), Holding(State.ASSIGNED, "b2"))]
    source.log = [change(offset, BUNDLES[0], State.ASSIGNED, None, BROKERS[offset]) for offset in range(2)]
    feed = PageFeed(source, http_settings(page_each_s=0.05, page_past_max=1))
    await looked(feed)
    feed.view.journal.positions[0] = 2
    feed.take([change(2, BUNDLES[0], State.ASSIGNED, "b2", "b3", **newest)])
    return feed


async def test_a_log_that_is_too_long_to_read_has_no_past_before_its_end():
    feed = await feed_behind_its_log()
    for question in ("time_ms=500", "offset=0"):
        then = await asked(feed, f"/v1/page/at?{question}")
        assert (then["owners"], then["place"]) == ({"b1": 1}, None), question
    assert (await asked(feed, "/v1/page/at?offset=2"))["owners"] == {"b3": 1}
    assert (await asked(feed, f"/v1/page/bundle?name={BUNDLES[0]}"))["whole"] is False


class TwoPartitions(FakeSource):
    async def positions(self):
        return {0: 1, 1: 1}

    async def past(self, since, ends):
        for partition in sorted(ends):
            yield [item for item in self.log if item.partition == partition and item.offset < ends[partition]]


async def test_a_moment_by_an_offset_has_the_other_partitions_as_of_its_time():
    source, other = TwoPartitions(), BUNDLES[0].replace("acme/orders", "other/one")
    source.log = [
        change(0, BUNDLES[0], State.ASSIGNED, None, "b1", at_ms=1_000),
        replace(change(0, other, State.ASSIGNED, None, "b2", at_ms=2_000), partition=1),
        change(1, BUNDLES[0], State.ASSIGNED, "b1", "b2", at_ms=3_000),
        replace(change(1, other, State.ASSIGNED, "b2", "b3", at_ms=4_000), partition=1),
    ]
    feed = PageFeed(source, http_settings(page_each_s=0.05, page_past_max=0))
    await looked(feed)
    for place, owners in (
        ("0&partition=0", {"b1": 1}),
        ("0&partition=1", {"b1": 1, "b2": 1}),
        ("1&partition=0", {"b2": 2}),
        ("1&partition=1", {"b2": 1, "b3": 1}),
    ):
        then = await asked(feed, f"/v1/page/at?offset={place}")
        assert then["owners"] == owners, place
        assert f"{then['steps'][-1]['offset']}&partition={then['steps'][-1]['partition']}" == place
    assert (await asked(feed, "/v1/page/at?offset=0&partition=2"))["reason"] == "bad-request"


async def test_the_past_has_members_events_and_moves_of_that_moment_and_no_others():
    source = FakeSource()
    source.log = [
        change(0, BUNDLES[0], State.ASSIGNED, None, "b1", at_ms=1_000),
        change(1, BUNDLES[1], State.ASSIGNED, None, "b2", at_ms=2_000),
        change(2, BUNDLES[0], State.RELEASING, "b1", "b2", at_ms=10_000, flow="transfer"),
        change(3, BUNDLES[0], State.ASSIGNING, "b1", "b2", at_ms=11_000, flow="transfer"),
        change(4, BUNDLES[0], State.ASSIGNED, "b1", "b2", at_ms=12_000, flow="transfer"),
    ]
    source.seen = look_of([broker_row("b1"), broker_row("b2")], at_ms=12_500)
    feed = PageFeed(source, http_settings(page_each_s=0.05))
    await looked(feed)
    then = await asked(feed, "/v1/page/at?time_ms=11500")
    assert then["head"] == {
        "leader": None, "term": None, "mode": None, "brokers": None, "bundles": 2, "unasked": 0, "unserved": 1, "mean": 1.0,
        "known": False,
    }  # fmt: skip
    assert [(row["broker"], row["bundles"], row["coming"], row["state"]) for row in then["brokers"]] == [
        ("b2", 1, 1, None)
    ]
    assert [(row["state"], row["since_ms"], row["who"]) for row in then["between"]["rows"]] == [
        ("Assigning", 11_000, "b2")
    ]
    assert [(row["kind"], row["open"], row["count"]) for row in then["events"]] == [("gap", 1, 1)]
    assert then["brokers"][0]["came"] == 1  # the first lookup, not what came later
    feed.view.look(
        look_of([broker_row("b1", state="lost", leading=False), broker_row("b2", leading=True)], at_ms=20_000)
    )
    feed.view.look(look_of([broker_row("b2", leading=True), broker_row("b3")], at_ms=30_000))
    known = await asked(feed, "/v1/page/at?time_ms=25000")
    assert (known["head"]["leader"], known["head"]["brokers"], known["at_ms"]) == ("b2", 1, 25_000)
    assert [(row["broker"], row["state"], row["leading"]) for row in known["brokers"]] == [
        ("b1", "lost", False), ("b2", "alive", True),
    ]  # fmt: skip
    assert "b3 joined" not in {row["message"] for row in known["events"]}
    assert {"b1 was lost: its heartbeats stopped", "b2 leads now"} <= {row["message"] for row in known["events"]}
    assert [row["longest_ms"] for row in known["events"] if row["kind"] == "gap"] == [1_000]
    late = await asked(feed, "/v1/page/at?time_ms=99999999")
    assert (late["at_ms"], late["live"]) == (30_000, True)  # not later than what is known
    heat = await asked(feed, "/v1/page/heat?place=3&at_ms=11500")
    assert heat["first"] + len(heat["columns"]) - 1 == 11_500 // 5_000
    two = await asked(feed, "/v1/page/difference?first=2&second=5")
    assert (two["first_ms"], two["second_ms"]) == (2_000, 12_000)
    assert two["brokers"] == [{"broker": "b1", "before": 1, "after": 0}, {"broker": "b2", "before": 1, "after": 2}]


OTHER = BUNDLES[0].replace("acme/orders", "other/one")


async def feed_of_a_long_log(log):
    """A feed that has only the end of this log in memory: the last change."""
    source = FakeSource()
    source.log = log[:-1]
    owners = {item.bundle: item.to for item in log[:-1]}
    source.starts = [BundleStart(name.encode(), Holding(State.ASSIGNED, owner)) for name, owner in owners.items()]
    feed = PageFeed(source, http_settings(page_each_s=0.05, page_past_max=0))
    await looked(feed)
    feed.view.journal.positions[0] = len(log) - 1
    source.log = log
    feed.take(log[-1:])
    feed.view.look(source.seen._replace(at_ms=90_000))
    return feed


LOG = [
    change(0, OTHER, State.ASSIGNED, None, "b3", at_ms=1_000),
    change(1, BUNDLES[0], State.ASSIGNED, None, "b1", at_ms=2_000),
    change(2, BUNDLES[0], State.ASSIGNED, "b1", "b2", at_ms=3_000),
    change(3, BUNDLES[1], State.ASSIGNED, None, "b1", at_ms=4_000),
    change(4, OTHER, State.ASSIGNED, "b3", "b1", at_ms=5_000),
]
MOVED = {"bundle": BUNDLES[0], "from": "b1", "to": "b2"}
NEW = {"bundle": BUNDLES[1], "from": None, "to": "b1"}
LEFT = {"bundle": OTHER, "from": "b3", "to": "b1"}


@pytest.mark.parametrize(
    ("question", "times", "places", "bundles"),
    [
        ("first_ms=2000&second_ms=3500", (2_000, 3_500), (None, None), [MOVED]),
        ("first_ms=3500&second_ms=2000", (2_000, 3_500), (None, None), [MOVED]),
        ("first_offset=1&second_offset=3", (2_000, 4_000), (None, None), [MOVED, NEW]),
        ("first_ms=2000&second=1", (2_000, 5_000), (None, 1), [MOVED, NEW, LEFT]),
        ("first=1&second_offset=1", (2_000, 5_000), (None, 1), [MOVED, NEW, LEFT]),
        ("first_ms=0&second_ms=1000", (None, 1_000), (None, None), [{"bundle": OTHER, "from": None, "to": "b3"}]),
        ("first=0&second_ms=80000", (None, 80_000), (0, 1), [LEFT]),
    ],
)
async def test_two_moments_are_compared_wherever_they_are_kept(question, times, places, bundles):
    feed = await feed_of_a_long_log(LOG)
    found = await asked(feed, f"/v1/page/difference?{question}")
    assert (found["first_ms"], found["second_ms"]) == times
    assert (found["first"], found["second"]) == places
    assert {row["bundle"]: row for row in found["bundles"]} == {row["bundle"]: row for row in bundles}
    assert (found["all"], found["gone"]) == (len(bundles), 0)


async def test_a_bundle_that_only_the_earlier_moment_has_is_gone():
    feed = await feed_of_a_long_log([*LOG, change(5, OTHER.rpartition("/")[0], State.DELETED, at_ms=6_000)])
    found = await asked(feed, "/v1/page/difference?first_ms=5500&second_ms=80000")
    assert (found["all"], found["gone"]) == (0, 1)
    assert [row["broker"] for row in found["brokers"]] == ["b1", "b2"]


@pytest.mark.parametrize(
    ("question", "reason", "status"),
    [
        ("first=9&second_ms=1000", "moment-too-old", 410),
        ("first_offset=0&second=0", "moment-too-old", 410),
        ("first=3&second=9", "moment-too-old", 410),
        ("second_ms=1000", "bad-request", 400),
        ("first_ms=1000&second_offset=1&second_partition=5", "bad-request", 400),
    ],
)
async def test_what_cannot_be_compared_is_refused(question, reason, status):
    feed = await feed_of_a_long_log(LOG)
    for _ in range(8):
        feed.view.begin([], {0: 5})  # nothing before is in memory any more

    async def compacted(since, ends):
        yield [ChangesGap(0, 0, 3, "compaction has removed records")]
        yield LOG[3 : ends[0]]

    feed.source.past = compacted
    answer = await asked(feed, f"/v1/page/difference?{question}")
    assert (answer["reason"], answer["status"]) == (reason, status)


async def test_only_one_moment_at_a_time_is_read_from_the_log():
    feed, begun, go_on = await feed_of_a_long_log(LOG), asyncio.Event(), asyncio.Event()
    past = feed.source.past

    async def slow(since, ends):
        begun.set()
        await go_on.wait()
        async for batch in past(since, ends):
            yield batch

    feed.source.past = slow
    async with page_client(feed) as client:
        first = asyncio.create_task(client.get("/v1/page/difference?first_ms=2000&second_ms=3500"))
        await begun.wait()
        refused = (await client.get("/v1/page/difference?first_ms=1000&second_ms=3500")).json()
        go_on.set()
        assert (refused["reason"], (await first).json()["all"]) == ("too-busy", 1)


async def test_moves_and_members_that_are_not_known_then_are_null():
    feed = await feed_behind_its_log(at_ms=900_000)
    then = await asked(feed, "/v1/page/at?place=1")
    assert [(row["broker"], row["came"], row["state"]) for row in then["brokers"]] == [("b3", None, None)]
    read = await asked(feed, "/v1/page/at?time_ms=500")
    assert [(row["broker"], row["came"], row["state"]) for row in read["brokers"]] == [("b1", 1, None)]


async def test_reports_of_a_moment_say_what_could_not_be_read():
    feed = PageFeed(FakeSource(), http_settings())

    async def decisions(at_ms):
        return {"decisions": [{"id": "d1", "at_ms": at_ms}]}

    async def loads(at_ms):
        raise ProblemError("too-busy", "two topics are being read already")

    feed.past_topics = {"decisions": decisions, "loads": loads}
    assert await asked(feed, "/v1/page/reports?at_ms=7") == {
        "at_ms": 7,
        "decisions": {"decisions": [{"id": "d1", "at_ms": 7}]},
        "loads": {"error": "two topics are being read already"},
    }
    feed.past_topics = {}
    assert (await asked(feed, "/v1/page/reports?at_ms=7"))["loads"] is None


def test_what_was_heard_of_members_has_a_bound():
    log = MemberHistory()
    for number in range(3_000):
        log.take(look_of([broker_row(f"b{at}", leading=at == number % 60) for at in range(60)], at_ms=number))
    assert log.at(2_999).leader == "b59"
    assert log.at(100) is None
    assert len(log._moments) <= 1_000
    kept = len(log._moments)
    log.take(look_of([broker_row(f"b{at}", leading=at == 59) for at in range(60)], at_ms=3_000))
    assert len(log._moments) == kept  # nothing has changed
    for number in range(500):
        log.take(look_of([broker_row(f"b{at}", leading=at == number) for at in range(500)], at_ms=4_000 + number))
    assert sum(len(then.brokers) for then in log._moments) == log._rows <= 100_000
