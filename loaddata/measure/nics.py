"""Network interfaces of a broker's traffic, their speeds and their byte counts (upstream `LinuxInfoUtils`)."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Final, NamedTuple

import psutil

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
        return _from_library()
    physical = [nic for nic in up if "virtual" not in nic.resolve().parts]
    return [nic.name for nic in physical or up]


def _from_library() -> list[str]:
    """The interfaces without /sys: all that are up except loopbacks."""
    return sorted(name for name, nic in psutil.net_if_stats().items() if nic.isup and not name.startswith("lo"))


def _is_ethernet_up(nic: Path) -> bool:
    if _read(nic / "type") != _ETHERNET or any((nic / mark).exists() for mark in _NOT_A_WIRE):
        return False
    return _read(nic / "operstate") in _CARRYING


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
    """Bytes that each interface has carried so far."""
    counters: Mapping[str, psutil._ntuples.snetio] = psutil.net_io_counters(pernic=True, nowrap=True)
    return {nic: Carried(counters[nic].bytes_recv, counters[nic].bytes_sent) for nic in nics if nic in counters}


def _read(file: Path) -> str:
    try:
        return file.read_text(encoding="ascii", errors="replace").strip()
    except OSError:
        return ""
