"""How time and memory of a replay grow with the number of bundles: the fold alone, a process for each size.

`python -m tests.bench.growth BUNDLES` is the worker.
"""

import gc
import json
import sys
import time
from collections.abc import Iterator, Sequence
from itertools import islice

from statechannel.protocol.bulk_fold import read_many
from statechannel.protocol.log import RecordRead, Topic
from statechannel.protocol.view import View
from tests.bench.measure import Figure, Load, resident_bytes, worker
from tests.bench.records import LogMaker

SIZES = (10_000, 100_000, 1_000_000)
RECORDS_A_BUNDLE = 3
BUNDLES_OF_A_NAMESPACE = 5_000
PORTION = 500


def run(sizes: Sequence[int] = SIZES) -> Sequence[Figure]:
    """Microseconds a record, and bytes a bundle, at each size; the ratio is to the smallest size."""
    figures: list[Figure] = []
    for bundles in sizes:
        load = Load()
        facts = worker("tests.bench.growth", bundles)
        if facts["bundles"] != bundles:
            raise RuntimeError(f"the view holds {facts['bundles']} bundles, not {bundles}")
        for name, value, unit in (
            ("time", facts["us_a_record"], "us/record"),
            ("memory", facts["bytes_a_bundle"], "B"),
        ):
            first = next((figure.value for figure in figures if figure.name.startswith(f"growth.{name}.")), value)
            name_ = f"growth.{name}.{bundles}-bundles"
            figures.append(Figure(name_, value, unit, value / first, "close to 1", load=str(load)))
    return figures


def _rows(bundles: int) -> Iterator[RecordRead]:
    namespaces = bundles // BUNDLES_OF_A_NAMESPACE
    maker = LogMaker(bundles * RECORDS_A_BUNDLE, namespaces=namespaces, bundles=BUNDLES_OF_A_NAMESPACE)
    for offset, (key, value) in enumerate(maker.make()):
        yield RecordRead(Topic.CHANNEL, 0, offset, 0, key, value)


def weigh(bundles: int) -> dict[str, float]:
    """Fold a log as it is made; only the fold is timed, in processor time, and only what it keeps is weighed."""
    gc.collect()
    view, taken_s, position = View(0, 1), 0.0, 0
    rows = _rows(bundles)
    while portion := list(islice(rows, PORTION)):
        began_s = time.process_time()
        position = read_many(view, portion, position, 1 << 62)
        taken_s += time.process_time() - began_s
    portion.clear()
    del rows
    gc.collect()
    with_view = resident_bytes()
    live = sum(1 for _ in view.live())
    del view
    gc.collect()
    return {
        "us_a_record": taken_s / position * 1e6,
        "bytes_a_bundle": (with_view - resident_bytes()) / bundles,
        "bundles": live,
    }


if __name__ == "__main__":
    print(json.dumps(weigh(int(sys.argv[1]))))
