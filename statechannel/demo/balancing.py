"""The chapter in which the cluster balances itself, told from what the commands say: the demo knows no strategy."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from statechannel.demo.cluster import Cluster
from statechannel.demo.errors import DemoError

CALM = 3
"""So many decisions in a row that could have moved something and did not, and it has settled."""
COOLING = "CoolDown"
"""Reason of a decision that waits for the brokers' figures after a move."""
SETTLED_S = 120.0
_POLL_S = 0.5


@dataclass(frozen=True, slots=True)
class Balanced:
    """What the balancer did.

    Attributes:
        decisions: Those that moved something, the oldest first.
        before: Each broker's score at the first of them; after: at the newest decision.
    """

    decisions: Sequence[dict[str, Any]]
    before: dict[str, float]
    after: dict[str, float]

    @property
    def moves(self) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
        """Each move that set out, with its decision."""
        return ((one, move) for one in self.decisions for move in _begun(one))

    @property
    def unsettled(self) -> Sequence[str]:
        """Moves that did not end well, in words."""
        return [f"{move['bundle']}: {move['result']}" for _, move in self.moves if move["result"] != "done"]


def spread(scores: dict[str, float]) -> float:
    """How far the brokers are apart."""
    return max(scores.values()) - min(scores.values()) if scores else 0.0


def until_settled(cluster: Cluster, since_ms: int, brokers: int) -> Balanced:
    """Wait until the balancer has moved something and then found nothing more to move.

    Args:
        since_ms: Decisions before this are not looked at.
        brokers: So many brokers have to be judged.

    Raises:
        DemoError: It takes too long.
    """
    until_s = time.monotonic() + SETTLED_S
    while True:
        listed = cluster.ask("decisions", "--since", "1h")["decisions"]
        made = [
            one for one in listed if one["subject"] == "shed" and one["skipped"] is None and one["at_ms"] >= since_ms
        ]
        moved = [one for one in made if _begun(one)]
        calm = not any(_begun(one) or one["reason"] == COOLING for one in made[-CALM:])
        if moved and calm and len(made[-1]["scores"]) == brokers:
            return Balanced(moved, moved[0]["scores"], made[-1]["scores"])
        if time.monotonic() > until_s:
            said = made[-1]["why"] if made else listed[-1]["why"] if listed else "nothing at all"
            raise DemoError(f"the cluster was not balanced within {SETTLED_S:.0f} s; the newest decision says: {said}")
        time.sleep(_POLL_S)


def _begun(decision: dict[str, Any]) -> list[dict[str, Any]]:
    return [one for one in decision["moves"] if one["operation"] is not None]
