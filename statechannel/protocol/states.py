"""Tables of states and moves of the channel.

The table below is the table of moves of protocol.md section 2; the resolver interprets it, and
design/protocol.md is generated from it. Upstream: `ServiceUnitState.isValidTransition`, PIP-192 "Bundle State Lifecycles".
"""

from __future__ import annotations

from enum import StrEnum
from typing import Final, NamedTuple


class State(StrEnum):
    """States of bundles and namespaces; upstream's final names in brackets."""

    UNASSIGNED = "Unassigned"  # [Free]
    ASSIGNING = "Assigning"
    ASSIGNED = "Assigned"  # [Owned]
    RELEASING = "Releasing"
    SPLITTING = "Splitting"
    DELETED = "Deleted"
    ACTIVE = "Active"  # namespaces only
    ABSENT = "Absent"  # asserts only: no such key


class Action(StrEnum):
    """Reason of a record, informative; verdicts do not depend on it."""

    OWN = "own"
    RETURN = "return"
    TRANSFER = "transfer"
    UNLOAD = "unload"
    SPLIT = "split"
    DECLINE = "decline"
    RESUME = "resume"
    CREATE = "create"
    DELETE = "delete"
    REPAIR = "repair"


class Flow(StrEnum):
    """Flow of a record, informative; verdicts do not depend on it."""

    ASSIGNMENT = "assignment"
    TRANSFER = "transfer"
    UNLOAD = "unload"
    SPLIT = "split"
    NAMESPACE = "namespace"
    REPAIR = "repair"
    SHUTDOWN = "shutdown"


class Who(StrEnum):
    """Required `from` or `to` of a record, relative to the accepted state."""

    ANY = "any"
    NULL = "null"
    SET = "set"
    ACCEPTED_FROM = "= acc.from"
    ACCEPTED_TO = "= acc.to"
    NULL_OR_OTHER = "null, or different from `from`"


class MoveCondition(StrEnum):
    NOTHING = ""
    DESTINATION = "only if acc.to is set"
    NO_DESTINATION = "only if acc.to is null"
    CHILDREN = "children cover the bundle, two or more"


class Move(NamedTuple):
    """One row of the table: a legal move and the brokers that must fit."""

    action: Action
    from_: Who
    to: Who
    need: MoveCondition = MoveCondition.NOTHING


BUNDLE_STATES: Final = frozenset(
    {State.UNASSIGNED, State.ASSIGNING, State.ASSIGNED, State.RELEASING, State.SPLITTING, State.DELETED}
)
NAMESPACE_STATES: Final = frozenset({State.ACTIVE, State.DELETED})
BETWEEN_OWNERS: Final = frozenset({State.ASSIGNING, State.RELEASING})
IN_FLIGHT: Final = BETWEEN_OWNERS | {State.SPLITTING}

MOVES: Final[dict[tuple[State, State], Move]] = {
    (State.UNASSIGNED, State.ASSIGNING): Move(Action.OWN, Who.NULL, Who.SET),
    (State.ASSIGNING, State.ASSIGNED): Move(Action.RETURN, Who.ACCEPTED_FROM, Who.ACCEPTED_TO),
    (State.ASSIGNING, State.UNASSIGNED): Move(Action.DECLINE, Who.ACCEPTED_TO, Who.NULL),
    (State.ASSIGNED, State.ASSIGNED): Move(Action.RESUME, Who.NULL, Who.ACCEPTED_TO),
    (State.ASSIGNED, State.RELEASING): Move(Action.UNLOAD, Who.ACCEPTED_TO, Who.NULL_OR_OTHER),
    (State.ASSIGNED, State.SPLITTING): Move(Action.SPLIT, Who.ACCEPTED_TO, Who.NULL),
    (State.RELEASING, State.ASSIGNING): Move(
        Action.TRANSFER, Who.ACCEPTED_FROM, Who.ACCEPTED_TO, MoveCondition.DESTINATION
    ),
    (State.RELEASING, State.UNASSIGNED): Move(Action.UNLOAD, Who.ACCEPTED_FROM, Who.NULL, MoveCondition.NO_DESTINATION),
    (State.RELEASING, State.ASSIGNED): Move(Action.RESUME, Who.NULL, Who.ACCEPTED_FROM),
    (State.SPLITTING, State.DELETED): Move(Action.SPLIT, Who.ACCEPTED_FROM, Who.NULL, MoveCondition.CHILDREN),
    (State.SPLITTING, State.ASSIGNED): Move(Action.RESUME, Who.NULL, Who.ACCEPTED_FROM),
}
"""Moves of bundles that are not forced."""

FORCED: Final[dict[State, Move]] = {
    State.UNASSIGNED: Move(Action.REPAIR, Who.ANY, Who.NULL),
    State.ASSIGNING: Move(Action.REPAIR, Who.ANY, Who.SET),
}
"""Forced moves by the state they lead to, from any state but Deleted."""


def is_left_by_shutdown(state: State | None, flow: str | None) -> bool:
    """Whether a bundle has no owner because brokers shut down: the leader has to assign it. Others wait for a lookup."""
    return state is State.UNASSIGNED and flow == Flow.SHUTDOWN
