"""Usage of the host between two readings, with scripted counters, and once with this machine's own."""

import math
import time
from collections import namedtuple
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest

from loaddata.measure import host_usage
from loaddata.measure.host_usage import Carried, HostMeter, carried, chosen_nics, speed_kbit

Times = namedtuple("Times", "user nice system idle iowait guest")
MIB = 1 << 20


class Machine:
    """Counters that the test turns."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, root: Path) -> None:
        self.root = root
        self.cpu = Times(100.0, 0.0, 50.0, 800.0, 50.0, 10.0)
        self.nics = {"eth0": Carried(1_000, 2_000)}
        self.speed = {"eth0": 1_000}
        self.nic("eth0", physical=True)
        monkeypatch.setattr(host_usage, "available_cores", lambda: 4)
        monkeypatch.setattr(psutil, "cpu_times", lambda: self.cpu)
        memory = SimpleNamespace(total=1_000 * MIB, available=600 * MIB)
        monkeypatch.setattr(psutil, "virtual_memory", lambda: memory)
        monkeypatch.setattr(psutil, "net_io_counters", lambda **_: self._counters())
        monkeypatch.setattr(psutil, "net_if_stats", self._stats)

    def _counters(self) -> dict[str, Any]:
        return {name: SimpleNamespace(bytes_recv=nic[0], bytes_sent=nic[1]) for name, nic in self.nics.items()}

    def _stats(self) -> dict[str, Any]:
        return {name: SimpleNamespace(speed=speed, isup=True) for name, speed in self.speed.items()}

    def nic(self, name: str, *, physical: bool, kind: str = "1", state: str = "up", mark: str = "") -> None:
        place = self.root / "sys/devices" / ("pci0" if physical else "virtual") / "net" / name
        place.mkdir(parents=True)
        (place / "type").write_text(kind + "\n")
        (place / "operstate").write_text(state + "\n")
        if mark:
            (place / mark).mkdir()
        links = self.root / "sys/class/net"
        links.mkdir(parents=True, exist_ok=True)
        (links / name).symlink_to(place)


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Machine:
    return Machine(monkeypatch, tmp_path)


def test_between_two_readings(machine: Machine) -> None:
    meter = HostMeter(root=machine.root)
    assert meter.read(10.0) is None
    machine.cpu = Times(104.0, 1.0, 50.0, 812.0, 53.0, 14.0)  # 5 s busy of 20 s; guest is in user already
    machine.nics = {"eth0": Carried(1_000 + 250_000, 2_000 + 500_000)}
    usage = meter.read(12.0)
    assert usage.cpu.limit == 400
    assert usage.cpu.usage == pytest.approx(100)  # a quarter of four cores
    assert (usage.memory.usage, usage.memory.limit) == (400, 1_000)
    assert (usage.bandwidth_in.usage, usage.bandwidth_out.usage) == (1_000, 2_000)  # 250 kB in 2 s are 1,000 kbit/s
    assert usage.bandwidth_in.limit == usage.bandwidth_out.limit == 1e6
    assert usage.direct_memory.percent == 0


def test_a_clock_that_stands_still_and_counters_that_go_back(machine: Machine) -> None:
    meter = HostMeter(root=machine.root)
    meter.read(10.0)
    assert meter.read(10.0) is None
    assert meter.read(9.0) is None
    assert meter.read(math.nan) is None
    assert meter.read(10.0) is None
    machine.cpu = Times(0.0, 0.0, 0.0, 0.0, 0.0, 0.0)
    machine.nics = {"eth0": Carried(5, 5)}
    usage = meter.read(11.0)
    assert math.isnan(usage.cpu.usage)
    assert usage.bandwidth_in.usage == 0


def test_an_interface_that_comes_or_goes_brings_no_jump(machine: Machine) -> None:
    meter = HostMeter(root=machine.root)
    meter.read(1.0)
    machine.nic("eth1", physical=True)
    machine.speed["eth1"] = 10_000
    machine.nics["eth1"] = Carried(10**15, 10**15)
    usage = meter.read(2.0)
    assert (usage.bandwidth_in.usage, usage.bandwidth_in.limit) == (0, 11e6)
    del machine.nics["eth0"]
    usage = meter.read(3.0)
    assert usage.bandwidth_in.usage == 0


def test_a_control_group_with_a_limit_is_measured_itself(machine: Machine) -> None:
    group = machine.root / "sys/fs/cgroup"
    group.mkdir(parents=True)
    (machine.root / "proc/self").mkdir(parents=True)
    (machine.root / "proc/self/cgroup").write_text("0::/\n")
    (group / "cgroup.controllers").write_text("cpu")
    (group / "cpu.max").write_text("200000 100000")
    (group / "cpu.stat").write_text("usage_usec 1000000")
    (group / "memory.max").write_text(str(500 * MIB))
    (group / "memory.current").write_text(str(200 * MIB))
    meter = HostMeter(root=machine.root)
    meter.read(1.0)
    (group / "cpu.stat").write_text("usage_usec 4000000")
    usage = meter.read(3.0)
    assert (usage.cpu.usage, usage.cpu.limit) == (150, 200)  # 3 s of CPU in 2 s, of two cores
    assert (usage.memory.usage, usage.memory.limit) == (200, 500)
    (group / "cpu.max").write_text("900000 100000")  # more than there is: no limit
    assert HostMeter(root=machine.root).cpu_limit == 400


def test_which_interfaces_count(machine: Machine) -> None:
    machine.nic("veth1", physical=False)
    machine.nic("eth1", physical=True, state="down")
    machine.nic("wlan0", physical=True, kind="801")
    machine.nic("eth2", physical=True, state="unknown")
    assert chosen_nics(machine.root) == ["eth0", "eth2"]


def test_in_a_container_the_virtual_ones_count(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    machine = Machine(monkeypatch, tmp_path / "other")
    root = tmp_path / "container"
    machine.root = root
    machine.nic("lo", physical=False, kind="772", state="unknown")
    machine.nic("eth0", physical=False)
    machine.nic("docker0", physical=False, mark="bridge")
    assert chosen_nics(root) == ["eth0"]


def test_speed(machine: Machine) -> None:
    assert speed_kbit(["eth0"], None) == 1e6
    assert speed_kbit(["eth0", "eth0"], 2.5) == 5e6
    assert speed_kbit(["eth0", "gone"], None) == 0, "one of them does not say"
    machine.speed["eth0"] = -1
    assert speed_kbit(["eth0"], None) == 0
    assert speed_kbit([], None) == 0


def test_where_there_is_no_sys(machine: Machine, tmp_path: Path) -> None:
    machine.speed["lo0"] = 0
    assert chosen_nics(tmp_path / "nowhere") == ["eth0"]
    assert carried(["eth0", "gone"]) == {"eth0": Carried(1_000, 2_000)}


def test_unknown_speed_is_said_once(machine: Machine, caplog: pytest.LogCaptureFixture) -> None:
    machine.speed = {}
    meter = HostMeter(root=machine.root)
    for now_s in range(4):
        meter.read(float(now_s))
    assert sum("set extensions.balancer.load.nic_speed_gbit" in record.message for record in caplog.records) == 1


def test_this_machine() -> None:
    meter = HostMeter(nic_speed_gbit=10.0)
    assert meter.read(time.monotonic()) is None
    until_s = time.process_time() + 0.2
    while time.process_time() < until_s:
        sum(range(1_000))
    usage = meter.read(time.monotonic())
    assert 0 < usage.cpu.usage <= usage.cpu.limit
    assert 0 < usage.memory.percent < 100
    assert usage.bandwidth_in.limit == 1e7 * len(host_usage.chosen_nics())
