"""Records are judged as well from the rows that they need as from the whole view, and change no row but those."""

from __future__ import annotations

from random import Random

import pytest

from spark.channel.survey import EVERYTHING, needed_for
from statechannel.protocol.verdict import Verdict
from statechannel.protocol.view import View
from statechannel.protocol.view_rows import KeyRow, dump, restore
from tests.twin import loggen
from tests.unit.core.against_twin import KNOBS, by_partition, read, seeds

CASES = [pytest.param(name, seed, id=f"{name}-{seed}") for name in KNOBS for seed in seeds(6)]


@pytest.mark.parametrize(("knobs", "seed"), CASES)
def test_a_batch_is_judged_from_the_rows_that_it_needs(knobs: str, seed: int) -> None:
    log = loggen.generate(seed, KNOBS[knobs])
    partitions = len(log.end_offsets)
    generator = Random(seed)
    for partition, lines in by_partition(log).items():
        whole = View(partition, partitions)
        rows: dict[str, KeyRow] = {}
        start = 0
        while start < len(lines):
            end = min(len(lines), start + generator.randint(1, 8))
            batch, start = lines[start:end], end
            needed = needed_for([line.key for line in batch if line.key is not None])
            few = [row for row in rows.values() if needed.holds(row)]
            view = restore(partition, partitions, few)
            expected = [read(whole, line).verdict for line in batch]
            assert [read(view, line).verdict for line in batch] == expected
            if Verdict.UNSUPPORTED_FORMAT in expected:
                break
            rest = {name: row for name, row in rows.items() if not needed.holds(row)}
            rows = rest | {row.key: row for row in dump(view)}
            assert rows == {row.key: row for row in dump(whole)}


def test_nothing_known_means_everything() -> None:
    row = next(iter(dump_of_one()))
    assert EVERYTHING.holds(row)
    assert needed_for(None) is EVERYTHING
    assert needed_for(None).condition(3) == "(partition = 3)"
    assert needed_for([b"!heartbeat", b"junk", b"a/b/c"]).condition(0) == "(partition = 0 and (false))"


def dump_of_one() -> list[KeyRow]:
    view = View(0, 1)
    read_one = view.read(0, b"a/b", None)
    assert read_one.verdict is Verdict.PURGED
    return list(dump(view))
