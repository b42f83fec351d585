"""The lease at one moment: a process that was paused may be asked before its engine has heard of the time that went by."""

import pytest

from statechannel.core.commands import CreateNamespace, Lookup, Owned
from tests.support.lone_engine import BUNDLE, LoneEngine

NAME = BUNDLE.decode()


def serving(**config) -> tuple[LoneEngine, int]:
    """An engine that serves a bundle, and its generation."""
    lone = LoneEngine([], **config)
    lone.run(15)
    answers: list = []
    lone.ask(CreateNamespace("t/n", (0, 0xFFFFFFFF), "op1", 10), answers.append)
    lone.run(1)
    lone.ask(Lookup(NAME, 10), answers.append)
    lone.run(5)
    assert isinstance(answers[-1], Owned)
    return lone, answers[-1].generation


def test_who_serves_may_serve_at_that_generation():
    lone, generation = serving(lease_s=2.5)
    assert lone.engine.lease.serves_at(NAME, lone._now_s) == generation
    assert lone.engine.lease.serves_at("t/n/0x00000000_0x80000000", lone._now_s) is None


@pytest.mark.parametrize(("lease_s", "later_s", "may"), [(2.5, 2.0, True), (2.5, 4.0, False), (None, 4_000.0, True)])
def test_after_a_pause_the_clock_decides_not_what_was_stepped_last(lease_s, later_s, may):
    lone, generation = serving(lease_s=lease_s)
    before = lone.engine.serving()
    assert lone.engine.lease.serves_at(NAME, lone._now_s + later_s) == (generation if may else None)
    assert lone.engine.serving() == before == {NAME: generation}
