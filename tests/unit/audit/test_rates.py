"""Rates of verdicts, and times of records, over logs whose every record is spelled out."""

import pytest

from statechannel.audit.log_times import LogTimes, VerdictRates, grouped
from statechannel.protocol.log import RecordRead, Topic
from statechannel.protocol.verdict import Verdict
from statechannel.protocol.view import Judgement

MINUTE = 60_000


def record(at_ms: int, partition: int = 0, offset: int = 0) -> RecordRead:
    return RecordRead(Topic.CHANNEL, partition, offset, at_ms, b"k", b"v")


def rates_of(*rows: tuple[int, Verdict], partition: int = 0) -> VerdictRates:
    rates = VerdictRates()
    for at_ms, verdict in rows:
        rates.observe(record(at_ms, partition), Judgement(verdict))
    return rates


def test_each_window_counts_its_own_minutes() -> None:
    at = 100 * MINUTE
    rows = [(at - age * MINUTE + 1_000, Verdict.ACCEPTED) for age in (1, 2, 5, 6, 15, 16)]
    result = rates_of(*sorted(rows)).per_minute(at)
    assert result == {"1m": {"accepted": 1.0}, "5m": {"accepted": 0.6}, "15m": {"accepted": 0.33}}


def test_rows_for_people_put_verdicts_together() -> None:
    every = [Verdict.STALE_VERSION, Verdict.WRONG_BASE, Verdict.CONTROL, Verdict.ASSERT_EQUAL, Verdict.DUPLICATE]
    rows = grouped(rates_of(*((1_000, item) for item in every)).per_minute(1_000))
    expected = {"accepted": 0, "rejected": 2, "duplicates": 1, "asserts": 1, "control records": 1}
    assert {name: row[0] for name, row in rows.items()} == expected


def test_partitions_that_are_read_one_after_the_other_count_alike() -> None:
    rates, both = rates_of(*((at, Verdict.ACCEPTED) for at in range(0, 30_000, 500))), VerdictRates()
    for partition in (0, 1):
        for at in range(partition * 250, 30_000, 1_000):
            both.observe(record(at, partition), Judgement(Verdict.ACCEPTED))
    assert rates.per_minute(30_000) == both.per_minute(30_000)


def test_what_is_older_than_a_quarter_of_an_hour_is_dropped() -> None:
    rates = rates_of(*((second * 1_000, Verdict.ACCEPTED) for second in range(10_000)))
    assert len(rates._seconds) <= 2 * 15 * 60
    assert rates.counts(15, 9_999_000)[Verdict.ACCEPTED] == 15 * 60


def test_times_are_exact_while_they_are_few() -> None:
    times = LogTimes()
    for offset in range(0, 100, 2):
        times.note(3, offset, 1_000 + offset)
    assert times.of(3, 42) == 1_042
    assert times.of(3, 43) == 1_042
    assert times.of(0, 42) is None


@pytest.mark.parametrize("records", [5_000, 50_000])
def test_of_many_times_the_young_ones_stay_exact_and_the_old_ones_near(records: int) -> None:
    times = LogTimes(kept_max=1_000)
    for offset in range(records):
        times.note(0, offset, offset * 10)
    held = times._of[0]
    assert len(held.recent) + len(held.old) <= 2 * 1_000
    for age in (0, 1, 100, 400):
        assert times.of(0, records - 1 - age) == (records - 1 - age) * 10
    for offset in (records // 2, records // 4, records // 50):
        result = times.of(0, offset)
        assert 0 <= offset * 10 - result <= 10 * 4 * records / 1_000


def test_a_record_from_the_future_ends_no_count_of_the_records_behind_it() -> None:
    at = 100 * MINUTE
    rows = [(at, Verdict.ACCEPTED), (at + 120 * MINUTE, Verdict.ACCEPTED), (at + 1_000, Verdict.ACCEPTED)]
    rates = rates_of(*rows)
    assert rates.newest_ms == at + 1_000
    rates.observe(record(at + 2_000), Judgement(Verdict.ACCEPTED))
    assert rates.per_minute(rates.newest_ms)["5m"]["accepted"] >= 3 / 5
