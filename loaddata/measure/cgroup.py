"""Limits and use of this process's control group, versions 1 and 2 (upstream `LinuxInfoUtils`, which reads version 1 only).

In version 2 a limit holds for everything below it. The group that holds the tightest limit is the one measured: what its
other members use is not there for the broker either.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple

_WHOLE = re.compile(r"[0-9]{1,19}").fullmatch
_UNLIMITED_BYTES: Final = 2**60
"""Version 1 says "no limit" by a number near 2^63."""
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
    return _cpu(quota, period, place / "cpu.stat")


def _cpu_1(place: Path) -> CpuGroup | None:
    quota, period = _read(place / "cpu.cfs_quota_us").strip(), _read(place / "cpu.cfs_period_us").strip()
    used = place / "cpuacct.usage"
    if not used.is_file():  # the two controllers are mounted apart on some systems
        used = Path(str(used).replace("/cgroup/cpu/", "/cgroup/cpuacct/"))
    return _cpu(quota, period, used)


def _cpu(quota: str, period: str, used: Path) -> CpuGroup | None:
    if not _WHOLE(quota) or not _WHOLE(period) or int(quota) == 0 or int(period) == 0 or not used.is_file():
        return None
    return CpuGroup(int(quota) / int(period), used)


def _memory_2(place: Path) -> MemoryGroup | None:
    return _memory(_number(_read(place / "memory.max")), place / "memory.current", place / "memory.stat")


def _memory_1(place: Path) -> MemoryGroup | None:
    limit = _number(_read(place / "memory.limit_in_bytes"))
    return _memory(limit, place / "memory.usage_in_bytes", place / "memory.stat")


def _memory(limit: int | None, used: Path, stat: Path) -> MemoryGroup | None:
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
