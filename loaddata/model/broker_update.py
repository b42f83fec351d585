"""Update of a broker's load from readings of its host and bundles (upstream `BrokerLoadData.update`). Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from loaddata.model.averages import is_sound
from loaddata.model.broker_load import BrokerLoad, ResourceWeights
from loaddata.model.bundle_load import BundleStats
from loaddata.model.figures import is_figure
from loaddata.model.usage import ResourceUsage


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
class BrokerTraffic:
    """Sums over the bundles that a broker serves: messages and bytes a second.

    Attributes:
        unsound: Bundles left out because a figure was not finite or negative.
    """

    msg_rate_in: float = 0.0
    msg_rate_out: float = 0.0
    msg_throughput_in: float = 0.0
    msg_throughput_out: float = 0.0
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
    largest = max(load.cpu.percent, load.direct_memory.percent, load.bandwidth_in.percent, load.bandwidth_out.percent)
    return largest / 100


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
