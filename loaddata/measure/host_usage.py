"""Usage of the host that this process runs on (upstream `LinuxBrokerHostUsageImpl` and `LinuxInfoUtils`).

CPU in percent of one core, memory in MiB, bandwidth in kbit/s, each against its limit. Unlike upstream, a control group is
measured only if it has a limit: without one all processes of the machine compete, so the machine is measured.

Control groups have two versions; upstream reads version 1 only. In version 2 a limit holds for everything below it. The group
that holds the tightest limit is the one measured: what its other members use is not there for the broker either.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple

import psutil

from loaddata.model.broker_load import HostUsage, ResourceUsage

_WHOLE = re.compile(r"[0-9]{1,19}").fullmatch
_UNLIMITED_BYTES: Final = 2**60  # version 1 says "no limit" by a number near 2^63
_NS: Final = 1e9
_US: Final = 1e6


class CpuGroup(NamedTuple):
    """A limit on CPU: `limit_cores` may be a fraction. `used_file` counts the time used."""

    limit_cores: float
    used_file: Path


class MemoryGroup(NamedTuple):
    """A limit on memory, and the file that says how much is used. `stat_file` says how much of that is page cache."""

    limit_bytes: int
    used_file: Path
    stat_file: Path


@dataclass(frozen=True, slots=True)
class ControlGroup:
    """The limits of this process; None without one."""

    cpu: CpuGroup | None = None
    memory: MemoryGroup | None = None


def find_group(root: Path = Path("/")) -> ControlGroup:
    """The groups with the tightest limits above this process.

    Args:
        root: Where `proc` and `sys` are; another one is for tests.
    """
    mount = root / "sys/fs/cgroup"
    places = _places(_read(root / "proc/self/cgroup"))
    if (mount / "cgroup.controllers").is_file():
        above = _upwards(mount, places.get("", "/"))
        return _tightest(map(_cpu_2, above), map(_memory_2, above))
    return _tightest(map(_cpu_1, _upwards_1(mount, "cpu", places)), map(_memory_1, _upwards_1(mount, "memory", places)))


def _tightest(cpus: Iterable[CpuGroup | None], memories: Iterable[MemoryGroup | None]) -> ControlGroup:
    return ControlGroup(
        min((cpu for cpu in cpus if cpu is not None), key=lambda cpu: cpu.limit_cores, default=None),
        min((memory for memory in memories if memory is not None), key=lambda memory: memory.limit_bytes, default=None),
    )


def cpu_used_s(group: CpuGroup) -> float | None:
    """CPU time that the group has used so far, in seconds; None if it cannot be read."""
    text = _read(group.used_file)
    if group.used_file.name == "cpu.stat":
        used = _field(text, "usage_usec")
        return None if used is None else used / _US
    used = _number(text)
    return None if used is None else used / _NS


def memory_used_bytes(group: MemoryGroup) -> int | None:
    """Memory in use without page cache that can be dropped at once; None if it cannot be read."""
    used = _number(_read(group.used_file))
    if used is None:
        return None
    cache = _field(_read(group.stat_file), "inactive_file")
    if cache is None:
        cache = _field(_read(group.stat_file), "total_inactive_file")
    return max(0, used - (cache or 0))


# --- places ---------------------------------------------------------------------------------------------------------


def _places(text: str) -> dict[str, str]:
    """Path of this process's group by controller (version 2: under the empty name)."""
    paths: dict[str, str] = {}
    for line in text.splitlines():
        _, _, rest = line.partition(":")
        controllers, colon, path = rest.partition(":")
        if colon and path.startswith("/") and ".." not in path.split("/"):
            for name in controllers.split(","):
                paths[name] = path
    return paths


def _upwards(mount: Path, path: str) -> list[Path]:
    """The group itself and all above it that exist; in a container only the mount itself may be visible."""
    group = mount / path.strip("/")
    return [place for place in (group, *group.parents) if place.is_relative_to(mount) and place.is_dir()]


def _upwards_1(mount: Path, controller: str, places: dict[str, str]) -> list[Path]:
    for name in (controller, "cpu,cpuacct", "cpuacct,cpu") if controller == "cpu" else (controller,):
        if (mount / name).is_dir():
            return _upwards(mount / name, places.get(controller, "/"))
    return []


# --- limits ---------------------------------------------------------------------------------------------------------


def _cpu_2(place: Path) -> CpuGroup | None:
    quota, _, period = _read(place / "cpu.max").strip().partition(" ")
    return _cpu_group(quota, period, place / "cpu.stat")


def _cpu_1(place: Path) -> CpuGroup | None:
    quota, period = _read(place / "cpu.cfs_quota_us").strip(), _read(place / "cpu.cfs_period_us").strip()
    used = place / "cpuacct.usage"
    if not used.is_file():  # the two controllers are mounted apart on some systems
        used = Path(str(used).replace("/cgroup/cpu/", "/cgroup/cpuacct/"))
    return _cpu_group(quota, period, used)


