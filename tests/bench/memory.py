"""Memory of a bundle in a view, in a process of its own: `python -m tests.bench.memory LOG BUNDLES FLAG` is the worker."""

import gc
import json
import pickle
import sys
import tempfile
import tracemalloc
from collections.abc import Sequence
from pathlib import Path

from statechannel.protocol.log import RecordRead, Topic
from statechannel.protocol.replica import Replica
from tests.bench.measure import Figure, Load, resident_bytes, worker
from tests.bench.records import LogMaker

NAMESPACES = 10
RECORDS_A_BUNDLE = 4
LIMIT_MIB = 64.0


def weigh(path: Path, bundles: int, *, traced: bool) -> dict[str, float]:
    """Replay a log from a file; what the replica then holds."""
    replica = Replica(0, 1, compaction_lag_s=3600, kept_records_max=1_000_000)
    replica.opened(0.0, 0, RECORDS_A_BUNDLE * bundles)
    gc.collect()
    before = resident_bytes()
    if traced:
        tracemalloc.start()
    with path.open("rb") as file:
        for offset in range(RECORDS_A_BUNDLE * bundles):
            key, value = pickle.load(file)
            replica.read(0.0, RecordRead(Topic.CHANNEL, 0, offset, 0, key, value))
    if not replica.caught_up:
        raise RuntimeError("the replica did not catch up")
    gc.collect()
    size = tracemalloc.get_traced_memory()[0] if traced else resident_bytes() - before
    return {"bytes": size, "keys": len(replica.view.keys)}


def run(bundles: int = 65_000) -> Sequence[Figure]:
    """Bytes a bundle, by the allocator's own count and by the process's resident memory."""
    with tempfile.NamedTemporaryFile(prefix="statechannel-bench-") as file:
        for record in LogMaker(RECORDS_A_BUNDLE * bundles, bundles=bundles // NAMESPACES).make():
            pickle.dump(record, file)
        file.flush()
        return _weighed(file.name, bundles)


def _weighed(log: str, bundles: int) -> list[Figure]:
    figures = []
    for name, flag in (("tracemalloc", "traced"), ("rss", "resident")):
        load = Load()
        facts = worker("tests.bench.memory", log, bundles, flag)
        mib = facts["bytes"] / 2**20
        figures.append(
            Figure(
                f"memory.view.{name}", mib, "MiB", ratio=mib / LIMIT_MIB, aim=f"<= {LIMIT_MIB:g} MiB", load=str(load)
            )
        )
        figures.append(Figure(f"memory.bundle.{name}", facts["bytes"] / facts["keys"], "bytes", load=str(load)))
    return figures


if __name__ == "__main__":
    print(json.dumps(weigh(Path(sys.argv[1]), int(sys.argv[2]), traced=sys.argv[3] == "traced")))
