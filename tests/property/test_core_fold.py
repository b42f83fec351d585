"""The fold of a caught-up reader against the twin: verdicts, states, debts, digests and counts after every record."""

from __future__ import annotations

from collections import Counter

import pytest

from statechannel.protocol.digest import digest
from statechannel.protocol.verdict import Verdict
from statechannel.protocol.view import View
from statechannel.protocol.view_rows import duplicate
from tests.twin import judge, loggen
from tests.twin.judge import Judge
from tests.unit.core.against_twin import (
    KNOBS,
    by_partition,
    check_counters,
    debts_of,
    fingerprint,
    read,
    seeds,
    states_of,
    words_of,
)

CASES = [pytest.param(name, seed, id=f"{name}-{seed}") for name in KNOBS for seed in seeds(10)]


@pytest.mark.parametrize(("knobs", "seed"), CASES)
def test_every_record_means_what_it_means_to_the_twin(knobs: str, seed: int) -> None:
    log = loggen.generate(seed, KNOBS[knobs])
    views, states = [], {}
    for partition, lines in by_partition(log).items():
        view = View(partition, len(log.end_offsets))
        twin = Judge(partition, len(log.end_offsets))
        for line in lines:
            expected = twin.read(line)
            assert expected is not None
            judgement = read(view, line)
            assert words_of(judgement) == (expected.verdict, expected.version, expected.state), line
            if twin.stopped is not None:
                assert (judgement.format, view.applied) == (twin.stopped[1], line.offset - 1)
                break
            assert view.applied == line.offset
            accepted = twin.states()
            assert states_of(view) == accepted, line
            assert debts_of(view) == twin.debts(), line
            check_counters(view, accepted)
        views.append(view)
        states |= twin.states()
    assert digest(views) == judge.digest(states)
    assert digest(reversed(views)) == judge.digest(states)


@pytest.mark.parametrize("seed", seeds(8))
def test_only_accepted_records_change_what_is_accepted(seed: int) -> None:
    log = loggen.generate(seed, KNOBS["wild"])
    seen: Counter[Verdict] = Counter()
    for partition, lines in by_partition(log).items():
        view = View(partition, len(log.end_offsets))
        before = fingerprint(view)
        for line in lines:
            verdict = read(view, line).verdict
            after = fingerprint(view)
            assert (after != before) == (verdict is Verdict.ACCEPTED), line
            before = after
            seen[verdict] += 1
            if verdict is Verdict.UNSUPPORTED_FORMAT:
                break
    assert seen[Verdict.ACCEPTED] > 0


@pytest.mark.parametrize("seed", seeds(8))
def test_a_prefix_and_the_rest_make_the_whole(seed: int) -> None:
    """A duplicate taken anywhere goes on as the original does, and a second replay ends the same."""
    log = loggen.generate(seed, KNOBS["wild"])
    for partition, lines in by_partition(log).items():
        whole = View(partition, len(log.end_offsets))
        verdicts = [read(whole, line).verdict for line in lines]
        for cut in {0, len(lines) // 3, len(lines) // 2, len(lines)}:
            prefix = View(partition, len(log.end_offsets))
            head = [read(prefix, line).verdict for line in lines[:cut]]
            rest = duplicate(prefix)
            untouched = fingerprint(prefix), debts_of(prefix)
            tail = [read(rest, line).verdict for line in lines[cut:]]
            assert head + tail == verdicts
            assert (fingerprint(rest, "more"), debts_of(rest)) == (fingerprint(whole, "more"), debts_of(whole))
            assert (fingerprint(prefix), debts_of(prefix)) == untouched
