"""The ports of strategies, and how they are found: entry points, one group a kind.

    [project.entry-points."shedders.shedding"]
    mine = "my_package:MyShedder"

A strategy is made with its settings model and is pure: the same cluster, settings and memory give the same answer, whatever
the order of dictionaries or the hash seed. What it wants to remember it returns as `memory` and is given back.
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

Found = TypeVar("Found")


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
            booked: Bundles on their way to a broker that its report does not count yet.
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
    """What is installed of a kind, by name."""
    return {point.name: point for point in sorted(entry_points(group=kind), key=lambda point: point.name)}


def load(kind: str, name: str, port: type[Found]) -> type[Found]:
    """The class of a strategy.

    Raises:
        UnknownStrategyError: There is none of that name; the error lists what exists.
        StrategyFailedError: It cannot be imported, or is not one.
    """
    points = available(kind)
    if name not in points:
        raise UnknownStrategyError(kind, name, list(points))
    try:
        found = points[name].load()
    except Exception as error:
        raise StrategyFailedError(kind, name, f"cannot be imported: {error!r}") from error
    missing = [part for part in _parts(port) if not hasattr(found, part)]
    if not isinstance(found, type) or missing:
        raise StrategyFailedError(kind, name, f"lacks {', '.join(missing) or 'a class'}")
    return found


def _parts(port: type[Any]) -> list[str]:
    return sorted(part for part in {*vars(port), *vars(port).get("__annotations__", {})} if not part.startswith("_"))
