"""Whom the job buries and when: ages by its own clock, judged as of moments whose end was reached, grace that was watched."""

from dataclasses import dataclass, field

from hypothesis import example, given, settings
from hypothesis import strategies as st

from loaddata.report.record import Tombstone
from loaddata.view.table_view import ExpiryRules
from spark.load.expiry import LoadTopicEnd, TopicExpiry
from spark.load.fold import LastReport

NOW_MS = 1_750_000_000_000
RULES = ExpiryRules(ttl_s=100.0, grace_s=30.0, repeat_s=60.0)
TRIGGER_S = 5.0


def batch(
    expiry: TopicExpiry, now_s: float, held: dict[str, LastReport], *, end: int = 10, position: int = 10
) -> dict[str, Tombstone]:
    expiry.asked(LoadTopicEnd(now_s, end))
    expiry.heard(held, now_s)
    return expiry.step(position, NOW_MS)


def ticks(expiry: TopicExpiry, held: dict[str, LastReport], start_s: float, end_s: float) -> list[float]:
    """Times of the triggers at which `a` is buried."""
    result, now_s = [], start_s
    while now_s <= end_s:
        if "a" in batch(expiry, now_s, held):
            result.append(now_s)
        now_s += TRIGGER_S
    return result


def expiry_of(rules: ExpiryRules = RULES) -> TopicExpiry:
    return TopicExpiry(rules, watch_gap_s=2 * TRIGGER_S)


def test_after_the_time_to_live_and_the_grace_and_one_trigger() -> None:
    # Read at 1,002 s: the triggers are at 1,002, 1,007, ...; its time is up at 1,102 and the grace at 1,132.
    expiry = expiry_of()
    assert ticks(expiry, {"a": LastReport(3, 0.0)}, 1_002.0, 1_200.0) == [1_137.0, 1_197.0]
    assert expiry.suspects == ["a"]


def test_a_report_in_the_grace_ends_it() -> None:
    expiry = expiry_of()
    assert ticks(expiry, {"a": LastReport(3, 0.0)}, 0.0, 125.0) == []
    assert expiry.suspects == ["a"]
    assert ticks(expiry, {"a": LastReport(9, 0.0)}, 130.0, 255.0) == []
    assert expiry.suspects == ["a"]
    assert ticks(expiry, {"a": LastReport(9, 0.0)}, 260.0, 270.0) == [265.0]


def test_after_a_start_nobody_is_buried_before_a_whole_grace() -> None:
    expiry = expiry_of()
    assert ticks(expiry, {"a": LastReport(3, 10_000.0)}, 7.0, 100.0) == [37.0, 97.0]


def test_what_the_log_proves_counts_until_the_end_was_reached_and_not_later() -> None:
    expiry = expiry_of()
    assert batch(expiry, 0.0, {"a": LastReport(3, 1.0)}, end=50, position=10) == {}, "there is more to read"
    batch(expiry, 5.0, {"a": LastReport(3, 90.0)}, end=50, position=50)
    assert expiry.suspects == []
    batch(expiry, 10.0, {"a": LastReport(3, 99_999.0)}, end=50, position=50)
    assert expiry.suspects == [], "a log whose clock jumps makes nobody older who is watched"
    batch(expiry, 16.0, {"a": LastReport(3, 99_999.0)}, end=50, position=50)
    assert expiry.suspects == ["a"]


def test_a_clock_that_jumps_right_behind_a_report_makes_it_no_older() -> None:
    """Another Kafka broker leads, an hour ahead: its first record lies in the same batch as a report."""
    expiry = expiry_of()
    assert ticks(expiry, {"a": LastReport(3, 0.0)}, 0.0, 50.0) == []
    held = {"a": LastReport(11, 3_600.0), "b": LastReport(12, 0.0)}
    expired_at_s = [now_s for now_s in range(55, 155, 5) if batch(expiry, float(now_s), held, end=13, position=13)]
    assert expired_at_s == [], "it is a hundred seconds old at most"


def test_nobody_is_judged_while_the_job_is_behind() -> None:
    expiry = expiry_of()
    held = {"a": LastReport(3, 5_000.0)}
    for number in range(100):
        assert batch(expiry, 5.0 * number, held, end=1_000_000, position=10 * number) == {}
    assert expiry.suspects == []
    assert batch(expiry, 500.0, held, end=1_000_000, position=1_000_000) == {}
    assert expiry.suspects == ["a"], "from here on the grace runs"


def test_where_records_come_all_the_time_the_end_of_the_batch_before_is_enough() -> None:
    def buried(late: int) -> list[float]:
        """Ten records in each batch, and some more that came since it was planned."""
        expiry = expiry_of()
        held = {"a": LastReport(1, 0.0)}
        return [
            5.0 * number
            for number in range(60)
            if batch(expiry, 5.0 * number, held, end=10 * number + late, position=10 * number)
        ]

    assert buried(0) == [135.0, 195.0, 255.0]
    assert buried(3) == [140.0, 200.0, 260.0], "as of 135, 195 and 255: one trigger later"
    assert buried(11) == [], "the job falls further and further behind"


