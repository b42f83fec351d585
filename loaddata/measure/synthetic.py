"""Synthetic load for the demo and for tests. The same seed gives the same load, on whichever broker a bundle is.

Topics have the load, bundles the sum of their topics: a topic's is a function of the seed, its name and the time, so that it
moves with the bundle, and falls to one part when the bundle is split. A few topics are heavy and most are light, as in
practice; all follow a wave, and a little noise that changes every few seconds.
"""

from __future__ import annotations

import hashlib
import math
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple, Self

from pydantic import model_validator

from loaddata.model.broker_load import BrokerTraffic, HostUsage, ResourceUsage
from loaddata.model.bundle_load import BundleStats
from loaddata.source import LoadSource, MeasuredBundle, TopicRates
from statechannel.protocol.bundle import FULL_UPPER, parse_key, topic_hash
from statechannel.settings.field import SettingsGroup, setting

_CORE: Final = 100.0
_RANGE: Final = 2**32


_SHAPE = 8.0
"""Exponent of the topics' rates: the larger, the fewer heavy ones."""
_MSG_SIZE_BYTES = 1_024.0
_FAN_OUT = 1.5
"""Messages sent for each received."""
_WAVE_S = 300.0
_NOISE_S = 10.0
"""How long the noise stays the same."""


@dataclass(frozen=True, slots=True)
class HotSpot:
    """Increased load of one namespace's topics from a time on: a launch, a campaign.

    Attributes:
        factor: Their load is multiplied by this.
        from_s: By the clock of the source.
    """

    namespace: str
    factor: float
    from_s: float

    def factor_of(self, topic: str, now_s: float) -> float:
        inside = now_s >= self.from_s and topic.startswith(f"persistent://{self.namespace}/")
        return self.factor if inside else 1.0


class _Topic(NamedTuple):
    position: int
    name: str
    rate: float
    phase: float


@dataclass(slots=True)
class SimulatedSource:
    """The synthetic source of a broker's bundles.

    Attributes:
        now_s: A clock that all brokers share, such as wall time in seconds, so that they agree on a topic's load.
        factors: By topic's full name: its load is multiplied by this, to heat it up or to silence it.
        hot: A namespace that heats up; None: none does.
    """

    seed: int
    serving: Callable[[], Iterable[str]]
    now_s: Callable[[], float]
    settings: SimulatedSettings
    factors: dict[str, float] = field(default_factory=dict)
    hot: HotSpot | None = None
    _namespaces: dict[str, list[_Topic]] = field(default_factory=dict)

    def bundles(self) -> Mapping[str, MeasuredBundle]:
        now_s = self.now_s()
        return {name: MeasuredBundle(self.stats(name, now_s)) for name in sorted(self.serving())}

    def topics(self, bundle: str) -> Sequence[TopicRates]:
        if bundle not in set(self.serving()):
            return ()
        now_s = self.now_s()
        return [self._rates(topic, now_s) for topic in self._topics_of(bundle)]

    def stats(self, bundle: str, now_s: float) -> BundleStats:
        topics = [self._rates(topic, now_s) for topic in self._topics_of(bundle)]
        throughput_in = math.fsum(topic.msg_throughput_in for topic in topics)
        return BundleStats(
            msg_rate_in=math.fsum(topic.msg_rate_in for topic in topics),
            msg_rate_out=math.fsum(topic.msg_rate_out for topic in topics),
            msg_throughput_in=throughput_in,
            msg_throughput_out=math.fsum(topic.msg_throughput_out for topic in topics),
            topics=len(topics),
            consumers=2 * len(topics),
            producers=len(topics),
            cache_size_bytes=int(throughput_in),
        )

    def _rates(self, topic: _Topic, now_s: float) -> TopicRates:
        settings = self.settings
        wave = 1 + settings.wave * math.sin(2 * math.pi * (now_s / _WAVE_S + topic.phase))
        slot = math.floor(now_s / _NOISE_S)
        noise = 1 + settings.noise * (2 * self._draw("noise", topic.name, str(slot)) - 1)
        rate = topic.rate * wave * noise * self.factors.get(topic.name, 1.0)
        if self.hot is not None:
            rate *= self.hot.factor_of(topic.name, now_s)
        throughput = rate * _MSG_SIZE_BYTES
        return TopicRates(topic.name, rate, rate * _FAN_OUT, throughput, rate * _FAN_OUT * _MSG_SIZE_BYTES)

    def _topics_of(self, bundle: str) -> Sequence[_Topic]:
        parts = parse_key(bundle.encode())
        if parts is None or parts.is_namespace:
            return ()
        topics = self._namespaces.get(parts.namespace)
        if topics is None:
            topics = self._namespaces[parts.namespace] = self._make_topics(parts.namespace)
        last = parts.upper if parts.upper == FULL_UPPER else parts.upper - 1
        return topics[bisect_left(topics, (parts.lower,)) : bisect_right(topics, last, key=_position)]

    def _make_topics(self, namespace: str) -> list[_Topic]:
        settings = self.settings
        topics = []
        for number in range(settings.topics):
            name = f"persistent://{namespace}/t-{number}"
            rate = settings.msg_rate * (1 + (settings.heavy - 1) * self._draw("weight", name) ** _SHAPE)
            topics.append(_Topic(topic_hash(name), name, rate, self._draw("phase", namespace)))
        return sorted(topics)

    def _draw(self, *what: str) -> float:
        """A number from 0 to 1 that depends only on the seed and the words."""
        digest = hashlib.blake2b("\0".join((str(self.seed), *what)).encode(), digest_size=4).digest()
        return int.from_bytes(digest) / _RANGE


