"""When the demo takes the balancer's work as done."""

from __future__ import annotations

from typing import Any

import pytest

from statechannel.demo import chapters
from statechannel.demo.chapters import DemoError, until_settled


class AnsweringCluster:
    """Answers of two commands, by the number of the call."""

    def __init__(self, decisions: list[list[dict[str, Any]]], owner: list[str]) -> None:
        self._decisions, self._owner = decisions, owner
        self.asked = 0

    def ask(self, command: str, *_: str) -> dict[str, Any]:
        if command == "bundles":
            self._owner = self._owner[1:] or self._owner
            return {"bundles": [{"bundle": "t/n/0", "owner": self._owner[0]}]}
        self.asked += 1
        return {"decisions": self._decisions[min(self.asked, len(self._decisions)) - 1]}


def shed(*results: str, scores: tuple[float, float] = (0.3, 0.3)) -> dict[str, Any]:
    moves = [{"bundle": "t/n/0", "operation": "op", "destination": "b2", "result": result} for result in results]
    named = dict(zip(("b1", "b2"), scores, strict=True))
    return {"subject": "shed", "skipped": None, "at_ms": 10, "reason": "", "why": "", "moves": moves, "scores": named}


CALM = [shed()] * 3


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chapters, "_COMMAND_POLL_S", 0.0)


def test_moves_without_a_recorded_end_are_looked_for():
    cluster = AnsweringCluster([[shed("started"), *CALM]], owner=["b1", "b1", "b2"])
    assert until_settled(cluster, 0, 2).unsettled == []
    assert cluster.asked == 2


def test_a_move_that_never_arrives_is_told(monkeypatch):
    monkeypatch.setattr(chapters, "SETTLED_S", 0.05)
    with pytest.raises(DemoError, match="not balanced"):
        until_settled(AnsweringCluster([[shed("started"), *CALM]], owner=["b1"]), 0, 2)


def test_moves_that_failed_are_named_and_those_that_never_began_are_left_out():
    balanced = until_settled(AnsweringCluster([[shed("done", "timed-out", "abandoned"), *CALM]], owner=["b1"]), 0, 2)
    assert balanced.unsettled == ["t/n/0: timed-out"]
    assert len(list(balanced.moves)) == 2


def test_calm_is_not_enough_while_brokers_are_apart():
    apart, even = [shed("done"), *[shed(scores=(0.5, 0.3))] * 3], [shed("done"), *CALM]
    cluster = AnsweringCluster([apart, apart, even], owner=["b2"])
    assert until_settled(cluster, 0, 2, spread_max=0.15).after == {"b1": 0.3, "b2": 0.3}
    assert cluster.asked == 3
