"""Load of one broker, as it reports it (PIP-192 `BrokerLoadData`), and its update from readings of its host and bundles. Pure."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from struct import Struct
from typing import Final, NamedTuple

from loaddata.model.bundle_load import BundleStats, TrafficRates, is_sound
from loaddata.model.figures import is_figure

_SINGLE = Struct("<f")


def single(value: float) -> float:
    """The value rounded to single precision, in which upstream computes percentages."""
    try:
        return float(_SINGLE.unpack(_SINGLE.pack(value))[0])
    except OverflowError:
        return math.inf if value > 0 else -math.inf


@dataclass(frozen=True, slots=True)
class ResourceUsage:
    """How much of a resource is used.

    Attributes:
        usage: In the resource's own unit (CPU: percent of one core, memory: MiB, bandwidth: kbit/s).
        limit: The most there is, in the same unit; 0 where it is not known.
    """

    usage: float = 0.0
    limit: float = 0.0

    @property
    def percent(self) -> float:
        """Usage in percent of the limit, in single precision as upstream; 0 without a limit; may exceed 100."""
        if not self.limit > 0:
            return 0.0
        limit = single(self.limit)
        if limit == 0:  # too small for single precision, where Java divides by zero without a word
            return math.inf if self.usage > 0 else 0.0
        return single(single(single(self.usage) / limit) * 100)


UNKNOWN_IS_FULL = 1.0


class ResourceWeights(NamedTuple):
    """Weights of the resources in the weighted maximum; upstream's defaults leave memory out."""

    cpu: float = 1.0
    memory: float = 0.0
    direct_memory: float = 0.0
    bandwidth_in: float = 1.0
    bandwidth_out: float = 1.0


@dataclass(frozen=True, slots=True)
class BrokerLoad:
    """One report of a broker.

    Attributes:
        msg_rate_in: Messages a second, received; `_out` sent.
        msg_throughput_in: Bytes a second, received; `_out` sent.
        bundles: Bundles that it owns; `topics` in them.
        max_resource_usage: Largest of CPU, direct memory and bandwidths, 0 to 1 (and more); unweighted, at this moment.
        weighted_max_ema: Moving average of the weighted maximum; 1 ("unknown is full") before the first update.
        msg_throughput_ema: Moving average of the bytes a second in both directions.
        peak_usage: Highest usage of CPU or a bandwidth in the last ten minutes, 0 to 1 (and more); 0 before the first five.
        peak_share: Part of the samples of that time that are at it: load varies, so that a large part shows that something
            limits the broker.
        updated_at_ms: Wall time of the measurement on the broker; 0 before the first.
        reported_at_ms: Wall time of the report on the broker.
    """

    cpu: ResourceUsage = field(default_factory=ResourceUsage)
    memory: ResourceUsage = field(default_factory=ResourceUsage)
    direct_memory: ResourceUsage = field(default_factory=ResourceUsage)
    bandwidth_in: ResourceUsage = field(default_factory=ResourceUsage)
    bandwidth_out: ResourceUsage = field(default_factory=ResourceUsage)
    msg_rate_in: float = 0.0
    msg_rate_out: float = 0.0
    msg_throughput_in: float = 0.0
    msg_throughput_out: float = 0.0
    bundles: int = 0
    topics: int = 0
    max_resource_usage: float = UNKNOWN_IS_FULL
    weighted_max_ema: float = UNKNOWN_IS_FULL
    msg_throughput_ema: float = 0.0
    peak_usage: float = 0.0
    peak_share: float = 0.0
    updated_at_ms: int = 0
    reported_at_ms: int = 0

    @property
    def msg_rate(self) -> float:
        """Messages a second in both directions."""
        return self.msg_rate_in + self.msg_rate_out

    @property
    def msg_throughput(self) -> float:
        """Bytes a second in both directions."""
        return self.msg_throughput_in + self.msg_throughput_out

    @property
    def usage_without_memory(self) -> float:
        """Largest usage of CPU and the bandwidths, 0 to 1 (and more): memory of either kind fills, and stays full."""
        return max(self.cpu.percent, self.bandwidth_in.percent, self.bandwidth_out.percent) / 100

    def weighted_max(self, weights: ResourceWeights) -> float:
        """Largest weighted usage, 0 to 1 (and more) (upstream `getMaxResourceUsageWithWeight`)."""
        return (
            max(
                self.cpu.percent * weights.cpu,
                self.memory.percent * weights.memory,
                self.direct_memory.percent * weights.direct_memory,
                self.bandwidth_in.percent * weights.bandwidth_in,
                self.bandwidth_out.percent * weights.bandwidth_out,
            )
            / 100
        )


PEAK_SAMPLES: Final = 120
PEAK_SAMPLES_MIN: Final = 60
AT_PEAK: Final = 0.005
"""A sample this close below the highest, as a part of it, is at the peak: what limits a broker does not do so to the last bit."""