def test_a_pause_is_no_grace() -> None:
    expiry = expiry_of()
    held = {"a": LastReport(3, 0.0)}
    assert ticks(expiry, held, 0.0, 105.0) == []
    assert expiry.suspects == ["a"]
    assert batch(expiry, 119.0, held) == {}, "14 s are more than usual: they count as two triggers"
    assert ticks(expiry, held, 124.0, 160.0) == [139.0]

    expiry = expiry_of()
    ticks(expiry, held, 0.0, 105.0)
    assert ticks(expiry, held, 405.0, 450.0) == [435.0], "after a long one the whole grace begins anew"


def test_on_a_slow_machine_long_gaps_are_usual() -> None:
    expiry = expiry_of()
    due_s = [now_s for now_s in range(0, 400, 40) if batch(expiry, float(now_s), {"a": LastReport(3, 0.0)})]
    assert due_s == [160, 240, 320], "its time was up at 100, the grace at 130; the next batches are at 160, ..."


def test_who_is_gone_is_forgotten() -> None:
    expiry = expiry_of()
    ticks(expiry, {"a": LastReport(3, 0.0)}, 0.0, 120.0)
    batch(expiry, 125.0, {})
    assert expiry.suspects == []
    assert ticks(expiry, {"a": LastReport(4, 0.0)}, 130.0, 150.0) == []


def test_the_tombstone_names_what_is_held_and_when_its_time_was_up() -> None:
    expiry = expiry_of()
    for now_s in range(0, 130, 5):
        batch(expiry, float(now_s), {"a": LastReport(3, 0.0)})
    assert batch(expiry, 135.0, {"a": LastReport(3, 0.0)}) == {"a": Tombstone("expired", 3, NOW_MS - 35_000)}


# --- a world in which the job is restarted, paused and slow at random ------------------------------------------------


@dataclass
class World:
    """Brokers that write, a log, and a job that reads it. All times are true ones; the twin looks at nothing else."""

    log: list[tuple[float, str]] = field(default_factory=list)
    job_clock_s: float = 5_000.0  # how far the job's own clock is from true time
    position: int = 0
    expiry: TopicExpiry = field(default_factory=expiry_of)
    started_s: float = 0.0

    def restart(self, now_s: float) -> None:
        self.expiry, self.started_s = expiry_of(), now_s

    def held(self) -> dict[str, LastReport]:
        read = self.log[: self.position]
        newest = {name: (offset, at_s) for offset, (at_s, name) in enumerate(read)}
        clock_s = read[-1][0] if read else 0.0
        return {name: LastReport(offset, clock_s - at_s) for name, (offset, at_s) in newest.items()}

    def batch(self, now_s: float, records_max: int, during: list[str]) -> dict[str, Tombstone]:
        planned = min(len(self.log), self.position + records_max)
        self.log += [(now_s, name) for name in during]  # they come between Spark's planning and the question
        self.expiry.asked(LoadTopicEnd(now_s + self.job_clock_s, len(self.log)))
        self.position = planned
        self.expiry.heard(self.held(), now_s + self.job_clock_s)
        return self.expiry.step(self.position, NOW_MS)


STEP = st.tuples(
    st.sampled_from([5.0] * 12 + [6.5, 9.0, 40.0, 300.0]),  # until the next trigger
    st.sampled_from([1_000] * 8 + [0, 1, 3]),  # offsets in a batch
    st.lists(st.sampled_from(["live", "often"]), max_size=2),  # who writes meanwhile
    st.sampled_from([False] * 15 + [True]),  # whether the job is started anew
)


@settings(max_examples=200, deadline=None)
@given(st.lists(STEP, max_size=80))
@example([(5.0, 1_000, ["often"], False)] * 60)
@example([(5.0, 1_000, [], False)] * 20 + [(300.0, 1_000, [], False)] + [(5.0, 1_000, [], False)] * 20)
def test_whoever_is_buried_was_silent_for_all_that_time(steps: list[tuple[float, int, list[str], bool]]) -> None:
    world = World(log=[(0.0, "dead"), (0.0, "live"), (0.0, "often")])
    now_s = 0.0
    for pause_s, records_max, during, restart in steps:
        now_s += pause_s
        if restart:
            world.restart(now_s)
        asked_before = [mark.at_s - world.job_clock_s for mark in world.expiry._marks]
        for name, tombstone in world.batch(now_s, records_max, during).items():
            as_of_s = (world.expiry.judged_s or 0.0) - world.job_clock_s
            assert as_of_s in (now_s, *asked_before[-1:])
            written = [offset for offset, (at_s, who) in enumerate(world.log) if who == name and at_s < as_of_s]
            assert tombstone.last_offset == written[-1], "it names the newest that was written by then"
            silent_s = as_of_s - world.log[written[-1]][0]
            assert silent_s >= RULES.ttl_s + RULES.grace_s - 0.001
            assert as_of_s - world.started_s >= RULES.grace_s - 0.001


@settings(max_examples=60, deadline=None)
@given(st.lists(st.lists(st.sampled_from(["live", "often"]), max_size=2), min_size=40, max_size=60), st.floats(0, 4.9))
def test_a_dead_one_is_buried_in_time(writing: list[list[str]], lag_s: float) -> None:
    """From its last report: TTL, grace, and two triggers; one more where records come while batches are under way."""
    world = World(log=[(0.0, "dead")])
    buried = [
        now_s
        for number, during in enumerate(writing)
        if "dead" in world.batch(now_s := lag_s + number * TRIGGER_S, 1_000, during)
    ]
    busy = any(writing)
    assert buried
    assert buried[0] <= RULES.ttl_s + RULES.grace_s + (3 if busy else 2) * TRIGGER_S
