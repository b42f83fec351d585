"""Little processor time for a process, or a slow disk: by the kernel's control groups, else by stopping it most of the time.

Groups of version 1 need root. A group lets a process run for its share of each tenth of a second; stopping does the same to all
its threads, but also keeps back what needs no disk, so where there is a choice the disk alone is slow.
"""

from __future__ import annotations

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

    Raises:
        OSError: There is none of this kind, or it may not be made.
    """

    def __init__(self, controller: str, pid: int, limits: dict[str, str]) -> None:
        self._pid, self._limits = pid, limits
        self._folder = ROOT / controller / f"statechannel-faults-{pid}"
        if not (ROOT / controller / "cgroup.procs").exists():
            raise FileNotFoundError(controller)
        self._back = self._folder.parent / _group_of(pid, controller) / "cgroup.procs"
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


def _group_of(pid: int, controller: str) -> str:
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
    limits = {"cpu.cfs_period_us": str(period_us), "cpu.cfs_quota_us": str(max(1_000, int(period_us * share)))}
    with contextlib.suppress(OSError):
        return _Group("cpu", pid, limits)
    return _Stopping(pid, share)


def slow_disk(pid: int, folder: Path, writes_per_s: int) -> Throttle:
    """Let a process do so many writes a second on the disk of a folder; it waits only where it waits for the disk."""
    with contextlib.suppress(OSError):
        return _Group("blkio", pid, {"blkio.throttle.write_iops_device": f"{_disk_of(folder)} {writes_per_s}"})
    return _Stopping(pid, SLOW_DISK_SHARE)


def _disk_of(folder: Path) -> str:
    """Number of the whole disk: partitions cannot be limited."""
    device = folder.stat().st_dev
    found = Path(f"/sys/dev/block/{os.major(device)}:{os.minor(device)}").resolve(strict=True)
    if (found / "partition").exists():
        found = found.parent
    return (found / "dev").read_text().strip()
