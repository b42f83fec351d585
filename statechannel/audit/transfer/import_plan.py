"""What an import has to bring about in an empty channel: the same rings and owners, at higher versions (protocol.md section 8).

Pure: accepted states of a source in, plan out. The plan alone decides what is written, so its digest is the import's id:
whoever comes to the same plan goes on with the same import.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from hashlib import sha256
from typing import TYPE_CHECKING

import orjson

from statechannel.audit.errors import ImportRefusedError
from statechannel.protocol.bundle import FULL_LOWER, FULL_UPPER, MAX_CHILDREN
from statechannel.protocol.codec import MAX_INT
from statechannel.protocol.states import IN_FLIGHT, State

if TYPE_CHECKING:
    from statechannel.protocol.keys import KeyState
    from statechannel.protocol.view import View

DEFAULT_HEADROOM = 1_000_000
"""A backup may be older than what storage has seen since: so many changes of owner of one bundle are made room for."""

_STEPS_ABOVE = 16
"""Versions that an imported namespace needs at once above its first, generously."""


@dataclass(frozen=True, slots=True)
class PlannedNamespace:
    """One namespace of the plan.

    Attributes:
        highest: Highest version of it and its bundles in the source, Deleted parents included.
        version: Version of its Active record in the target; its bundles begin there, and their owners serve above.
        bounds: Its live ring, one more than it has bundles.
        owners: Broker that each bundle is forced to, in the order of the ring; None: it stays Unassigned.
        deleted: It was deleted in the source. It is created and deleted again, so that its next creation goes on above.
        in_flight: State to number of bundles that were between two owners, and are decided by the import.
    """

    name: str
    highest: int
    version: int
    bounds: tuple[int, ...]
    owners: tuple[str | None, ...]
    deleted: bool = False
    in_flight: Counter[str] = field(default_factory=Counter, compare=False)

    @property
    def records(self) -> int:
        """Records that it takes."""
        return 1 + self.deleted + sum(owner is not None for owner in self.owners)


@dataclass(frozen=True, slots=True)
class ImportPlan:
    """All namespaces, by name."""

    namespaces: tuple[PlannedNamespace, ...]
    operation: str

    @property
    def records(self) -> int:
        """Records on keys of namespaces and bundles."""
        return sum(namespace.records for namespace in self.namespaces)

    @property
    def owners(self) -> Counter[str]:
        """Broker to number of bundles that are forced to it."""
        return Counter(owner for namespace in self.namespaces for owner in namespace.owners if owner is not None)


def plan_import(views: Iterable[View], *, only: Collection[str] = (), headroom: int = DEFAULT_HEADROOM) -> ImportPlan:
    """Make the plan from all partitions of the source.

    Args:
        only: Namespaces wanted; none: all, also those that were deleted.
        headroom: How far above the highest version of a namespace its new versions begin, at least 1. That is enough for
            all that the log knows of: a broker named in it may have been told a generation of two above the accepted
            version already, and the first one of the target is three above.

    Raises:
        ImportRefusedError: A namespace that is wanted does not exist, or cannot be written down.
    """
    if headroom < 1:
        raise ValueError(f"versions have to begin above those of the source, not {headroom} above")
    planned = {
        key.name: _planned(key, headroom)
        for view in views
        for key in view.existing()
        if key.is_namespace and (not only or key.name in only)
    }
    missing = sorted(set(only) - planned.keys())
    if missing or not planned:
        what = f"there is no namespace {missing[0]}" if missing else "there is no namespace"
        raise ImportRefusedError(
            f"{what} in the log that is to be imported",
            hint="Without --namespace, --dry-run shows all that it holds.",
            in_log=False,
        )
    namespaces = tuple(planned[name] for name in sorted(planned))
    return ImportPlan(namespaces, _operation(namespaces))


def _planned(key: KeyState, headroom: int) -> PlannedNamespace:
    ring = key.ring
    highest = key.version if ring is None else ring.highest
    version = highest + headroom
    if version > MAX_INT - _STEPS_ABOVE:
        raise ImportRefusedError(
            f"{key.name} has version {highest}: {headroom} above it there is no room left up to {MAX_INT}",
            hint="Choose a smaller --headroom, or import the others with --namespace.",
        )
    if key.state is State.DELETED or ring is None:
        return PlannedNamespace(key.name, highest, version, (FULL_LOWER, FULL_UPPER), (None,), deleted=True)
    leaves = list(ring.live.values())
    if len(leaves) > MAX_CHILDREN:
        raise ImportRefusedError(
            f"{key.name} has {len(leaves)} bundles; the record that creates a namespace holds {MAX_CHILDREN}",
            hint="Import the others with --namespace, and create this one anew.",
        )
    return PlannedNamespace(
        key.name,
        highest,
        version,
        (*(leaf.lower for leaf in leaves), FULL_UPPER),
        tuple(_owner(leaf) for leaf in leaves),
        in_flight=Counter(leaf.state.value for leaf in leaves if leaf.state is not None and leaf.state in IN_FLIGHT),
    )


def _owner(leaf: KeyState) -> str | None:
    """Who is to have the bundle: its server; the broker that was named where nobody serves it."""
    return leaf.to if leaf.state is State.ASSIGNING else leaf.owner


def _operation(namespaces: Iterable[PlannedNamespace]) -> str:
    digest = sha256()
    for namespace in namespaces:
        digest.update(
            orjson.dumps([namespace.name, namespace.version, namespace.deleted, namespace.bounds, namespace.owners])
        )
    return f"import-{digest.hexdigest()[:32]}"
