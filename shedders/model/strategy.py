"""Ports of strategies, and their discovery: entry points, one group per kind.

    [project.entry-points."shedders.shedding"]
    mine = "my_package:MyShedder"

A strategy is created with its settings model and is pure: the same cluster, settings and memory give the same result, whatever
the order of dictionaries or the hash seed. It returns state for its next call as `memory`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib.metadata import EntryPoint, entry_points
from typing import Any, ClassVar, Protocol, TypeVar, runtime_checkable

from pydantic import BaseModel, ConfigDict

from shedders.errors import StrategyFailedError, UnknownStrategyError
from shedders.model.cluster import Bundle, Cluster
from shedders.model.plan import Placed, Plan

SHEDDING, PLACEMENT, SPLIT = "shedders.shedding", "shedders.placement", "shedders.split"

Strategy = TypeVar("Strategy")


class StrategySettings(BaseModel):
    """Base of every strategy's settings: validated, unknown names refused, never changed."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


@runtime_checkable
class Shedding(Protocol):
    """Chooses bundles to move."""

    name: ClassVar[str]
    Settings: ClassVar[type[StrategySettings]]

    def plan(self, cluster: Cluster, memory: Mapping[str, Any]) -> Plan:
        """Decide once.

        Args:
            cluster: The cluster now.
            memory: `Plan.memory` of the last decision; empty at first.
        """
        ...


@runtime_checkable
class Placing(Protocol):
    """Chooses a broker for a bundle among candidates that the filters left."""

    name: ClassVar[str]
    Settings: ClassVar[type[StrategySettings]]

    def place(
        self,
        cluster: Cluster,
        bundle: Bundle,
        candidates: Sequence[str],
        booked: Mapping[str, Sequence[str]],
        memory: Mapping[str, Any],
    ) -> Placed:
        """Choose.

        Args:
            candidates: Sorted.
            booked: Bundles in flight to a broker that its report does not count yet.
            memory: `Placed.memory` of the last choice; empty at first.
        """
        ...


@runtime_checkable
class SplitAlgorithm(Protocol):
    """Chooses where a bundle is cut."""

    name: ClassVar[str]
    Settings: ClassVar[type[StrategySettings]]

    def positions(self, bundle: Bundle) -> Sequence[int]:
        """Hashes at which to cut, strictly inside the bundle, ascending, each once; empty where there is nothing to split."""
        ...


def available(kind: str) -> Mapping[str, EntryPoint]:
    """Installed strategies of a kind, by name."""
    return {point.name: point for point in sorted(entry_points(group=kind), key=lambda point: point.name)}


def load(kind: str, name: str, port: type[Strategy]) -> type[Strategy]:
    """The class of a strategy.

    Raises:
        UnknownStrategyError: No strategy has that name; the error lists those that exist.
        StrategyFailedError: It cannot be imported, or is not a strategy.
    """
    points = available(kind)
    if name not in points:
        raise UnknownStrategyError(kind, name, list(points))
    try:
        strategy = points[name].load()
    except Exception as error:
        raise StrategyFailedError(kind, name, f"cannot be imported: {error!r}") from error
    missing = [part for part in _parts(port) if not hasattr(strategy, part)]
    if not isinstance(strategy, type) or missing:
        raise StrategyFailedError(kind, name, f"lacks {', '.join(missing) or 'a class'}")
    return strategy


def _parts(port: type[Any]) -> list[str]:
    return sorted(part for part in {*vars(port), *vars(port).get("__annotations__", {})} if not part.startswith("_"))
