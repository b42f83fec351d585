"""Plan of an import into an empty channel: the same rings and owners, at higher versions (protocol.md section 8).

Pure: accepted states of a source in, plan out. The plan alone determines what is written, so its digest is the import's id:
a process with the same plan resumes the same import.
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
"""Room for changes of owner of one bundle since the backup: storage may have seen higher generations."""

_STEPS_ABOVE = 16
"""Versions that an imported namespace needs at once above its first, generously."""


@dataclass(frozen=True, slots=True)
class PlannedNamespace:
    """One namespace of the plan.

    Attributes:
        highest: Highest version of it and its bundles in the source, including Deleted parents.
        version: Version of its Active record in the target; its bundles begin there, and their owners serve above.
        bounds: Its live ring, one more than it has bundles.
        owners: Broker that each bundle is forced to, in the order of the ring; None: it stays Unassigned.
        deleted: It was deleted in the source. It is created and deleted again, so that its next creation has a higher version.
        in_flight: Number of in-flight bundles by state; the import decides them.
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
        return 1 + self.deleted + sum(owner is not None for owner in self.owners)


@dataclass(frozen=True, slots=True)
class ImportPlan:
    """All namespaces, by name."""

    namespaces: tuple[PlannedNamespace, ...]
    operation: str

    @property
    def records(self) -> int:
        """Number of records on keys of namespaces and bundles."""
        return sum(namespace.records for namespace in self.namespaces)

    @property
    def owners(self) -> Counter[str]:
        """Number of bundles forced to each broker."""
        return Counter(owner for namespace in self.namespaces for owner in namespace.owners if owner is not None)


def plan_import(views: Iterable[View], *, only: Collection[str] = (), headroom: int = DEFAULT_HEADROOM) -> ImportPlan:
    """Create the plan from all partitions of the source.

    Args:
        only: Selected namespaces; empty: all, also deleted ones.
        headroom: How far above the highest version of a namespace its new versions begin, at least 1. That is enough for
            everything in the log: a broker named in it may already have used a generation of two above the accepted
            version, and the first one of the target is three above.

    Raises:
        ImportRefusedError: A selected namespace does not exist, or cannot be imported.
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
        what = f"namespace {missing[0]} does not exist" if missing else "no namespaces"
        raise ImportRefusedError(
            f"{what} in the log to import", hint="--dry-run without --namespace lists all.", in_log=False
        )
    namespaces = tuple(planned[name] for name in sorted(planned))
    return ImportPlan(namespaces, _operation(namespaces))


def _planned(key: KeyState, headroom: int) -> PlannedNamespace:
    ring = key.ring
    highest = key.version if ring is None else ring.highest
    version = highest + headroom
    if version > MAX_INT - _STEPS_ABOVE:
        raise ImportRefusedError(
            f"{key.name} has version {highest}: a headroom of {headroom} exceeds the maximum {MAX_INT}",
            hint="Choose a smaller --headroom, or import the others with --namespace.",
        )
    if key.state is State.DELETED or ring is None:
        return PlannedNamespace(key.name, highest, version, (FULL_LOWER, FULL_UPPER), (None,), deleted=True)
    leaves = list(ring.live.values())
    if len(leaves) > MAX_CHILDREN:
        raise ImportRefusedError(
            f"{key.name} has {len(leaves)} bundles; the record that creates a namespace holds at most {MAX_CHILDREN}",
            hint="Import the others with --namespace, and create this one again.",
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
    """New owner of the bundle: its server, or the named broker if it is unserved."""
    return leaf.to if leaf.state is State.ASSIGNING else leaf.owner


def _operation(namespaces: Iterable[PlannedNamespace]) -> str:
    digest = sha256()
    for namespace in namespaces:
        digest.update(
            orjson.dumps([namespace.name, namespace.version, namespace.deleted, namespace.bounds, namespace.owners])
        )
    return f"import-{digest.hexdigest()[:32]}"