def _cpu_group(quota: str, period: str, used: Path) -> CpuGroup | None:
    if not _WHOLE(quota) or not _WHOLE(period) or int(quota) == 0 or int(period) == 0 or not used.is_file():
        return None
    return CpuGroup(int(quota) / int(period), used)


def _memory_2(place: Path) -> MemoryGroup | None:
    return _memory_group(_number(_read(place / "memory.max")), place / "memory.current", place / "memory.stat")


def _memory_1(place: Path) -> MemoryGroup | None:
    limit = _number(_read(place / "memory.limit_in_bytes"))
    return _memory_group(limit, place / "memory.usage_in_bytes", place / "memory.stat")


def _memory_group(limit: int | None, used: Path, stat: Path) -> MemoryGroup | None:
    return None if limit is None or not 0 < limit < _UNLIMITED_BYTES else MemoryGroup(limit, used, stat)


def _read(file: Path) -> str:
    try:
        return file.read_text(encoding="ascii", errors="replace")
    except OSError:
        return ""


def _number(text: str) -> int | None:
    text = text.strip()
    return int(text) if _WHOLE(text) else None


def _field(text: str, name: str) -> int | None:
    for line in text.splitlines():
        key, _, value = line.partition(" ")
        if key == name:
            return _number(value)
    return None


_ETHERNET: Final = "1"
_CARRYING: Final = frozenset({"up", "unknown", "dormant"})
_NOT_A_WIRE: Final = ("bridge", "tun_flags", "bonding_slave")
"""Files of a bridge, a tunnel and a slave of a bond under /sys/class/net: their bytes are also counted elsewhere."""


class Carried(NamedTuple):
    """Bytes that an interface has carried since it came up."""

    received: int
    sent: int


def chosen_nics(root: Path = Path("/")) -> list[str]:
    """The interfaces that count, sorted: the physical ones that are up; where there are none, the virtual ones.

    In a container every interface is virtual: then those that are not a loopback, bridge or tunnel count. (Upstream means to
    leave virtual ones out but tests a path that never shows it, so that it counts them in addition to the physical ones.)

    Args:
        root: Where `sys` is; another one is for tests.
    """
    folder = root / "sys/class/net"
    try:
        up = [nic for nic in sorted(folder.iterdir()) if _is_ethernet_up(nic)]
    except OSError:
        return sorted(name for name, nic in psutil.net_if_stats().items() if nic.isup and not name.startswith("lo"))
    physical = [nic for nic in up if "virtual" not in nic.resolve().parts]
    return [nic.name for nic in physical or up]


def _is_ethernet_up(nic: Path) -> bool:
    if _read(nic / "type").strip() != _ETHERNET or any((nic / mark).exists() for mark in _NOT_A_WIRE):
        return False
    return _read(nic / "operstate").strip() in _CARRYING


def speed_kbit(nics: list[str], override_gbit: float | None) -> float:
    """Total capacity of the interfaces in each direction, in kbit/s; 0 if one of them is unknown.

    Args:
        override_gbit: Gbit/s of each (upstream `loadBalancerOverrideBrokerNicSpeedGbps`); None asks the driver.
    """
    if override_gbit is not None:
        return override_gbit * 1e6 * len(nics)
    stats = psutil.net_if_stats()
    speeds = [stats[nic].speed if nic in stats else 0 for nic in nics]
    return sum(speeds) * 1e3 if all(speed > 0 for speed in speeds) else 0.0


def carried(nics: list[str]) -> dict[str, Carried]:
    counters: Mapping[str, psutil._ntuples.snetio] = psutil.net_io_counters(pernic=True, nowrap=True)
    return {nic: Carried(counters[nic].bytes_recv, counters[nic].bytes_sent) for nic in nics if nic in counters}


_log = logging.getLogger(__name__)

MIB: Final = 1024 * 1024
_CORE: Final = 100.0
_GUEST: Final = ("guest", "guest_nice")  # parts of `user` and `nice` that Linux lists a second time


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
        """The usage since the last call; None while it is not known yet, or while the clock does not advance."""
        chosen = chosen_nics(self._root)
        reading = _Reading(now_s, _cpu_now(self._cpu_group), carried(chosen))
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
        limit = speed_kbit(chosen, self._nic_speed_gbit)
        if limit == 0 and not self._warned:
            self._warned = True
            _log.warning(
                "the speed of %s is not known, so bandwidth counts as 0 %%; set extensions.balancer.load.nic_speed_gbit",
                ", ".join(chosen) or "no NIC",
            )
        return limit


def available_cores() -> int:
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
