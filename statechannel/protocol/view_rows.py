"""Conversion of a view to plain rows and back, so that another reader can continue judging.

Rows of one namespace are enough to judge its records. Only informative fields of a Splitting record
(`intent`), and of earlier states, may be incomplete; verdicts do not depend on them. Unknown fields (`more`) are not in
them: they are for writers, and a reader of rows does not write.
"""

from __future__ import annotations

from array import array
from typing import TYPE_CHECKING, Final, NamedTuple

from statechannel.protocol.debts import Debt
from statechannel.protocol.keys import KeyState, Ring, Writer
from statechannel.protocol.states import IN_FLIGHT, State
from statechannel.protocol.view import View

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

_STATES: Final = {state.value: state for state in State}
_OWNED: Final = IN_FLIGHT | {State.ASSIGNED}


class KeyRow(NamedTuple):
    """One key of a view: the fields of `KeyState`, the id as the next proposal must name it, and the key's debt.

    Attributes:
        lower: -1 for a namespace.
        state: None if the key does not exist and is only remembered for its settling offset or its debt.
        bounds: Of the children (Active, Deleted bundle).
        debt_since: None if the key is not in debt.
    """

    namespace: str
    lower: int
    upper: int
    key: str
    state: str | None
    version: int
    from_: str | None
    to: str | None
    id: str | None
    record_id: str | None
    derived: bool
    offset: int
    owner: str | None
    generation: int | None
    bounds: list[int] | None
    settled: int
    purged: bool
    debt_since: int | None
    debt_newest: int | None
    debt_highest: int | None
    writer: str | None
    writer_incarnation: str | None
    server: str | None
    server_incarnation: str | None
    was: str | None
    forced: bool
    operation: str | None
    flow: str | None
    intent: list[str] | None


def dump(view: View) -> Iterator[KeyRow]:
    """Every key of the view, in no particular order."""
    open_debts = view.ledger.open
    for key in view.keys.values():
        debt = open_debts.get(key)
        writer, server = key.writer, key.server
        yield KeyRow(
            namespace=key.namespace,
            lower=key.lower,
            upper=key.upper,
            key=key.name,
            state=None if key.state is None else key.state.value,
            version=key.version,
            from_=key.from_,
            to=key.to,
            id=key.accepted_id,
            record_id=key.record_id,
            derived=key.derived,
            offset=key.offset,
            owner=key.owner,
            generation=key.generation,
            bounds=None if key.bounds is None else list(key.bounds),
            settled=key.settled,
            purged=key.purged,
            debt_since=None if debt is None else debt.since_offset,
            debt_newest=None if debt is None else debt.newest_offset,
            debt_highest=None if debt is None else debt.highest_version,
            writer=None if writer is None else writer.broker,
            writer_incarnation=None if writer is None else writer.incarnation,
            server=None if server is None else server.broker,
            server_incarnation=None if server is None else server.incarnation,
            was=None if key.was is None else key.was.value,
            forced=key.forced,
            operation=key.operation,
            flow=key.flow,
            intent=None if key.intent is None else list(key.intent),
        )


def restore(partition: int, partitions: int, rows: Iterable[KeyRow], applied: int = -1) -> View:
    """The view of the rows, or the part of it that they cover.

    Args:
        applied: Offset through which its writer had read the partition.
    """
    view = View(partition, partitions)
    view.applied = applied
    rings: dict[str, Ring] = {}
    debts: list[tuple[KeyState, Debt]] = []
    for row in rows:
        key = _key(row, view)
        view.keys[row.key.encode()] = key
        if row.debt_since is not None:
            newest = -1 if row.debt_newest is None else row.debt_newest
            highest = -1 if row.debt_highest is None else row.debt_highest
            debts.append((key, Debt(row.debt_since, newest, highest)))
        if key.state is not None and (key.lower >= 0 or key.state is State.ACTIVE):
            _join_ring(key, rings)
        _count(key, view)
        view.highest = max(view.highest, key.version)
    debts.sort(key=lambda item: item[1].since_offset)
    view.ledger.open = dict(debts)
    return view


def duplicate(view: View) -> View:
    """A view in the same state, but for what rows do not have, that goes on by itself."""
    other = restore(view.partition, view.partitions, dump(view), view.applied)
    other.newest_format = view.newest_format
    return other


def _key(row: KeyRow, view: View) -> KeyState:
    key = KeyState(row.namespace, row.lower, row.upper)
    key.state = None if row.state is None else _STATES[row.state]
    key.version, key.from_, key.to = row.version, row.from_, row.to
    key.record_id, key.derived = row.record_id, row.derived
    key.offset, key.settled, key.purged = row.offset, row.settled, row.purged
    key.bounds = None if row.bounds is None else array("I", row.bounds)
    key.writer = _writer(row.writer, row.writer_incarnation, view)
    key.server = _writer(row.server, row.server_incarnation, view)
    key.was = None if row.was is None else _STATES[row.was]
    key.forced, key.operation, key.flow = row.forced, row.operation, row.flow
    key.intent = None if row.intent is None else tuple(row.intent)
    return key


def _writer(broker: str | None, incarnation: str | None, view: View) -> Writer | None:
    if broker is None or incarnation is None:
        return None
    return view.writer_of(broker, incarnation)


def _join_ring(key: KeyState, rings: dict[str, Ring]) -> None:
    ring = rings.get(key.namespace)
    if ring is None:
        ring = rings[key.namespace] = Ring(key.namespace, key.version)
    key.ring = ring
    ring.highest = max(ring.highest, key.version)
    if key.lower < 0:
        return
    if key.state is State.DELETED:
        ring.parents.append(key)
        return
    ring.live[key.lower] = key
    ring.owned += key.state in _OWNED


def _count(key: KeyState, view: View) -> None:
    if key.lower < 0 or key.state is None:
        return
    if key.state in IN_FLIGHT:
        view.in_flight[key] = None
    bound = key.bound_for
    if bound is not None:
        key.bound = bound
        view.load[bound] = view.load.get(bound, 0) + 1
