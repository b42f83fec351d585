"""Made-up load: the same by seed and time on whatever broker, heavy-tailed, and sound."""

import itertools
import statistics

import pytest

from loaddata.measure.synthetic import SimulatedHost, SimulatedSettings, SimulatedSource
from loaddata.model.broker_load import is_sound_usage
from loaddata.model.bundle_load import is_sound
from statechannel.protocol.bundle import bundle_key, namespace_bounds, parse_key, split_topic, topic_hash

BOUNDS = namespace_bounds(64)
BUNDLES = [bundle_key("t/n", *pair) for pair in itertools.pairwise(BOUNDS)]
WHOLE = "t/n/0x00000000_0xffffffff"


def source(seed: int = 1, bundles: list[str] = BUNDLES, now_s: float = 1_000.0, **more: float) -> SimulatedSource:
    return SimulatedSource(seed, lambda: bundles, lambda: now_s, SimulatedSettings(**more))  # type: ignore[arg-type]


def test_the_same_by_seed_whoever_serves_it() -> None:
    assert source().bundles() == source().bundles()
    assert source(bundles=BUNDLES[:1]).bundles()[BUNDLES[0]] == source().bundles()[BUNDLES[0]]
    assert source().bundles() != source(seed=2).bundles()
    assert source(bundles=list(reversed(BUNDLES))).bundles() == source().bundles()


def test_this_very_figure() -> None:
    """Not a chance of the hash seed or of the version: it was computed once and must stay."""
    stats = source(noise=0.0, wave=0.0).stats(WHOLE, 0.0)
    assert stats.topics == 200
    assert stats.msg_throughput_in == pytest.approx(stats.msg_rate_in * 1_024)
    assert stats.msg_rate_out == pytest.approx(stats.msg_rate_in * 1.5)
    assert stats.msg_rate_in == pytest.approx(47095.448052214015)


def test_parts_of_a_bundle_have_its_load() -> None:
    """A split takes nothing away and adds nothing."""
    result = source()
    whole, parts = result.stats(WHOLE, 7.0), [result.stats(bundle, 7.0) for bundle in BUNDLES]
    assert sum(part.topics for part in parts) == whole.topics
    assert sum(part.msg_rate_in for part in parts) == pytest.approx(whole.msg_rate_in)
    assert sum(part.msg_throughput_out for part in parts) == pytest.approx(whole.msg_throughput_out)


def test_a_few_topics_are_heavy_and_all_bundles_are_sound() -> None:
    result = source(bundles=[WHOLE])
    rates = [topic.msg_rate_in for topic in result.topics(WHOLE)]
    assert max(rates) > 10 * statistics.median(rates)
    assert min(rates) > 10
    assert all(is_sound(bundle.stats) for bundle in source().bundles().values())


def test_it_changes_with_time_but_not_much() -> None:
    quiet = source(noise=0.0)
    rates = [quiet.stats(WHOLE, float(now_s)).msg_rate_in for now_s in range(300)]
    assert max(rates) / min(rates) == pytest.approx(1.2 / 0.8, rel=0.01)
    assert all(abs(after / before - 1) < 0.01 for before, after in itertools.pairwise(rates))


def test_heat() -> None:
    hot = source(bundles=[WHOLE])
    topic = hot.topics(WHOLE)[0]
    hot.factors[topic.name] = 10.0
    assert hot.topics(WHOLE)[0].msg_rate_in == pytest.approx(10 * topic.msg_rate_in)


def test_a_namespace_heats_up_from_a_time_on_and_nothing_else_does() -> None:
    hot = SimulatedSettings(hot_namespace="t/n", hot_factor=4.0, hot_from_s=1_000.0)
    both = [WHOLE, WHOLE.replace("t/n/", "t/nn/")]
    cold = SimulatedSettings()

    def rates(settings: SimulatedSettings, now_s: float) -> list[float]:
        source, _ = settings.source(1, lambda: both, lambda: now_s)
        return [source.bundles()[name].stats.msg_rate_in for name in both]

    assert rates(hot, 999.9) == rates(cold, 999.9)
    (before, beside), (after, still) = rates(cold, 1_000.0), rates(hot, 1_000.0)
    assert after == pytest.approx(4 * before)
    assert still == beside


def test_settings_of_what_is_made_up() -> None:
    usual, _ = SimulatedSettings().source(1, lambda: BUNDLES, lambda: 1_000.0)
    assert usual.bundles() == source().bundles()
    few, host = SimulatedSettings(topics=10, msg_rate=5.0, heavy=2.0, wave=0.0, noise=0.0, msg_rate_max=1_000).source(
        1, lambda: [WHOLE], lambda: 0.0
    )
    rates = [item.msg_rate_in for item in few.topics(WHOLE)]
    assert len(rates) == 10
    assert all(5.0 <= rate <= 10.0 for rate in rates)
    assert host.read(0.0).cpu.percent == pytest.approx(3 + 97 * 2.5 * sum(rates) / 1_000)
    with pytest.raises(ValueError, match="hot_namespace"):
        SimulatedSettings(hot_from_s=5.0)


def test_topics_lie_in_their_bundle_and_add_up_to_it() -> None:
    result = source()
    for bundle in BUNDLES[:20]:
        topics, stats, parts = result.topics(bundle), result.bundles()[bundle].stats, parse_key(bundle.encode())
        assert len(topics) == stats.topics == len({topic.name for topic in topics})
        assert sum(topic.msg_rate_in for topic in topics) == pytest.approx(stats.msg_rate_in)
        assert all(split_topic(topic.name) == ("t/n", topic.name) for topic in topics)
        assert all(parts.lower <= topic_hash(topic.name) <= parts.upper for topic in topics)
    assert result.topics("t/elsewhere/0x00000000_0xffffffff") == ()
    assert result.stats("no bundle", 0.0).topics == 0


def test_the_host_follows_the_traffic() -> None:
    idle = SimulatedHost(source(bundles=[])).read(0.0)
    assert idle.cpu.percent == pytest.approx(3.0)
    some, all_ = SimulatedHost(source(bundles=BUNDLES[:5])).read(0.0), SimulatedHost(source()).read(0.0)
    assert idle.cpu.percent < some.cpu.percent < all_.cpu.percent <= 100
    assert idle.bandwidth_in.percent == 0 < some.bandwidth_in.percent
    assert all(is_sound_usage(process) for process in all_)
