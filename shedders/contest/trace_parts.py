"""Shared parts of traces of real clusters: units of bundles without known topics, rings with gaps, CPU by traffic."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

from loaddata.model.broker_load import BrokerLoad
from shedders.contest.trace import CORE, Namespace, TraceMachine
from statechannel.protocol.bundle import FULL_UPPER, bundle_key

PARTS: Final = 8
"""Equal units of a bundle without known topics, so that it can be halved three times."""
IDLE_PERCENT: Final = 3.0
"""CPU that is taken to be used without traffic, where a broker uses that much."""
MESSAGE_CPU: Final = 25e-6 * CORE
"""CPU of a message, in percent of a core a second, where no broker reports both."""
_USUAL: Final = TraceMachine("usual")


@dataclass(frozen=True, slots=True)
class UnitTraffic:
    """Traffic a second, and what goes with it: CPU in percent of a core, direct memory in MiB."""

    msg_rate_in: float = 0.0
    msg_rate_out: float = 0.0
    msg_throughput_in: float = 0.0
    msg_throughput_out: float = 0.0
    cpu: float = 0.0
    direct_memory_mib: float = 0.0

    @property
    def msg_rate(self) -> float:
        """Messages in both directions."""
        return self.msg_rate_in + self.msg_rate_out

    @property
    def msg_throughput(self) -> float:
        """Bytes in both directions."""
        return self.msg_throughput_in + self.msg_throughput_out

    def share(self, messages: float, size: float) -> float:
        """Share of messages and bytes: the mean of both, or the known one."""
        shares = [own / whole for own, whole in ((self.msg_rate, messages), (self.msg_throughput, size)) if whole > 0]
        return sum(shares) / len(shares) if shares else 0.0


def machine_of(name: str, load: BrokerLoad | None, domain: str | None = None) -> tuple[TraceMachine, str | None]:
    """The machine that a broker reports, and what had to be assumed of it."""
    if load is None:
        return TraceMachine(
            name, domain=domain
        ), f"{name} reported nothing: a usual machine of {_USUAL.cores:g} cores is assumed"
    unknown = [
        word
        for word, usage in (
            ("CPU", load.cpu),
            ("inbound network", load.bandwidth_in),
            ("outbound network", load.bandwidth_out),
        )
        if not usage.limit > 0
    ]
    used = load.cpu.percent if load.cpu.limit > 0 else IDLE_PERCENT
    machine = TraceMachine(
        name,
        cores=load.cpu.limit / CORE if load.cpu.limit > 0 else _USUAL.cores,
        memory_mib=load.memory.limit or _USUAL.memory_mib,
        direct_memory_mib=load.direct_memory.limit or _USUAL.direct_memory_mib,
        bandwidth_in_kbit=load.bandwidth_in.limit or _USUAL.bandwidth_in_kbit,
        bandwidth_out_kbit=load.bandwidth_out.limit or _USUAL.bandwidth_out_kbit,
        idle_percent=min(IDLE_PERCENT, used),
        domain=domain,
    )
    return machine, f"{name} does not say its {', '.join(unknown)}: usual limits are assumed" if unknown else None


def busy_cpu(machine: TraceMachine, load: BrokerLoad) -> float | None:
    """CPU that traffic uses; None where the broker does not know it."""
    return max(0.0, load.cpu.usage - machine.cores * machine.idle_percent) if load.cpu.limit > 0 else None


def places(lower: int, upper: int, count: int = PARTS) -> list[int]:
    """`count` evenly spaced positions in a range of the ring; fewer in a smaller range."""
    width = upper - lower + (upper == FULL_UPPER)
    count = max(1, min(count, width))
    return [lower + width * (2 * part + 1) // (2 * count) for part in range(count)]


def namespaces_of(
    ranges: Mapping[str, Iterable[tuple[int, int]]], owners: Mapping[str, str | None]
) -> tuple[list[Namespace], int]:
    """Namespaces with complete rings, and the number of gaps that were filled by unreported bundles.

    Args:
        ranges: By namespace; they do not overlap.
        owners: By key of the bundle.
    """
    namespaces, gaps = [], 0
    for name, some in sorted(ranges.items()):
        known, bounds = set(some), {0, FULL_UPPER}
        for lower, upper in known:
            bounds |= {lower, upper}
        whole = sorted(bounds)
        pairs = list(pairwise(whole))
        gaps += sum(pair not in known for pair in pairs)
        own = [owners.get(bundle_key(name, lower, upper)) for lower, upper in pairs]
        namespaces.append(Namespace(name, len(pairs), tuple(whole), tuple(own)))
    return namespaces, gaps


def shared_cpu(traffics: Sequence[UnitTraffic], whole: float | None) -> list[float]:
    """CPU of each bundle of a broker: its part of what the broker's traffic uses.

    Args:
        whole: Used by all of them together; None: by the number of their messages.
    """
    if whole is None:
        return [traffic.msg_rate * MESSAGE_CPU for traffic in traffics]
    messages, size = sum(traffic.msg_rate for traffic in traffics), sum(traffic.msg_throughput for traffic in traffics)
    return [traffic.share(messages, size) * whole for traffic in traffics]
