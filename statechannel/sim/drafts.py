"""Records of scripted writers: legal moves on a view, asserts, heartbeats."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from statechannel.protocol.bundle import bounds_at, children_of, namespace_bounds
from statechannel.protocol.codec import encode
from statechannel.protocol.states import State

if TYPE_CHECKING:
    from collections.abc import Sequence
    from random import Random

    from statechannel.protocol.keys import KeyState
    from statechannel.protocol.view import View

Fields = dict[str, Any]
_DELETE_IDLE = 0.3
_FORCE = 0.08


class Scribe:
    """Numbers the records of one process."""

    def __init__(self, broker: str, incarnation: str) -> None:
        self.broker = broker
        self.incarnation = incarnation
        self._count = 0

    def head(self, kind: str, covers: int) -> Fields:
        """The fields that every record has."""
        self._count += 1
        return {
            "format": 1,
            "kind": kind,
            "id": f"{self.broker}-{self.incarnation}-{self._count}",
            "covers": covers,
            "by": {"broker": self.broker, "incarnation": self.incarnation},
        }

    def restate(self, key: KeyState, covers: int) -> bytes:
        """An assert of what a view holds for a key."""
        exists = key.state is not None
        fields = self.head("assert", covers) | {
            "version": key.version if exists else 0,
            "asserts": key.accepted_id if exists else None,
            "state": key.state if exists else State.ABSENT,
        }
        if not key.is_namespace:
            fields |= {"from": key.from_, "to": key.to}
        if exists and key.bounds is not None:
            fields["children"] = key.children
        return encode(fields)

    def heartbeat(self, view: View) -> bytes:
        """An honest heartbeat."""
        clean_to = -1 if view.ledger.open else view.applied
        return encode(self.head("heartbeat", view.applied) | {"clean_to": clean_to})

    def proposal(self, key: KeyState, covers: int, fields: Fields) -> Fields:
        """A proposal that builds on the accepted state of a key."""
        base = {"version": key.version + 1, "base": key.accepted_id}
        return self.head("proposal", covers) | base | fields


def cut(rng: Random, lower: int, upper: int) -> list[str] | None:
    """Children of a split in two or three, or None where the range is too small."""
    if upper - lower < 8:  # noqa: PLR2004
        return None
    middle = (lower + upper) // 2
    places = [middle] if rng.random() < 0.7 else [(lower + middle) // 2, middle]  # noqa: PLR2004
    return children_of(bounds_at(lower, upper, places))


def first_ring(rng: Random, bundles: int) -> list[str]:
    """Children of a new namespace."""
    return children_of(namespace_bounds(rng.randint(1, bundles)))


def namespace_move(rng: Random, root: KeyState | None, bundles: int) -> Fields:
    """Create, delete or re-create a namespace."""
    if root is None or root.state is not State.ACTIVE or root.ring is None:
        fields: Fields = {"state": State.ACTIVE, "children": first_ring(rng, bundles)}
        if root is None:
            fields["version"] = rng.choice((1, 1, 1, 7))
        return fields
    return {"state": State.DELETED, "version": root.ring.highest + 1}


def bundle_move(rng: Random, key: KeyState, brokers: Sequence[str], *, splits: bool, idle: bool) -> Fields:
    """A legal move of a live bundle."""
    someone = rng.choice(brokers)
    if rng.random() < _FORCE:
        state = rng.choice((State.UNASSIGNED, State.ASSIGNING))
        to = someone if state is State.ASSIGNING else None
        return {"state": state, "from": key.owner, "to": to, "forced": True}
    match key.state:
        case State.UNASSIGNED:
            return {"state": State.ASSIGNING, "from": None, "to": someone}
        case State.ASSIGNING:
            if idle or rng.random() < 0.15:  # noqa: PLR2004
                return {"state": State.UNASSIGNED, "from": key.to, "to": None}
            return {"state": State.ASSIGNED, "from": key.from_, "to": key.to}
        case State.RELEASING:
            if rng.random() < 0.15:  # noqa: PLR2004
                return {"state": State.ASSIGNED, "from": None, "to": key.from_}
            state = State.UNASSIGNED if key.to is None else State.ASSIGNING
            return {"state": state, "from": key.from_, "to": key.to}
        case State.SPLITTING:
            children = cut(rng, key.lower, key.upper)
            if children is None or rng.random() < 0.2:  # noqa: PLR2004
                return {"state": State.ASSIGNED, "from": None, "to": key.from_}
            return {"state": State.DELETED, "from": key.from_, "to": None, "children": children}
        case _:
            roll = rng.random()
            if splits and not idle and roll < 0.25:  # noqa: PLR2004
                return {"state": State.SPLITTING, "from": key.to, "to": None}
            if not idle and roll < 0.4:  # noqa: PLR2004
                return {"state": State.ASSIGNED, "from": None, "to": key.to}
            target = None if idle or someone == key.to or roll < 0.6 else someone  # noqa: PLR2004
            return {"state": State.RELEASING, "from": key.to, "to": target}


def pick_move(
    rng: Random, view: View, namespace: str, brokers: Sequence[str], *, bundles: int, splits: bool, deletion: bool
) -> tuple[KeyState | str, Fields]:
    """What an honest writer might want to do next in a namespace; a name where the key does not exist."""
    root = view.get(namespace)
    if root is None:
        return namespace, namespace_move(rng, None, bundles)
    ring = root.ring
    if ring is None:
        return root, namespace_move(rng, root, bundles)
    if deletion and ring.owned == 0 and rng.random() < _DELETE_IDLE:
        return root, namespace_move(rng, root, bundles)
    live = list(ring.live.values())
    newest = max(live, key=lambda key: (key.version, key.lower))
    chosen = newest if rng.random() < 0.3 else rng.choice(live)  # noqa: PLR2004 - down one path, so that trees get deep
    idle = deletion and len(live) > bundles and rng.random() < 0.7  # noqa: PLR2004
    return chosen, bundle_move(rng, chosen, brokers, splits=splits and len(live) < 3 * bundles, idle=idle)
