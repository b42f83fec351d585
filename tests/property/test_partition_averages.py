"""Averages of samples against a twin that keeps everything and counts with fractions; and tables by hand."""

import math
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loaddata.samples.averages import Averager, TooManySamplesError, Window
from loaddata.samples.partitions import PartitionLoad, PartitionSample
from tests.support.sample_averages import average

FIELDS = ("disk_bytes", "bytes_in_per_s", "bytes_out_per_s", "cpu_share")
LOADS = ("disk_bytes", "bytes_in_per_s", "bytes_out_per_s", "cpu_units")


def sample(topic: str, partition: int, at_ms: int, *figures: Any) -> PartitionSample:
    padded = [*figures, *[None] * (len(FIELDS) - len(figures))]
    return PartitionSample(
        cluster="",
        broker=1,
        host="",
        topic=topic,
        partition=partition,
        taken_at_ms=at_ms,
        **dict(zip(FIELDS, padded, strict=True)),
    )


def twin(
    samples: list[PartitionSample], window: Window, completeness_min: float
) -> dict[tuple[str, int], PartitionLoad]:
    """Each minute of each partition in a dictionary; means as fractions."""
    minutes: dict[tuple[str, int], dict[int, PartitionSample]] = {}
    for sample in samples:
        minute = sample.taken_at_ms // window.interval_ms
        if window.from_ms // window.interval_ms <= minute < math.ceil(Fraction(window.to_ms, window.interval_ms)):
            minutes.setdefault((sample.topic, sample.partition), {})[minute] = sample
    end = math.ceil(Fraction(window.to_ms, window.interval_ms))
    loads = {}
    for place, held in sorted(minutes.items()):
        began = [
            minute
            for (topic, _), other in minutes.items()
            if topic == place[0]
            for minute, item in other.items()
            if any(getattr(item, name) is not None for name in FIELDS)
        ]
        result, parts = {}, []
        for name, load in zip(FIELDS, LOADS, strict=True):
            figures = [getattr(item, name) for item in held.values() if getattr(item, name) is not None]
            if figures:
                if name == "cpu_share":
                    wholes = [Fraction(round(figure * 10**9), 1_000) for figure in figures]
                elif name == "disk_bytes":
                    wholes = [Fraction(figure) for figure in figures]
                else:
                    wholes = [Fraction(round(figure * 1_000), 1_000) for figure in figures]
                result[load] = math.floor(sum(wholes) / len(wholes) + Fraction(1, 2))
                parts.append(len(figures) / (end - min(began)))
        if result and min(parts) >= completeness_min:
            loads[place] = PartitionLoad(**result, completeness=min(parts))
    return loads


rates = st.none() | st.floats(0, 1e12) | st.integers(0, 10**6)
samples = st.builds(
    sample,
    st.sampled_from(["a", "b"]),
    st.integers(0, 2),
    st.integers(0, 1_300),
    st.none() | st.integers(0, 2**53 - 1),
    rates,
    rates,
    st.none() | st.floats(0, 1),
)


@given(
    st.lists(samples, max_size=40),
    st.integers(0, 600),
    st.integers(1, 700),
    st.sampled_from([1, 7, 100, 250]),
    st.sampled_from([0.0, 0.3, 1.0]),
)
def test_as_the_twin(
    drawn: list[PartitionSample], from_ms: int, length_ms: int, interval_ms: int, least: float
) -> None:
    window = Window(from_ms, from_ms + length_ms, interval_ms)
    loads = average(
        drawn, from_ms=window.from_ms, to_ms=window.to_ms, interval_s=interval_ms / 1_000, completeness_min=least
    )
    assert dict(loads.of) == twin(drawn, window, least)
    assert list(loads.of) == sorted(loads.of)
    assert (loads.from_ms, loads.to_ms) == (window.from_ms, window.to_ms)


@given(st.lists(samples, max_size=30), st.randoms(use_true_random=False))
def test_the_order_of_partitions_and_closing_parts_change_nothing(drawn: list[PartitionSample], random: Any) -> None:
    window = Window(0, 1_300, 100)
    whole, parts = Averager(window), Averager(window)
    for item in drawn:
        whole.add(item)
    places = sorted({(item.topic, item.partition) for item in drawn})
    random.shuffle(places)
    for place in places:
        for item in drawn:
            if (item.topic, item.partition) == place:
                parts.add(item)
        parts.close_part()
    assert parts.loads() == whole.loads()


def test_by_hand() -> None:
    """Four minutes; partition 0 has all of them, 1 lacks two and says its first twice, topic b begins in the third."""
    minute = 60_000
    results = [
        sample("a", 0, 0, 100, 10.0, 4.0, 0.5),
        sample("a", 0, minute, 200, 20.0, 4.0, 0.25),
        sample("a", 0, 2 * minute, 300, 30.5, 5.0, 0.25),
        sample("a", 0, 3 * minute, 400, 40.0, None, 0.0),
        sample("a", 1, 1, 1, 1_000.0),
        sample("a", 1, 59_999, 10, 1.0),
        sample("a", 1, 2 * minute, 21, 2.0),
        sample("b", 0, 2 * minute, 5),
        sample("b", 0, 3 * minute, 7),
        sample("b", 0, 4 * minute, 1_000_000),  # behind the window
    ]
    loads = average(results, from_ms=0, to_ms=4 * minute, interval_s=60)
    assert dict(loads.of) == {
        # 1000 / 4; 100.5 / 4 = 25.125; 13 / 3 = 4.33; 1.0 / 4 of a million
        ("a", 0): PartitionLoad(
            disk_bytes=250, bytes_in_per_s=25, bytes_out_per_s=4, cpu_units=250_000, completeness=0.75
        ),
        ("a", 1): PartitionLoad(disk_bytes=16, bytes_in_per_s=2, completeness=0.5),  # 15.5 and 1.5, upwards
        ("b", 0): PartitionLoad(disk_bytes=6, completeness=1.0),
    }
    assert set(average(results, from_ms=0, to_ms=4 * minute, interval_s=60, completeness_min=0.75).of) == {
        ("a", 0),
        ("b", 0),
    }


def test_until_now_counts_the_minute_under_way() -> None:
    window = Window.until(10 * 60_000 + 5, window_s=180, interval_s=60)
    assert (window.from_ms, window.to_ms, window.slots) == (8 * 60_000, 11 * 60_000, 3)
    assert [window.slot(at) for at in (8 * 60_000 - 1, 8 * 60_000, 11 * 60_000 - 1, 11 * 60_000)] == [None, 0, 2, None]


def test_what_is_held_is_bounded() -> None:
    window = Window(0, 1_000, 100)
    averager = Averager(window, held_bytes_max=2 * 10 * 4 * 8)
    averager.add(sample("a", 0, 0, 1))
    averager.add(sample("a", 1, 0, 1))
    with pytest.raises(TooManySamplesError, match="more than 2 partitions") as caught:
        averager.add(sample("a", 2, 0, 1))
    assert "partition-loads" in caught.value.hint
    averager.close_part()
    averager.add(sample("a", 2, 0, 1))
    assert len(averager.loads().of) == 3
