"""Operations as the log shows them: a fold over accepted records, in an engine or in an audit.

An operation is known by its id, which every record of it carries; so every reader of the log can say how it stands.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from statechannel.printable import one_line
from statechannel.protocol.bounded import remember
from statechannel.protocol.states import IN_FLIGHT, Flow, State

if TYPE_CHECKING:
    from statechannel.protocol.keys import KeyState
    from statechannel.protocol.record import Record
    from statechannel.protocol.view import View

RUNNING, ENDED, FAILED = "running", "ended", "failed"
_WHY_MAX = 1_000
_NAME_MAX = 128


@dataclass(slots=True)
class Operation:
    """How an operation stands, as the log shows it.

    Attributes:
        status: `running`, `ended` (as asked) or `failed` (ended otherwise).
        result: A stable word: `owned`, `transferred`, `taken-back`, `unloaded`, `declined`, `split`, `given-up`,
            `created`, `deleted`, `superseded`, `repaired`.
        why: Who ended it otherwise than asked, and why, if its record says so: a text for people.
    """

    id: str
    flow: str
    name: str
    partition: int
    offset: int
    status: str = RUNNING
    result: str = ""
    state: str = ""
    destination: str | None = None
    changed_offset: int = -1
    why: str = ""


class OperationListener(Protocol):
    """Is notified as operations are read."""

    def began(self, operation: Operation) -> None: ...

    def ended(self, operation: Operation) -> None:
        """The subject of an operation came to rest, or another operation interrupted it."""


class OperationFold:
    """The newest operations of a log.

    Attributes:
        known: Operations by id, in the order in which they began.
    """

    def __init__(self, operations_max: int, listener: OperationListener | None = None) -> None:
        self._operations_max = operations_max
        self._listener = listener
        self.known: dict[str, Operation] = {}
        self._current: dict[str, str] = {}
        self._through: dict[int, int] = {}

    def accepted(self, record: Record, key: KeyState, partition: int, offset: int) -> None:
        """An accepted record moves its operation on, and ends one that it interrupts."""
        if offset <= self._through.get(partition, -1):
            return  # a partition that is read again from its beginning
        self._through[partition] = offset
        name = key.name
        operation_id = key.operation
        before = self._current.get(name)
        if before is not None and before != operation_id:
            del self._current[name]
            interrupted = self.known.get(before)
            if interrupted is not None:
                interrupted.why = _why_superseded(interrupted.flow, record)
            self._end(before, FAILED, "superseded", offset)
        if operation_id is None:
            return
        operation = self.known.get(operation_id)
        if operation is None:
            # The unloads of a namespace's deletion come before its own record: the operation is the namespace's.
            subject = key.namespace if key.flow == Flow.NAMESPACE else name
            operation = Operation(operation_id, key.flow or "", subject, partition, offset)
            remember(self.known, operation_id, operation, self._operations_max)
            if self._listener is not None:
                self._listener.began(operation)
        operation.changed_offset = offset
        operation.state = record.state
        if operation.flow == Flow.NAMESPACE and not key.is_namespace:
            return
        if operation.name != name:
            return
        if record.state in IN_FLIGHT:
            operation.status = RUNNING
            operation.destination = record.to or operation.destination
            self._current[name] = operation_id
            return
        reason = record.text("reason")
        operation.why = f"{record.broker}: {one_line(reason[:_WHY_MAX])}" if reason else ""
        self._came_to_rest(operation, record.state, record.from_, offset)

    def seed(self, view: View) -> None:
        """After a lenient join: what the newest record of each key says of its operation."""
        for key in view.existing():
            self._seen_to_end(key)
            room = len(self.known) < self._operations_max
            of_deletion = key.flow == Flow.NAMESPACE and not key.is_namespace
            if key.operation is None or key.operation in self.known or key.derived or of_deletion or not room:
                continue
            if key.state is None:
                continue
            operation = Operation(key.operation, key.flow or "", key.name, view.partition, key.offset)
            operation.state = key.state
            operation.changed_offset = key.offset
            if key.state in IN_FLIGHT:
                self._current[key.name] = key.operation
            else:
                operation.status, operation.result = _ending(operation.flow, key.state, key.from_)
            self.known[key.operation] = operation

    def _seen_to_end(self, key: KeyState) -> None:
        """An operation that was running when the view was left may have ended meanwhile."""
        known = self.known.get(key.operation or "")
        if known is None or known.status != RUNNING or known.name != key.name or key.state is None:
            return
        known.state, known.changed_offset = key.state, key.offset
        if key.state not in IN_FLIGHT:
            self._came_to_rest(known, key.state, key.from_, key.offset)

    def _came_to_rest(self, operation: Operation, state: State, from_: str | None, offset: int) -> None:
        self._current.pop(operation.name, None)
        status, result = _ending(operation.flow, state, from_)
        self._end(operation.id, status, result, offset)

    def _end(self, operation_id: str, status: str, result: str, offset: int) -> None:
        operation = self.known.get(operation_id)
        if operation is None or operation.status != RUNNING:
            return
        operation.status, operation.result, operation.changed_offset = status, result, offset
        if self._listener is not None:
            self._listener.ended(operation)


def _why_superseded(flow: str, record: Record) -> str:
    """What interrupted an operation: mostly a broker died, and the leader gave the bundle to another one."""
    if not record.forced:
        return f"another change, by {record.broker}, was first"
    lost = record.raw.get("lost")
    broker = lost.get("broker") if isinstance(lost, dict) else None
    cause = "it was not done in time"
    if isinstance(broker, str):
        cause = f"{one_line(broker[:_NAME_MAX])} was lost before it was done"
    result = f"gave the bundle to {record.to}" if record.to else "left the bundle without an owner"
    return f"{cause}, and {record.broker} {result}{': it is not split' if flow == Flow.SPLIT else ''}"


def _ending(flow: str, state: State, from_: str | None) -> tuple[str, str]:
    """How an operation ended, by the state in which its bundle came to rest."""
    if state is State.ACTIVE:
        return ENDED, "created"
    if state is State.DELETED:
        return ENDED, "deleted" if flow == Flow.NAMESPACE else "split"
    if state is State.UNASSIGNED:
        if flow in (Flow.UNLOAD, Flow.SHUTDOWN):
            return ENDED, "unloaded"
        return (ENDED, "repaired") if flow == Flow.REPAIR else (FAILED, "declined")
    if flow == Flow.TRANSFER:
        # The destination's record carries the source; what was taken back carries null.
        return (ENDED, "transferred") if from_ is not None else (FAILED, "taken-back")
    if flow == Flow.SPLIT:
        return FAILED, "given-up"
    if flow == Flow.UNLOAD:
        return FAILED, "taken-back"
    return ENDED, "repaired" if flow == Flow.REPAIR else "owned"
