"""What a fault is: a small class with a name, a way to begin, and a way to heal. The campaign finds them in `KINDS`."""

from __future__ import annotations

import random
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

if TYPE_CHECKING:
    from tests.faults.world import World

EVERYBODY = "*"


class Fault(ABC):
    """One fault of a run, chosen by its seed.

    Attributes:
        weight: How often it is drawn, beside the others.
        nodes: Number of Kafka nodes that it needs; 0: any.
        held_s: Shortest and longest time that it is on.
        on_kafka: It touches Kafka, and with it everybody.
        lasting: It stays on until the other brokers have led, repaired and served beside it, and then for `hold_s`.
        alone: Nothing else is on: what is left of the cluster must recover before it, and before what follows.
        by_name_only: Drawn only where it is asked for: it promises something only where it strikes alone, on a healthy cluster.
        touched: Broker ids that it has touched, known once it has begun.
    """

    kind: ClassVar[str]
    weight: ClassVar[int] = 2
    nodes: ClassVar[int] = 0
    held_s: ClassVar[tuple[float, float]] = (1.0, 5.0)
    on_kafka: ClassVar[bool] = False
    lasting: ClassVar[bool] = False
    alone: ClassVar[bool] = False
    by_name_only: ClassVar[bool] = False

    def __init__(self, target: str, hold_s: float, **params: Any) -> None:
        self.target, self.hold_s, self.params = target, hold_s, params
        self.touched: tuple[str, ...] = (EVERYBODY,) if self.on_kafka else ()

    @classmethod
    def pick(cls, rng: random.Random, brokers: list[str]) -> Fault:
        """One with everything chosen: nothing is left to chance later."""
        hold_s = round(rng.uniform(*cls.held_s), 2)
        return cls(cls.pick_target(rng, brokers), hold_s, **cls.pick_params(rng))

    @classmethod
    def pick_target(cls, rng: random.Random, brokers: list[str]) -> str:
        if cls.on_kafka:
            return "kafka"
        return rng.choice([*brokers, "leader", "leader", "owner", "owner"])

    @classmethod
    def pick_params(cls, rng: random.Random) -> dict[str, Any]:
        return {}

    def facts(self) -> dict[str, Any]:
        return {"kind": self.kind, "target": self.target, "hold_s": self.hold_s, **self.params}

    def __str__(self) -> str:
        more = "".join(f" {name}={value}" for name, value in self.params.items())
        return f"{self.kind} {self.target} {self.hold_s:g}s{more}"

    @abstractmethod
    async def begin(self, world: World) -> str:
        """Do it; returns what it came to, for the evidence."""

    @abstractmethod
    async def heal(self, world: World) -> None:
        """Take it back. Whatever else has happened meanwhile, afterwards this fault is over."""


KINDS: dict[str, type[Fault]] = {}
F = TypeVar("F", bound=type[Fault])


def fault(kind: F) -> F:
    """Class decorator: the campaign may draw it."""
    KINDS[kind.kind] = kind
    return kind
