"""A view that is written down as rows, in any order and a namespace at a time, goes on as the view itself would."""

from __future__ import annotations

from collections import defaultdict
from random import Random

import pytest

from statechannel.protocol.digest import digest
from statechannel.protocol.verdict import Verdict
from statechannel.protocol.view import View
from statechannel.protocol.view_rows import KeyRow, dump, restore
from statechannel.replay.auditor import audit_part
from statechannel.replay.survey import join_facts
from tests.twin import loggen
from tests.twin.wire import Line
from tests.unit.core.against_twin import KNOBS, by_partition, debts_of, fingerprint, read, record_of, seeds

CASES = [pytest.param(name, seed, id=f"{name}-{seed}") for name in KNOBS for seed in seeds(5)]


def rows_of(view: View, seed: int) -> list[KeyRow]:
    rows = list(dump(view))
    Random(seed).shuffle(rows)
    return rows


def remembered(view: View) -> dict[str, tuple[int, bool]]:
    return {key.name: (key.settled, key.purged) for key in view.keys.values()}


def everything(view: View) -> tuple[object, ...]:
    open_debts = [
        (key.name, debt.since_offset, debt.newest_offset, debt.highest_version)
        for key, debt in view.ledger.open.items()
    ]
    highest = {key.name: key.ring.highest for key in view.keys.values() if key.ring is not None}
    # Unknown fields are for those who write on: whoever goes on from rows only reads.
    return fingerprint(view, "more"), open_debts, remembered(view), highest, view.applied


@pytest.mark.parametrize(("knobs", "seed"), CASES)
def test_rows_hold_all_that_a_view_goes_on_from(knobs: str, seed: int) -> None:
    log = loggen.generate(seed, KNOBS[knobs])
    partitions = len(log.end_offsets)
    for partition, lines in by_partition(log).items():
        for cut in {len(lines) // 4, len(lines) // 2, len(lines) - 1, len(lines)} - {-1}:
            whole = View(partition, partitions)
            for line in lines[:cut]:
                if read(whole, line).verdict is Verdict.UNSUPPORTED_FORMAT:
                    break
            again = restore(partition, partitions, rows_of(whole, seed), whole.applied)
            assert everything(again) == everything(whole)
            for line in lines[cut:]:
                expected, result = read(whole, line), read(again, line)
                assert (result.verdict, result.why, result.format) == (expected.verdict, expected.why, expected.format)
                if result.verdict is Verdict.UNSUPPORTED_FORMAT:
                    break
            assert everything(again) == everything(whole)


@pytest.mark.parametrize("seed", seeds(8))
def test_a_joined_view_too(seed: int) -> None:
    log = loggen.generate(seed, KNOBS["wild"])
    partitions = len(log.end_offsets)
    for partition, lines in by_partition(log).items():
        records = [record_of(line) for line in lines]
        part = audit_part(partition, partitions, records, join_facts(records, oldest_kept_ms=0))
        again = restore(partition, partitions, rows_of(part.view, seed), part.view.applied)
        assert everything(again) == everything(part.view)


@pytest.mark.parametrize("seed", seeds(5))
def test_a_namespace_is_judged_without_the_others(seed: int) -> None:
    """Each namespace from its own rows and its own records: the same verdicts, and together the same view."""
    log = loggen.generate(seed, KNOBS["junky"])
    partitions = len(log.end_offsets)
    apart, whole_views = [], []
    for partition, lines in by_partition(log).items():
        whole = View(partition, partitions)
        half = len(lines) // 2
        expected = {line.offset: read(whole, line).verdict for line in lines[:half]}
        rows: dict[str, list[KeyRow]] = defaultdict(list)
        for row in dump(whole):
            rows[row.namespace].append(row)
        records: dict[str, list[Line]] = defaultdict(list)
        for line in lines[half:]:
            expected[line.offset] = read(whole, line).verdict
            records["/".join((line.key or b"").decode(errors="replace").split("/")[:2])].append(line)
        for namespace in rows.keys() | records.keys():
            view = restore(partition, partitions, rows[namespace])
            for line in records[namespace]:
                assert read(view, line).verdict is expected[line.offset], line
            apart.append(view)
        whole_views.append(whole)
    assert digest(apart) == digest(whole_views)
    assert sorted(debt.key for view in apart for debt in debts_of(view)) == sorted(
        debt.key for view in whole_views for debt in debts_of(view)
    )
