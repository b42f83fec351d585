"""A broker of the campaign: `python -m tests.faults.broker_process broker run ...`, as the command, with a data plane before
the campaign's storage, and with a wall clock that the campaign can set.

The clock is set in Python alone, where all of the product's reading of clocks is: under libfaketime the timed waits of
librdkafka, the C library that speaks to Kafka, no longer end (tried with version 0.9.10 and an offset of an hour). The monotonic
clock stays as it is, as on another machine.
"""

import mmap
import os
import struct
import sys
import time
from pathlib import Path

STORAGE, RECORD, CLOCK = "FAULTS_STORAGE", "FAULTS_RECORD", "FAULTS_CLOCK"
_OFFSET = struct.Struct("<q")


def set_offset(clock: Path, offset_s: float) -> None:
    """Set the wall clock of the processes that read this file apart from the machine's, also of those that run."""
    if not clock.exists():
        clock.write_bytes(_OFFSET.pack(0))
    with clock.open("r+b") as file:
        file.write(_OFFSET.pack(int(offset_s * 1e9)))


def follow_clock(clock: Path) -> None:
    """Have this process read its wall clock through the file."""
    with clock.open("rb") as file:
        offset = mmap.mmap(file.fileno(), _OFFSET.size, prot=mmap.PROT_READ)
    real_ns, real = time.time_ns, time.time
    time.time_ns = lambda: real_ns() + _OFFSET.unpack_from(offset)[0]
    time.time = lambda: real() + _OFFSET.unpack_from(offset)[0] / 1e9


def main() -> None:
    """Run the command, changed as the environment says."""
    follow_clock(Path(os.environ[CLOCK]))
    # Imported only now: a module may take the clock along as it is imported.
    from tests.faults.fenced_plane import FencedPlane  # noqa: PLC0415
    from tests.support.plane_broker import run_with  # noqa: PLC0415

    broker, storage, record = sys.argv[sys.argv.index("--id") + 1], os.environ[STORAGE], Path(os.environ[RECORD])
    run_with(FencedPlane(broker, storage, record))


if __name__ == "__main__":
    main()
