"""Load that is made up: for the demo and for tests. The same seed gives the same load, on whatever broker a bundle lies.

A bundle's load is a function of the seed, its name and the time, so that it moves with the bundle. A few bundles are heavy and
most are light, as in practice; all follow a wave, and a little noise that changes every few seconds.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from loaddata.broker_update import HostUsage, Traffic
from loaddata.bundle_load import BundleStats
from loaddata.source import LoadSource, MeasuredBundle, TopicRates
from loaddata.usage import ResourceUsage

_CORE: Final = 100.0
_MEMORY_MIB: Final = 4_096.0
_RANGE: Final = 2**32


@dataclass(frozen=True, slots=True)
class LoadProfile:
    """What is made up.

    Attributes:
        msg_rate: Messages a second, in, of the lightest bundles.
        heavy: The heaviest have about this many times as much.
        shape: Larger: fewer heavy ones.
        msg_size_bytes: Size of a message.
        fan_out: Messages sent for each received.
        wave: Height of the wave, 0 to 1; `wave_s`: its length.
        noise: Height of the noise, 0 to 1; `noise_s`: how long it stays the same.
        topics_max: Topics of a bundle: 1 to so many.
    """

    msg_rate: float = 200.0
    heavy: float = 50.0
    shape: float = 5.0
    msg_size_bytes: float = 1_024.0
    fan_out: float = 1.5
    wave: float = 0.2
    wave_s: float = 300.0
    noise: float = 0.05
    noise_s: float = 10.0
    topics_max: int = 20


@dataclass(slots=True)
class SimulatedSource:
    """See the module.

    Attributes:
        serving: Bundles that the broker serves now.
        now_s: A clock that all brokers share, such as wall time in seconds, so that they agree on a bundle's load.
        factors: By bundle: its load is multiplied by this, to heat it up or to silence it.
    """

    seed: int
    serving: Callable[[], Iterable[str]]
    now_s: Callable[[], float]
    profile: LoadProfile = field(default_factory=LoadProfile)
    factors: dict[str, float] = field(default_factory=dict)

    def bundles(self) -> Mapping[str, MeasuredBundle]:
        """See `LoadSource.bundles`."""
        now_s = self.now_s()
        return {name: MeasuredBundle(self.stats(name, now_s)) for name in sorted(self.serving())}

    def topics(self, bundle: str) -> Sequence[TopicRates]:
        """See `LoadSource.topics`."""
        if bundle not in set(self.serving()):
            return ()
        stats = self.stats(bundle, self.now_s())
        parts = [0.2 + self._draw("topic", bundle, str(number)) for number in range(stats.topics)]
        namespace = bundle.rpartition("/")[0]
        whole = math.fsum(parts)
        return [
            TopicRates(
                f"persistent://{namespace}/t-{bundle.rpartition('/')[2]}-{number}",
                stats.msg_rate_in * part / whole,
                stats.msg_rate_out * part / whole,
                stats.msg_throughput_in * part / whole,
                stats.msg_throughput_out * part / whole,
            )
            for number, part in enumerate(parts)
        ]

    def stats(self, bundle: str, now_s: float) -> BundleStats:
        """What a bundle does at a time."""
        profile = self.profile
        weight = 1 + (profile.heavy - 1) * self._draw("weight", bundle) ** profile.shape
        phase = self._draw("phase", bundle)
        wave = 1 + profile.wave * math.sin(2 * math.pi * (now_s / profile.wave_s + phase))
        slot = math.floor(now_s / profile.noise_s)
        noise = 1 + profile.noise * (2 * self._draw("noise", bundle, str(slot)) - 1)
        rate = profile.msg_rate * weight * wave * noise * self.factors.get(bundle, 1.0)
        topics = 1 + int(self._draw("topics", bundle) * profile.topics_max)
        return BundleStats(
            msg_rate_in=rate,
            msg_rate_out=rate * profile.fan_out,
            msg_throughput_in=rate * profile.msg_size_bytes,
            msg_throughput_out=rate * profile.fan_out * profile.msg_size_bytes,
            topics=topics,
            consumers=2 * topics,
            producers=topics,
            cache_size_bytes=int(rate * profile.msg_size_bytes),
        )

    def _draw(self, *what: str) -> float:
        """A number from 0 to 1 that depends on nothing but the seed and the words."""
        digest = hashlib.blake2b("\0".join((str(self.seed), *what)).encode(), digest_size=4).digest()
        return int.from_bytes(digest) / _RANGE


@dataclass(frozen=True, slots=True)
class SimulatedHost:
    """Usage that follows from the bundles' traffic: what a machine of a given size would show.

    Attributes:
        msg_rate_max: Messages a second, in and out together, at which its CPU is full.
        bandwidth_kbit: Of its network, in each direction.
        idle_percent: CPU that is used without any traffic, in percent.
    """

    source: LoadSource
    msg_rate_max: float = 100_000.0
    bandwidth_kbit: float = 1e6
    cores: float = 4.0
    idle_percent: float = 3.0

    def read(self, now_s: float) -> HostUsage:  # noqa: ARG002 - the port's
        """See `loaddata.source.HostSource.read`."""
        traffic = Traffic.of(one.stats for one in self.source.bundles().values())
        busy = (traffic.msg_rate_in + traffic.msg_rate_out) / self.msg_rate_max
        percent = min(100.0, self.idle_percent + (100 - self.idle_percent) * busy)
        limit = _CORE * self.cores
        return HostUsage(
            cpu=ResourceUsage(limit * percent / 100, limit),
            memory=ResourceUsage(_MEMORY_MIB * min(0.9, 0.2 + busy / 2), _MEMORY_MIB),
            bandwidth_in=ResourceUsage(traffic.msg_throughput_in * 8 / 1e3, self.bandwidth_kbit),
            bandwidth_out=ResourceUsage(traffic.msg_throughput_out * 8 / 1e3, self.bandwidth_kbit),
        )
