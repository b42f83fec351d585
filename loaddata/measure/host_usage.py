"""Usage of the host that this process runs on (upstream `LinuxBrokerHostUsageImpl`), by psutil and the control group.

CPU in percent of one core, memory in MiB, bandwidth in kbit/s, each against its limit. Unlike upstream, a control group is
measured only if it has a limit: without one all processes of the machine compete, so the machine is measured.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final, NamedTuple

import psutil

from loaddata.measure import nics
from loaddata.measure.cgroup import CpuGroup, MemoryGroup, cpu_used_s, find_group, memory_used_bytes
from loaddata.measure.nics import Carried
from loaddata.model.broker_update import HostUsage
from loaddata.model.usage import ResourceUsage

_log = logging.getLogger(__name__)

MIB: Final = 1024 * 1024
_CORE: Final = 100.0
_GUEST: Final = ("guest", "guest_nice")
"""Parts of `user` and `nice` that Linux lists a second time."""


class _Cpu(NamedTuple):
    """CPU time so far, in seconds. Of a control group `whole_s` is unknown: elapsed time stands for it."""

    busy_s: float
    whole_s: float | None


class _Reading(NamedTuple):
    at_s: float
    cpu: _Cpu | None
    carried: Mapping[str, Carried]


class HostMeter:
    """Meter of the usage between two calls of `read`; the first call has nothing to compare with and returns None.

    Args:
        nic_speed_gbit: Speed of each interface in Gbit/s, if the driver reports none or a wrong one (virtual machines).
        root: Where `proc` and `sys` are; another one is for tests.
        direct_memory: An embedder's own count, in MiB; it is not measured here.
    """

    def __init__(
        self,
        *,
        nic_speed_gbit: float | None = None,
        root: Path = Path("/"),
        direct_memory: Callable[[], ResourceUsage] = ResourceUsage,
    ) -> None:
        self._nic_speed_gbit = nic_speed_gbit
        self._root = root
        self._direct_memory = direct_memory
        self._cores = available_cores()
        group = find_group(root)
        self._cpu_group = group.cpu if group.cpu is not None and group.cpu.limit_cores < self._cores else None
        total = psutil.virtual_memory().total
        self._memory_group = group.memory if group.memory is not None and group.memory.limit_bytes < total else None
        self._last: _Reading | None = None
        self._warned = False

    @property
    def cpu_limit(self) -> float:
        """In percent of one core."""
        return _CORE * (self._cores if self._cpu_group is None else self._cpu_group.limit_cores)

    def read(self, now_s: float) -> HostUsage | None:
        """See `loaddata.source.HostSource.read`; also None while the clock does not advance."""
        chosen = nics.chosen_nics(self._root)
        reading = _Reading(now_s, _cpu_now(self._cpu_group), nics.carried(chosen))
        last, self._last = self._last, reading
        if last is None or not now_s > last.at_s:
            return None
        elapsed_s = now_s - last.at_s
        limit = self._nic_limit(chosen)
        received, sent = _kbit(last.carried, reading.carried, elapsed_s)
        return HostUsage(
            cpu=ResourceUsage(_cpu_usage(last.cpu, reading.cpu, elapsed_s, self.cpu_limit), self.cpu_limit),
            memory=_memory(self._memory_group),
            direct_memory=self._direct_memory(),
            bandwidth_in=ResourceUsage(received, limit),
            bandwidth_out=ResourceUsage(sent, limit),
        )

    def _nic_limit(self, chosen: list[str]) -> float:
        limit = nics.speed_kbit(chosen, self._nic_speed_gbit)
        if limit == 0 and not self._warned:
            self._warned = True
            _log.warning(
                "the speed of %s is not known, so bandwidth counts as 0 %%; set nic_speed_gbit",
                ", ".join(chosen) or "no NIC",
            )
        return limit


def available_cores() -> int:
    """Cores that this process may run on."""
    process = psutil.Process()
    if hasattr(process, "cpu_affinity"):
        return max(1, len(process.cpu_affinity() or ()))
    return psutil.cpu_count() or 1


def _cpu_now(group: CpuGroup | None) -> _Cpu | None:
    if group is not None:
        used_s = cpu_used_s(group)
        return None if used_s is None else _Cpu(used_s, None)
    times = psutil.cpu_times()._asdict()
    whole_s = sum(value for name, value in times.items() if name not in _GUEST)
    return _Cpu(whole_s - times["idle"] - times.get("iowait", 0.0), whole_s)


def _cpu_usage(last: _Cpu | None, now: _Cpu | None, elapsed_s: float, limit: float) -> float:
    """In percent of one core; NaN if unknown, which keeps the last valid reading."""
    if last is None or now is None or now.busy_s < last.busy_s:
        return float("nan")
    busy_s = now.busy_s - last.busy_s
    if now.whole_s is None or last.whole_s is None:
        return _CORE * busy_s / elapsed_s
    whole_s = now.whole_s - last.whole_s
    return min(1.0, busy_s / whole_s) * limit if whole_s > 0 else float("nan")


def _kbit(last: Mapping[str, Carried], now: Mapping[str, Carried], elapsed_s: float) -> tuple[float, float]:
    """kbit/s in and out over the interfaces that both readings have; one that was reset meanwhile counts as 0."""
    both = [(last[nic], now[nic]) for nic in now if nic in last]
    received = sum(max(0, after.received - before.received) for before, after in both)
    sent = sum(max(0, after.sent - before.sent) for before, after in both)
    return received * 8 / 1e3 / elapsed_s, sent * 8 / 1e3 / elapsed_s


def _memory(group: MemoryGroup | None) -> ResourceUsage:
    if group is not None:
        used = memory_used_bytes(group)
        return ResourceUsage(float("nan") if used is None else used / MIB, group.limit_bytes / MIB)
    memory = psutil.virtual_memory()
    return ResourceUsage((memory.total - memory.available) / MIB, memory.total / MIB)
