"""Little processor time for a process, or a slow disk: by the kernel's control groups, else by stopping it most of the time.

Groups need root, or a folder of theirs that was handed over. A group lets a process run for its share of each tenth of a second;
stopping does the same to all its threads, but also keeps back what needs no disk, so where there is a choice the disk alone is
slow.
"""

import contextlib
import os
import signal
import threading
from pathlib import Path

ROOT = Path("/sys/fs/cgroup")
PERIOD_S = 0.1
SLOW_DISK_SHARE = 0.1


class Throttle:
    """On until lifted."""

    how = "group"

    def lift(self) -> None:
        raise NotImplementedError


class _Group(Throttle):
    """A control group of one process.

    Args:
        parent: Folder of the hierarchy that has the controller.
        belongs: Folder of the group that the process is in, and returns to.
        limits: Files of the group, and what is written there.

    Raises:
        OSError: The group may not be made, or has no such limit.
    """

    def __init__(self, parent: Path, belongs: Path, pid: int, limits: dict[str, str]) -> None:
        self._pid = pid
        self._folder = parent / f"statechannel-faults-{pid}"
        self._back = belongs / "cgroup.procs"
        self._folder.mkdir(exist_ok=True)
        try:
            for name, value in limits.items():
                (self._folder / name).write_text(value)
            (self._folder / "cgroup.procs").write_text(str(pid))
        except OSError:
            self.lift()
            raise

    def lift(self) -> None:
        with contextlib.suppress(OSError):  # it has ended
            self._back.write_text(str(self._pid))
        with contextlib.suppress(OSError):
            self._folder.rmdir()


def _group(pid: int, version_1: tuple[str, dict[str, str]], version_2: tuple[str, dict[str, str]]) -> _Group:
    """A group with these limits, each a controller and its files, in the version that has the controller here.

    Raises:
        OSError: No version has it, or the group may not be made.
    """
    controller, limits = version_1
    parent = ROOT / controller
    if (parent / "cgroup.procs").exists():
        return _Group(parent, parent / _group_of(pid, controller), pid, limits)
    controller, limits = version_2
    if controller not in (ROOT / "cgroup.controllers").read_text().split():
        raise FileNotFoundError(controller)
    (ROOT / "cgroup.subtree_control").write_text(f"+{controller}")
    return _Group(ROOT, ROOT / _group_of(pid, ""), pid, limits)


def _group_of(pid: int, controller: str) -> str:
    """Path of the process' group below the hierarchy of a controller; version 2 has one hierarchy, without a name."""
    for line in Path(f"/proc/{pid}/cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        if controller in controllers.split(","):
            return path.lstrip("/")
    return ""


class _Stopping(Throttle):
    """Stopped for most of each period."""

    how = "stopping"

    def __init__(self, pid: int, share: float) -> None:
        self._pid, self._share = pid, share
        self._lifted = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"stopping-{pid}", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._lifted.is_set():
            self._signal(signal.SIGSTOP)
            self._lifted.wait(PERIOD_S * (1 - self._share))
            self._signal(signal.SIGCONT)
            self._lifted.wait(PERIOD_S * self._share)

    def _signal(self, number: int) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(self._pid, number)

    def lift(self) -> None:
        self._lifted.set()
        self._thread.join(5)


def starve(pid: int, share: float) -> Throttle:
    """Give a process no more than this share of one processor."""
    period_us = int(PERIOD_S * 1e6)
    quota_us = max(1_000, int(period_us * share))
    version_1 = {"cpu.cfs_period_us": str(period_us), "cpu.cfs_quota_us": str(quota_us)}
    with contextlib.suppress(OSError):
        return _group(pid, ("cpu", version_1), ("cpu", {"cpu.max": f"{quota_us} {period_us}"}))
    return _Stopping(pid, share)


def slow_disk(pid: int, folder: Path, writes_per_s: int) -> Throttle:
    """Let a process do so many writes a second on the disk of a folder; it waits only where it waits for the disk."""
    with contextlib.suppress(OSError):
        disk = _disk_of(folder)
        version_1 = {"blkio.throttle.write_iops_device": f"{disk} {writes_per_s}"}
        return _group(pid, ("blkio", version_1), ("io", {"io.max": f"{disk} wiops={writes_per_s}"}))
    return _Stopping(pid, SLOW_DISK_SHARE)


def _disk_of(folder: Path) -> str:
    """Number of the whole disk: partitions cannot be limited."""
    device = folder.stat().st_dev
    disk = Path(f"/sys/dev/block/{os.major(device)}:{os.minor(device)}").resolve(strict=True)
    if (disk / "partition").exists():
        disk = disk.parent
    return (disk / "dev").read_text().strip()