@dataclass(slots=True)
class PeakWindow:
    """The last samples of `BrokerLoad.usage_without_memory`."""

    samples: deque[float] = field(default_factory=lambda: deque(maxlen=PEAK_SAMPLES))

    def added(self, load: BrokerLoad, samples: int) -> BrokerLoad:
        """The load with the peak of the last samples, of which it is the newest.

        Args:
            samples: How many samples it is (`SampleClock.due`).
        """
        self.samples.extend([load.usage_without_memory] * samples)
        highest = max(self.samples, default=0.0)
        if len(self.samples) < PEAK_SAMPLES_MIN or not 0 < highest < math.inf:
            return replace(load, peak_usage=0.0, peak_share=0.0)
        at_peak = sum(sample >= highest * (1 - AT_PEAK) for sample in self.samples)
        return replace(load, peak_usage=highest, peak_share=at_peak / len(self.samples))


class HostUsage(NamedTuple):
    """Present usage of the machine, or of the part that the broker may use (upstream `SystemResourceUsage`).

    CPU in percent of one core, memory in MiB, bandwidth in kbit/s. `direct_memory` is what an embedder counts apart, such as
    buffers outside its heap; nothing measures it here.
    """

    cpu: ResourceUsage = ResourceUsage()
    memory: ResourceUsage = ResourceUsage()
    direct_memory: ResourceUsage = ResourceUsage()
    bandwidth_in: ResourceUsage = ResourceUsage()
    bandwidth_out: ResourceUsage = ResourceUsage()


@dataclass(frozen=True, slots=True)
class BrokerTraffic(TrafficRates):
    """Sums over the bundles that a broker serves: messages and bytes a second.

    Attributes:
        unsound: Bundles left out because a figure was not finite or negative.
    """

    bundles: int = 0
    topics: int = 0
    unsound: int = 0

    @classmethod
    def of(cls, stats: Iterable[BundleStats]) -> BrokerTraffic:
        """Add up; `fsum`, so that the order of the bundles cannot matter."""
        every = list(stats)
        sound = [bundle for bundle in every if is_sound(bundle)]
        return cls(
            math.fsum(bundle.msg_rate_in for bundle in sound),
            math.fsum(bundle.msg_rate_out for bundle in sound),
            math.fsum(bundle.msg_throughput_in for bundle in sound),
            math.fsum(bundle.msg_throughput_out for bundle in sound),
            len(every),
            sum(bundle.topics for bundle in sound),
            len(every) - len(sound),
        )


@dataclass(frozen=True, slots=True)
class UpdateRules:
    """How readings become a load.

    Attributes:
        history: Weight of the past in a moving average at each sample, 0 to 1 (upstream
            `loadBalancerHistoryResourcePercentage`, 0.9).
    """

    weights: ResourceWeights = field(default_factory=ResourceWeights)
    history: float = 0.9


def updated(
    before: BrokerLoad, usage: HostUsage, traffic: BrokerTraffic, *, samples: int, now_ms: int, rules: UpdateRules
) -> BrokerLoad:
    """The load after a new reading.

    The figures of this moment are replaced; the moving averages advance by `samples` steps, which come from a
    `SampleClock`. Upstream's form, which advances with every call, is `samples=1` at each call. The first update takes
    the weighted maximum and the throughput as they are, however many samples are due.

    A resource whose reading is not finite or negative keeps its last sound reading.

    Args:
        before: Load up to now; `updated_at_ms` 0 before the first update.
        samples: Steps of the moving averages, 0 or more.
        now_ms: Wall time of the reading, at least 1.
    """
    now = replace(
        before,
        cpu=_sound(usage.cpu, before.cpu),
        memory=_sound(usage.memory, before.memory),
        direct_memory=_sound(usage.direct_memory, before.direct_memory),
        bandwidth_in=_sound(usage.bandwidth_in, before.bandwidth_in),
        bandwidth_out=_sound(usage.bandwidth_out, before.bandwidth_out),
        msg_rate_in=traffic.msg_rate_in,
        msg_rate_out=traffic.msg_rate_out,
        msg_throughput_in=traffic.msg_throughput_in,
        msg_throughput_out=traffic.msg_throughput_out,
        bundles=traffic.bundles,
        topics=traffic.topics,
        updated_at_ms=now_ms,
    )
    first = before.updated_at_ms == 0
    weighted = now.weighted_max(rules.weights)
    return replace(
        now,
        max_resource_usage=max_resource_usage(now),
        weighted_max_ema=_moved(before.weighted_max_ema, weighted, samples, rules.history, first),
        msg_throughput_ema=_moved(before.msg_throughput_ema, now.msg_throughput, samples, rules.history, first),
    )


def max_resource_usage(load: BrokerLoad) -> float:
    """Largest of CPU, direct memory and bandwidths, without weights; memory is left out, as upstream leaves it out."""
    return max(load.usage_without_memory, load.direct_memory.percent / 100)


def is_sound_usage(reading: ResourceUsage) -> bool:
    """Whether usage, limit and their ratio are finite, not negative and not absurd."""
    return is_figure(reading.usage) and is_figure(reading.limit) and is_figure(reading.percent)


def _moved(before: float, now: float, samples: int, history: float, first: bool) -> float:
    """`h * before + (1 - h) * now`, once for each sample, in upstream's order of operations."""
    if first:
        return now
    for _ in range(samples):
        before = before * history + (1 - history) * now
    return before


def _sound(reading: ResourceUsage, last: ResourceUsage) -> ResourceUsage:
    return reading if is_sound_usage(reading) else last
