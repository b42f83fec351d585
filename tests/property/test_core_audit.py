"""The audit's answer against the twin's: whole and compacted logs, every way to read, as of offsets and times."""

from __future__ import annotations

from collections import Counter
from datetime import UTC, datetime
from random import Random

import pytest

from tests.support.audits import check, core_audit
from tests.twin import audit as twin
from tests.twin import loggen
from tests.unit.core.against_twin import KNOBS, seeds


def moments(export: twin.Export, rng: Random) -> list[str | None]:
    """Offsets and times at, between, before and after the records, and within gaps."""
    highest = max(export.end_offsets.values())
    times = [line.timestamp_ms for line in export.lines]
    some = rng.choice(times)
    return [
        None, "0", str(rng.randint(0, highest)), str(rng.randint(0, highest)), str(highest), str(highest + 7),
        f"{some}ms", f"{some - 1}ms", f"{times[0] - 1}ms", f"{max(times) + 1}ms",
        datetime.fromtimestamp(some // 1000, UTC).isoformat(),
    ]  # fmt: skip


@pytest.mark.parametrize("knobs", KNOBS)
def test_answers_are_the_twins(knobs: str) -> None:
    outcomes: Counter[str] = Counter()
    for seed in seeds(3):
        rng = Random(f"audit {seed}")
        log = loggen.generate(seed, KNOBS[knobs])
        for compacted in (log, log.compacted(seed, KNOBS[knobs]), log.compacted(seed + 1000, KNOBS[knobs])):
            export = twin.from_export(compacted.export())
            if not export.lines:
                continue
            for as_of in moments(export, rng):
                for read in ("full", "join", "auto"):
                    outcomes[check(export, read, as_of)] += 1
    assert min(outcomes[outcome] for outcome in ("full", "join", "tentative", "refused")) > 5, outcomes


def test_a_gap_right_before_the_moment_asked_for_is_a_gap() -> None:
    """As of offset 6 of a log whose offset 6 was cleaned: not full, although no record before it is missing."""
    log = loggen.generate(1, KNOBS["honest"])
    line = next(line for line in log.lines if line.partition == 0)
    lines = [loggen.Line(0, offset, 1000 + offset, b"!note", b"x") for offset in (0, 1, 2, 4, 5)]
    export = twin.Export("t", {0: 6}, line.timestamp_ms, lines)
    for as_of, read in (("2", "full"), ("3", "join"), ("4", "join"), ("1002ms", "join"), ("1001ms", "full")):
        answer, _ = core_audit(export, "auto", as_of)
        assert isinstance(answer, dict)
        assert answer["read"] == read, as_of
        assert (answer["records"], answer["end_offsets"]) == (5, {"0": 6})
        check(export, "auto", as_of)
