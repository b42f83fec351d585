"""A digest that follows a view is that of the view as it is, whatever was judged, replaced or joined in between."""

from random import Random

import pytest

from statechannel.protocol.digest import ViewDigest, ViewSummary
from statechannel.protocol.verdict import Verdict
from statechannel.protocol.view import View
from statechannel.protocol.view_rows import duplicate
from tests.twin import loggen
from tests.unit.core.against_twin import KNOBS, by_partition, read, seeds

CASES = [pytest.param(name, seed, id=f"{name}-{seed}") for name in KNOBS for seed in seeds(6)]


def anew(view: View) -> ViewSummary:
    """Of a copy, from nothing."""
    copy = duplicate(view)
    summary = ViewDigest(copy).advance(len(copy.keys))
    assert summary is not None
    return summary


@pytest.mark.parametrize(("knobs", "seed"), CASES)
def test_a_digest_that_follows_a_view_is_that_of_the_view(knobs: str, seed: int) -> None:
    log, random = loggen.generate(seed, KNOBS[knobs]), Random(seed)
    partitions = len(log.end_offsets)
    for partition, lines in by_partition(log).items():
        view = View(partition, partitions)
        digest, compared = ViewDigest(view), 0
        for line in lines:
            if read(view, line).verdict is Verdict.UNSUPPORTED_FORMAT:
                break
            assert view.highest >= max((key.version for key in view.existing()), default=0)
            if random.random() < 0.3 and (summary := digest.advance(random.choice((0, 1, 7, 1000)))) is not None:
                assert summary == anew(view)
                compared += 1
        assert compared or len(lines) < 20
