"""Made-up load: the same by seed and time on whatever broker, heavy-tailed, and sound."""

import itertools
import statistics

import pytest

from loaddata.averages import is_sound
from loaddata.broker_update import is_sound_usage
from loaddata.simulated import LoadProfile, SimulatedHost, SimulatedSource
from statechannel.core.bundle import split_topic

BUNDLES = [f"t/n{number}/0x00000000_0xffffffff" for number in range(300)]


def source(seed: int = 1, bundles: list[str] = BUNDLES, now_s: float = 1_000.0, **more: float) -> SimulatedSource:
    return SimulatedSource(seed, lambda: bundles, lambda: now_s, LoadProfile(**more))  # type: ignore[arg-type]


def test_the_same_by_seed_whoever_serves_it() -> None:
    assert source().bundles() == source().bundles()
    assert source(bundles=BUNDLES[:1]).bundles()[BUNDLES[0]] == source().bundles()[BUNDLES[0]]
    assert source().bundles() != source(seed=2).bundles()
    assert source(bundles=list(reversed(BUNDLES))).bundles() == source().bundles()


def test_this_very_figure() -> None:
    """Not a chance of the hash seed or of the version: it was computed once and must stay."""
    stats = source(noise=0.0, wave=0.0).stats(BUNDLES[0], 0.0)
    assert stats.msg_throughput_in == stats.msg_rate_in * 1_024
    assert stats.msg_rate_out == stats.msg_rate_in * 1.5
    assert stats.msg_rate_in == pytest.approx(3409.6215844940543)


def test_a_few_are_heavy_and_all_are_sound() -> None:
    found = [one.stats for one in source().bundles().values()]
    assert all(map(is_sound, found))
    rates = [one.msg_rate_in for one in found]
    assert max(rates) > 10 * statistics.median(rates)
    assert min(rates) > 100


def test_it_changes_with_time_but_not_much() -> None:
    quiet = source(noise=0.0)
    rates = [quiet.stats(BUNDLES[0], float(now_s)).msg_rate_in for now_s in range(300)]
    assert max(rates) / min(rates) == pytest.approx(1.2 / 0.8, rel=0.01)
    assert all(abs(after / before - 1) < 0.01 for before, after in itertools.pairwise(rates))


def test_heat() -> None:
    hot = source()
    cold = hot.stats(BUNDLES[0], 0.0).msg_rate_in
    hot.factors[BUNDLES[0]] = 10.0
    assert hot.stats(BUNDLES[0], 0.0).msg_rate_in == pytest.approx(10 * cold)


def test_topics_add_up_to_their_bundle() -> None:
    made = source()
    for bundle in BUNDLES[:20]:
        topics, stats = made.topics(bundle), made.bundles()[bundle].stats
        assert len(topics) == stats.topics == len({one.name for one in topics})
        assert sum(one.msg_rate_in for one in topics) == pytest.approx(stats.msg_rate_in)
        assert sum(one.msg_throughput_out for one in topics) == pytest.approx(stats.msg_throughput_out)
        assert all(split_topic(one.name) == (bundle.rpartition("/")[0], one.name) for one in topics)
    assert made.topics("t/elsewhere/0x00000000_0xffffffff") == ()


def test_the_host_follows_the_traffic() -> None:
    idle = SimulatedHost(source(bundles=[])).read(0.0)
    assert idle.cpu.percent == pytest.approx(3.0)
    some, all_ = SimulatedHost(source(bundles=BUNDLES[:5])).read(0.0), SimulatedHost(source()).read(0.0)
    assert idle.cpu.percent < some.cpu.percent < all_.cpu.percent <= 100
    assert idle.bandwidth_in.percent == 0 < some.bandwidth_in.percent
    assert all(is_sound_usage(one) for one in all_)
