"""Resolver: first valid wins. One record and one accepted state determine the verdict, and nothing else.

Every reader of the log uses it; it has no side effects. The order of the checks is part of the protocol (protocol.md section 3).
Upstream: `ServiceUnitStateDataConflictResolver.shouldKeepLeft`, whose gaps (a version gap waives all checks, a tombstone is
always valid) are closed here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from statechannel.protocol.record import Kind, Record
from statechannel.protocol.states import BUNDLE_STATES, FORCED, MOVES, Move, MoveCondition, State, Who
from statechannel.protocol.verdict import Verdict

if TYPE_CHECKING:
    from collections.abc import Callable

    from statechannel.protocol.keys import KeyState

    _Fits = Callable[[str | None, str | None, KeyState], bool]

_ASSERT: Final = Kind.ASSERT
_DELETED: Final = State.DELETED
_ACCEPTED: Final = Verdict.ACCEPTED


def judge(record: Record, accepted: KeyState) -> Verdict:
    """Verdict on a decoded proposal or assert on a key of this partition."""
    if record.kind is _ASSERT:
        return Verdict.ASSERT_EQUAL if _restates(record, accepted) else Verdict.ASSERT_STALE
    if accepted.state is None:
        return _first(record, accepted)
    derived = accepted.derived
    if record.id == accepted.record_id and not derived:
        return Verdict.DUPLICATE
    is_bundle = accepted.lower >= 0
    expected = accepted.version + 1 if is_bundle else _expected_of_namespace(record, accepted)
    if record.version != expected:
        return Verdict.STALE_VERSION if record.version < expected else Verdict.VERSION_GAP
    if record.base != (accepted.accepted_id if derived else accepted.record_id):
        return Verdict.WRONG_BASE
    return _bundle_move(record, accepted) if is_bundle else _namespace_move(record, accepted)


def _expected_of_namespace(record: Record, accepted: KeyState) -> int:
    if record.state is _DELETED and accepted.state is State.ACTIVE and accepted.ring is not None:
        return accepted.ring.highest + 1
    return accepted.version + 1


def _first(record: Record, accepted: KeyState) -> Verdict:
    """A proposal on a key that does not exist: only a namespace can begin, at any version from 1."""
    if not accepted.is_namespace or record.state is not State.ACTIVE:
        return Verdict.UNKNOWN_BUNDLE
    if record.version < 1:
        return Verdict.STALE_VERSION
    if record.base is not None:
        return Verdict.WRONG_BASE
    return _activation(record)


def _activation(record: Record) -> Verdict:
    if record.forced:
        return Verdict.ILLEGAL_MOVE
    return Verdict.ACCEPTED if children_fit(record, is_namespace=True) else Verdict.BAD_CHILDREN


def _namespace_move(record: Record, accepted: KeyState) -> Verdict:
    if accepted.state is State.DELETED and record.state is State.ACTIVE:
        return _activation(record)
    if accepted.state is State.ACTIVE and record.state is State.DELETED and not record.forced:
        in_use = accepted.ring is not None and accepted.ring.owned > 0
        return Verdict.NAMESPACE_IN_USE if in_use else Verdict.ACCEPTED
    return Verdict.ILLEGAL_MOVE


def _bundle_move(record: Record, accepted: KeyState) -> Verdict:
    was: State = accepted.state  # type: ignore[assignment]
    row = (_FORCED_ROWS if record.forced else ROWS)[was].get(record.state)
    if row is None:
        return Verdict.ILLEGAL_MOVE
    is_met, from_fits, to_fits, has_children = row
    if is_met is not None and not is_met(accepted):
        return Verdict.ILLEGAL_MOVE
    from_ = record.from_
    if not (from_fits(from_, from_, accepted) and to_fits(record.to, from_, accepted)):
        return Verdict.WRONG_BROKER
    if has_children and not children_fit(record, accepted.lower, accepted.upper):
        return Verdict.BAD_CHILDREN
    return _ACCEPTED


_MET: Final[dict[MoveCondition, Callable[[KeyState], bool] | None]] = {
    MoveCondition.NOTHING: None,
    MoveCondition.DESTINATION: lambda accepted: accepted.to is not None,
    MoveCondition.NO_DESTINATION: lambda accepted: accepted.to is None,
    MoveCondition.CHILDREN: None,
}
"""Whether a move is listed at all from this accepted state; None: always."""

_FITS: Final[dict[Who, _Fits]] = {
    Who.ANY: lambda _broker, _from, _accepted: True,
    Who.NULL: lambda broker, _from, _accepted: broker is None,
    Who.SET: lambda broker, _from, _accepted: broker is not None,
    Who.ACCEPTED_FROM: lambda broker, _from, accepted: broker == accepted.from_,
    Who.ACCEPTED_TO: lambda broker, _from, accepted: broker == accepted.to,
    Who.NULL_OR_OTHER: lambda broker, from_, _accepted: broker is None or broker != from_,
}
"""Whether a record's `from` or `to`, beside its `from`, is the broker that the move asks for."""

_Row = tuple["Callable[[KeyState], bool] | None", "_Fits", "_Fits", bool]


def _row(move: Move) -> _Row:
    return _MET[move.need], _FITS[move.from_], _FITS[move.to], move.need is MoveCondition.CHILDREN


# The tables with their checks looked up once, by accepted state and then by the record's.
ROWS: Final[dict[State, dict[State, _Row]]] = {
    was: {to: _row(move) for (from_, to), move in MOVES.items() if from_ is was} for was in BUNDLE_STATES
}
_FORCED_ROWS: Final[dict[State, dict[State, _Row]]] = {
    was: {} if was is _DELETED else {to: _row(move) for to, move in FORCED.items()} for was in BUNDLE_STATES
}


def children_fit(record: Record, lower: int = 0, upper: int = 0xFFFFFFFF, *, is_namespace: bool = False) -> bool:
    """Whether the children cover the range exactly once: one or more of a namespace, two or more of a bundle.

    This is all that a joining reader judges of a record "on its face" (protocol.md section 4).
    """
    bounds = record.bounds()
    least = 2 if is_namespace else 3
    return bounds is not None and len(bounds) >= least and bounds[0] == lower and bounds[-1] == upper


def _restates(record: Record, accepted: KeyState) -> bool:
    if record.state is State.ABSENT:
        return accepted.state is None and record.version == 0 and record.base is None
    return (
        record.state is accepted.state
        and record.version == accepted.version
        and record.base == accepted.accepted_id
        and (accepted.is_namespace or (record.from_ == accepted.from_ and record.to == accepted.to))
        and record.children == accepted.children
    )
