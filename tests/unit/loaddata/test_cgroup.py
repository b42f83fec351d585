"""Limits of control groups as version 1 and version 2 lay them out."""

from pathlib import Path

import pytest

from loaddata.measure.host_usage import ControlGroup, cpu_used_s, find_group, memory_used_bytes


def write(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        file = root / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    return root


def test_version_2_in_a_container(tmp_path: Path) -> None:
    files = {
        "proc/self/cgroup": "0::/\n",
        "sys/fs/cgroup/cgroup.controllers": "cpu memory\n",
        "sys/fs/cgroup/cpu.max": "150000 100000\n",
        "sys/fs/cgroup/cpu.stat": "usage_usec 2500000\nuser_usec 1\n",
        "sys/fs/cgroup/memory.max": "1073741824\n",
        "sys/fs/cgroup/memory.current": "500000000\n",
        "sys/fs/cgroup/memory.stat": "anon 1\ninactive_file 100000000\n",
    }
    group = find_group(write(tmp_path, files))
    assert (group.cpu.limit_cores, cpu_used_s(group.cpu)) == (1.5, 2.5)
    assert (group.memory.limit_bytes, memory_used_bytes(group.memory)) == (1 << 30, 400_000_000)


def test_version_2_takes_the_tightest_limit_above(tmp_path: Path) -> None:
    files = {
        "proc/self/cgroup": "0::/system.slice/broker.service\n",
        "sys/fs/cgroup/cgroup.controllers": "cpu memory\n",
        "sys/fs/cgroup/system.slice/cpu.max": "200000 100000\n",
        "sys/fs/cgroup/system.slice/cpu.stat": "usage_usec 7000000\n",
        "sys/fs/cgroup/system.slice/memory.max": "4294967296\n",
        "sys/fs/cgroup/system.slice/broker.service/cpu.max": "400000 100000\n",
        "sys/fs/cgroup/system.slice/broker.service/cpu.stat": "usage_usec 1000000\n",
        "sys/fs/cgroup/system.slice/broker.service/memory.max": "2147483648\n",
        "sys/fs/cgroup/system.slice/broker.service/memory.current": "1000\n",
    }
    group = find_group(write(tmp_path, files))
    assert (group.cpu.limit_cores, cpu_used_s(group.cpu)) == (2.0, 7.0)
    assert (group.memory.limit_bytes, memory_used_bytes(group.memory)) == (2 << 30, 1_000)


@pytest.mark.parametrize("mount", ["cpu", "cpu,cpuacct"])
def test_version_1(tmp_path: Path, mount: str) -> None:
    files = {
        "proc/self/cgroup": "5:memory:/docker/x\n3:cpu,cpuacct:/docker/x\n0::/\n",
        f"sys/fs/cgroup/{mount}/docker/x/cpu.cfs_quota_us": "50000\n",
        f"sys/fs/cgroup/{mount}/docker/x/cpu.cfs_period_us": "100000\n",
        f"sys/fs/cgroup/{mount}/docker/x/cpuacct.usage": "3000000000\n",
        "sys/fs/cgroup/memory/docker/x/memory.limit_in_bytes": "1000000\n",
        "sys/fs/cgroup/memory/docker/x/memory.usage_in_bytes": "600000\n",
        "sys/fs/cgroup/memory/docker/x/memory.stat": "total_inactive_file 200000\n",
    }
    group = find_group(write(tmp_path, files))
    assert (group.cpu.limit_cores, cpu_used_s(group.cpu)) == (0.5, 3.0)
    assert (group.memory.limit_bytes, memory_used_bytes(group.memory)) == (1_000_000, 400_000)


def test_version_1_without_limits(tmp_path: Path) -> None:
    files = {
        "proc/self/cgroup": "5:memory:/\n3:cpu:/\n",
        "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "-1\n",
        "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000\n",
        "sys/fs/cgroup/cpuacct/cpuacct.usage": "1\n",
        "sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712\n",
    }
    assert find_group(write(tmp_path, files)) == ControlGroup()


def test_counted_apart(tmp_path: Path) -> None:
    files = {
        "proc/self/cgroup": "2:cpuacct:/a\n1:cpu:/a\n",
        "sys/fs/cgroup/cpu/a/cpu.cfs_quota_us": "100000\n",
        "sys/fs/cgroup/cpu/a/cpu.cfs_period_us": "100000\n",
        "sys/fs/cgroup/cpuacct/a/cpuacct.usage": "9000000000\n",
    }
    cpu = find_group(write(tmp_path, files)).cpu
    assert cpu_used_s(cpu) == 9.0


@pytest.mark.parametrize(
    "files",
    [
        {},
        {"proc/self/cgroup": "\0junk\n::\n0::relative\n0::/../../etc\n"},
        {
            "proc/self/cgroup": "0::/\n",
            "sys/fs/cgroup/cgroup.controllers": "",
            "sys/fs/cgroup/cpu.max": "0 0\n",
            "sys/fs/cgroup/memory.max": "-5\n",
        },
        {
            "proc/self/cgroup": "0::/\n",
            "sys/fs/cgroup/cgroup.controllers": "",
            "sys/fs/cgroup/cpu.max": "9" * 400,
            "sys/fs/cgroup/memory.max": "\xff",
        },
    ],
)
def test_nothing_or_nonsense_is_no_limit(tmp_path: Path, files: dict[str, str]) -> None:
    assert find_group(write(tmp_path, files)) == ControlGroup()


def test_a_file_that_goes_away_is_no_reading(tmp_path: Path) -> None:
    files = {
        "proc/self/cgroup": "0::/\n",
        "sys/fs/cgroup/cgroup.controllers": "",
        "sys/fs/cgroup/cpu.max": "100000 100000",
        "sys/fs/cgroup/cpu.stat": "nothing here\n",
        "sys/fs/cgroup/memory.max": "1000",
    }
    group = find_group(write(tmp_path, files))
    assert cpu_used_s(group.cpu) is None
    assert memory_used_bytes(group.memory) is None