def _position(topic: _Topic) -> int:
    return topic.position


@dataclass(frozen=True, slots=True)
class SimulatedHost:
    """Host usage derived from the bundles' traffic, for a machine of a given size.

    Attributes:
        msg_rate_max: Messages a second, in and out together, at which its CPU is full.
        idle_percent: CPU that is used without any traffic, in percent.
    """

    source: LoadSource
    msg_rate_max: float = 100_000.0
    bandwidth_kbit: float = 1e6
    cores: float = 4.0
    memory_mib: float = 4_096.0
    idle_percent: float = 3.0

    def read(self, now_s: float) -> HostUsage:  # noqa: ARG002 - the port's
        traffic = BrokerTraffic.of(bundle.stats for bundle in self.source.bundles().values())
        busy = traffic.msg_rate / self.msg_rate_max
        percent = min(100.0, self.idle_percent + (100 - self.idle_percent) * busy)
        limit = _CORE * self.cores
        return HostUsage(
            cpu=ResourceUsage(limit * percent / 100, limit),
            memory=ResourceUsage(self.memory_mib * min(0.9, 0.2 + busy / 2), self.memory_mib),
            bandwidth_in=ResourceUsage(traffic.msg_throughput_in * 8 / 1e3, self.bandwidth_kbit),
            bandwidth_out=ResourceUsage(traffic.msg_throughput_out * 8 / 1e3, self.bandwidth_kbit),
        )


class SimulatedSettings(SettingsGroup):
    """Synthetic load, if `source` is `simulated`: the same on all brokers, so that a bundle's load moves with it."""

    topics: int = setting(200, "Topics of each namespace: enough for a few dozen bundles.", ge=1, le=100_000)
    msg_rate: float = setting(20.0, "Messages a second that the lightest topics receive.", ge=0, le=1_000_000)
    heavy: float = setting(
        100.0,
        "Rate of the heaviest topics, as a multiple of the lightest: a few are heavy, as in practice.",
        ge=1,
        le=1e6,
    )
    wave: float = setting(0.2, "Amplitude of the wave that all topics follow, in parts of their rate.", ge=0, le=1)
    noise: float = setting(0.05, "Amplitude of the noise, likewise.", ge=0, le=1)
    msg_rate_max: float = setting(
        100_000.0,
        "Messages a second, received and sent together, at which the machine of a broker is full: with the default topics three "
        "brokers are at 40 %.",
        gt=0,
        le=1e9,
    )
    hot_namespace: str | None = setting(None, "Namespace with increased load: a launch, a campaign. None: none.")
    hot_factor: float = setting(3.0, "The load of its topics is multiplied by this.", ge=0, le=1_000)
    hot_from_s: float = setting(
        0.0, "Start of the increased load, by the log's clock, in seconds since 1970, the same for all brokers.", ge=0
    )

    @model_validator(mode="after")
    def _has_load(self) -> Self:
        if self.hot_namespace is None and self.hot_from_s:
            raise ValueError("hot_from_s needs a namespace: set hot_namespace")
        return self

    def source(
        self, seed: int, serving: Callable[[], Iterable[str]], now_s: Callable[[], float]
    ) -> tuple[SimulatedSource, SimulatedHost]:
        """The synthetic sources of the bundles' load, and of the host's.

        Args:
            now_s: A clock that all brokers share, in seconds since 1970.
        """
        bundles = SimulatedSource(seed, serving, now_s, self, hot=self.hot_spot())
        return bundles, SimulatedHost(bundles, msg_rate_max=self.msg_rate_max)

    def hot_spot(self) -> HotSpot | None:
        if self.hot_namespace is None:
            return None
        return HotSpot(self.hot_namespace, self.hot_factor, self.hot_from_s)
