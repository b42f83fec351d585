"""Commands that change the channel, and what became of them.

An answer names the id of the operation, by which a caller can ask for it again after a restart, at any broker. Upstream's
calls return when the first record is *appended*, accepted or not.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from statechannel.engine.commands import (
    AwaitOperation,
    CreateNamespace,
    DeleteNamespace,
    Done,
    NotFound,
    Outcome,
    Rejected,
    Split,
    Started,
    Transfer,
    Undetermined,
    Unknown,
    Unload,
)
from statechannel.engine.deadlines import Deadlines
from statechannel.engine.names import locate, mistyped
from statechannel.engine.operation_fold import ENDED, RUNNING, OperationFold
from statechannel.engine.proposals import ProposalResult, ProposalStatus
from statechannel.protocol.bundle import bounds_at, children_of, even_bounds, is_namespace, is_new_namespace
from statechannel.protocol.codec import CLOSING_PREFIX
from statechannel.protocol.keys import KeyState
from statechannel.protocol.states import IN_FLIGHT, Action, Flow, State
from statechannel.protocol.verdict import MEANING

if TYPE_CHECKING:
    from statechannel.engine.context import Context
    from statechannel.engine.operation_fold import Operation
    from statechannel.engine.proposals import Proposals
    from statechannel.engine.reactions import Reactions

TIMED_OUT_A_STEP = 1_000
LATER = "Ask for the operation again later."


@dataclass(slots=True)
class _Deletion:
    """The deletion of a namespace: closed, unloaded, deleted.

    Attributes:
        unsure: The end of an earlier record is unknown.
    """

    token: int
    namespace: str
    accepted_id: str | None
    operation: str
    deadline_s: float
    reason: str | None = None
    retry_at_s: float = 0.0
    writing: bool = False
    unsure: bool = False
    answered: bool = False


class Operations:
    """Commands under way.

    Attributes:
        fold: The operations seen in the log; `known` has them by id.
    """

    def __init__(self, context: Context, proposals: Proposals, reactions: Reactions) -> None:
        self._context = context
        self._proposals = proposals
        self._reactions = reactions
        self.fold = OperationFold(context.config.operations_max, self)
        self.known = self.fold.known
        self._waiters: dict[str, dict[int, None]] = {}
        self._waited_for: dict[int, str] = {}
        self._deadlines = Deadlines()
        self._deletions: dict[str, _Deletion] = {}
        self._starting: dict[int, tuple[str, str, float]] = {}

    # --- what the log says ------------------------------------------------------------------------------------------

    def began(self, operation: Operation) -> None:
        """Report the first record of an operation, except in a replay."""
        if self._context.judges(operation.partition):
            self._context.emit(
                "operation.began",
                operation=operation.id,
                flow=operation.flow,
                bundle=operation.name,
                offset=operation.offset,
            )

    def ended(self, operation: Operation) -> None:
        """Report how an operation ended, except in a replay; answer those that wait for it."""
        if self._context.judges(operation.partition):
            self._context.emit(
                "operation.ended",
                operation=operation.id,
                flow=operation.flow,
                bundle=operation.name,
                result=operation.result,
                offset=operation.changed_offset,
            )
        for token in self._waiters.pop(operation.id, ()):
            del self._waited_for[token]
            self._deadlines.drop(token)
            self._context.complete(token, self._outcome(operation))

    @staticmethod
    def _outcome(operation: Operation) -> Outcome:
        facts = {"bundle": operation.name, "flow": operation.flow, "offset": operation.changed_offset}
        if operation.status == ENDED:
            return Done(operation.id, operation.result, facts)
        because = f" ({operation.why})" if operation.why else ""
        return Rejected(
            operation.result, f"operation {operation.id} on {operation.name} ended: {operation.result}{because}"
        )

    # --- commands ---------------------------------------------------------------------------------------------------

    def start(self, token: int, command: Transfer | Unload | Split | CreateNamespace | DeleteNamespace) -> None:
        """Begin an operation: `Started`, or why not. The same operation id is never begun twice."""
        context = self._context
        known = self.known.get(command.operation)
        if known is not None:
            context.complete(token, Started(known.id, known.name, known.partition, known.offset))
            return
        refusal = context.refusal()
        if refusal is not None:
            context.complete(token, refusal)
            return
        match command:
            case CreateNamespace():
                self._create(token, command)
            case DeleteNamespace():
                self._delete(token, command)
            case Transfer() | Unload() | Split():
                self._move(token, command)

    def _answering(self, token: int, operation: str, name: str, timeout_s: float) -> Callable[[ProposalResult], None]:
        """The answer to a command when the end of its first record is known, or its time is over."""
        self._starting[token] = (operation, name, self._context.now.mono_s + timeout_s)

        def done(result: ProposalResult) -> None:
            if self._starting.pop(token, None) is None:
                return
            self._context.complete(token, self._first_record(result, operation, name))

        return done

    def _first_record(self, result: ProposalResult, operation: str, name: str) -> Outcome:
        if result.status is ProposalStatus.ACCEPTED:
            partition = self._context.partition_of("/".join(name.split("/")[:2]))
            return Started(operation, name, partition, result.offset)
        known = self.known.get(operation)
        if known is not None:
            # Another broker was asked for the same operation, and its record was first: it is begun all the same.
            return Started(known.id, known.name, known.partition, known.offset)
        key = self._context.key(name)
        if (
            result.status is ProposalStatus.REJECTED
            and key is not None
            and key.is_namespace
            and key.state is State.ACTIVE
        ):
            return self._exists(key)  # another broker created it at the same time
        if result.status is ProposalStatus.REJECTED and result.verdict is not None:
            message = f"{name}: {MEANING[result.verdict]}"
            return Rejected(result.verdict, message, "Look at its history and try again.", winner=result.winner)
        why = "" if result.refusal is None else f": {result.refusal.message}"
        if result.status is ProposalStatus.NOT_WRITTEN:
            if result.refusal is not None:
                return Rejected(result.refusal.reason, f"{name}{why}")
            return Rejected("not-written", f"{name}: the record never reached the log", "Try again.")
        return Unknown(operation, f"{name}: the record was not read back{why}", LATER)

    def _propose(self, token: int, command_name: str, written: str | None) -> None:
        if written is None:
            self._starting.pop(token, None)
            message = f"{command_name}: too many records are in flight (pending_max)"
            self._context.complete(token, Rejected("busy", message, "Try again."))

    def _move(self, token: int, command: Transfer | Unload | Split) -> None:
        context = self._context
        key = mistyped(command.name) or locate(context, command.name)
        if isinstance(key, NotFound):
            context.complete(token, key)
            return
        refusal = self._unfit(key, command)
        if refusal is not None:
            context.complete(token, refusal)
            return
        children: list[str] | None = None
        state, action, flow, to = State.RELEASING, Action.UNLOAD, Flow.UNLOAD, None
        if isinstance(command, Transfer):
            action, flow, to = Action.TRANSFER, Flow.TRANSFER, command.destination
        elif isinstance(command, Split):
            state, action, flow = State.SPLITTING, Action.SPLIT, Flow.SPLIT
            try:
                bounds = (
                    bounds_at(key.lower, key.upper, command.at)
                    if command.at
                    else even_bounds(command.parts, key.lower, key.upper)
                )
            except ValueError as error:
                context.complete(token, Rejected("bad-split", f"{key.name}: {error}", bundle=key.name))
                return
            if len(bounds) - 1 > context.config.split_parts_max:
                message = f"{key.name}: a split makes {context.config.split_parts_max} parts at most (split_parts_max)"
                context.complete(token, Rejected("bad-split", message, "Split the parts again.", bundle=key.name))
                return
            if len(bounds) < 3:  # noqa: PLR2004 - two children have three bounds
                message = f"{key.name}: a split makes two parts or more"
                context.complete(token, Rejected("bad-split", message, bundle=key.name))
                return
            children = children_of(bounds)
        written = self._proposals.propose(
            key,
            state,
            self._answering(token, command.operation, key.name, command.timeout_s),
            action=action,
            flow=flow,
            operation=command.operation,
            from_=key.to,
            to=to,
            children=children,
            reason=command.reason,
            decision=None if isinstance(command, Split) else command.decision,
        )
        self._propose(token, key.name, written)

    def _unfit(self, key: KeyState, command: Transfer | Unload | Split) -> Outcome | None:
        if key.state is not State.ASSIGNED:
            return Rejected(
                "not-assigned",
                f"{key.name} is {key.state}, and only an Assigned bundle can be moved",
                "Try again in a moment: it is in flight." if key.state in IN_FLIGHT else "",
                winner=key.accepted_id,
            )
        if command.if_generation not in (None, key.generation):
            # The record that follows names this version as its base: no other change can come in between.
            message = f"{key.name} has the generation {key.generation}, not {command.if_generation}"
            return Rejected("generation-changed", message, "Look at it again.", winner=key.accepted_id)
        context = self._context
        if key.to == context.identity.broker and not self._reactions.serves(key):
            return Rejected("not-serving-yet", f"{key.name} is being resumed by this broker", "Try again in a moment.")
        if not isinstance(command, Transfer):
            return None
        destination = command.destination
        if destination == key.to:
            return Rejected("destination-is-owner", f"{key.name} is owned by {destination} already")
        members = context.members
        if destination not in members.alive:
            if destination in members.lost:
                return Rejected("destination-lost", f"broker {destination} is not heard any more", "Choose a live one.")
            return Rejected("unknown-destination", f"no broker {destination} is registered", "`brokers` lists them.")
        if not context.accepts(destination):
            return Rejected(
                "destination-not-accepting",
                f"broker {destination} is joining, draining, in safe mode or cut off from the log",
            )
        return None

    def _create(self, token: int, command: CreateNamespace) -> None:
        context = self._context
        name = command.namespace
        if not is_new_namespace(name):
            dots = ", neither of them . or .." if is_namespace(name) else ""
            context.complete(token, Rejected("bad-name", f"`{name}` is not tenant/namespace of A-Za-z0-9_=:.-{dots}"))
            return
        if context.bound_broker(name) is not None:
            context.complete(token, Rejected("bound-namespace", f"{name} belongs to its broker by rule"))
            return
        key = context.key(name)
        if key is not None and key.state is State.ACTIVE:
            context.complete(token, self._exists(key))
            return
        written = self._proposals.propose(
            key or KeyState(name, -1, -1),
            State.ACTIVE,
            self._answering(token, command.operation, name, command.timeout_s),
            action=Action.CREATE,
            flow=Flow.NAMESPACE,
            operation=command.operation,
            reason=command.reason,
            version=None if key is not None else context.replicas[context.partition_of(name)].first_version,
            children=children_of(command.bounds),
        )
        self._propose(token, name, written)

    @staticmethod
    def _exists(key: KeyState) -> Rejected:
        hint = "Nothing to do if it is to exist: its bundles are those of the first call."
        return Rejected("namespace-exists", f"{key.name} exists already", hint, winner=key.accepted_id)

    # --- deletion of a namespace ------------------------------------------------------------------------------------

    def _delete(self, token: int, command: DeleteNamespace) -> None:
        context = self._context
        key = context.key(command.namespace)
        if key is None or key.state is not State.ACTIVE:
            context.complete(token, NotFound("unknown-namespace", f"there is no namespace {command.namespace}"))
            return
        if command.namespace in self._deletions:
            context.complete(token, Rejected("being-deleted", f"{command.namespace} is being deleted already"))
            return
        deadline_s = context.now.mono_s + command.timeout_s
        self._deletions[command.namespace] = _Deletion(
            token, command.namespace, key.accepted_id, command.operation, deadline_s, command.reason
        )
        mark = {"namespace": command.namespace, "operation": command.operation, "by": context.identity.broker}
        mark["for_ms"] = int(min(command.timeout_s, context.config.closing_mark_s) * 1000)  # type: ignore[assignment]
        partition = context.partition_of(command.namespace)
        self._proposals.control(partition, CLOSING_PREFIX + command.namespace.encode(), mark)
        self._drive(self._deletions[command.namespace])

    def _drive(self, deletion: _Deletion) -> None:
        context = self._context
        key = context.key(deletion.namespace)
        if key is None and not context.judges(context.partition_of(deletion.namespace)):
            if context.now.mono_s >= deletion.deadline_s:
                self._end_deletion(deletion, Unknown(deletion.operation, "this broker had to join again meanwhile"))
            return
        if key is None or key.ring is None or key.accepted_id != deletion.accepted_id:
            # Deleted, by this operation or another one; perhaps created again: not the namespace that was meant.
            self._end_deletion(deletion, self._deleted(deletion, key))
            return
        if context.now.mono_s >= deletion.deadline_s:
            if deletion.writing or deletion.unsure:
                message = f"{deletion.namespace}: the record was not read back"
                self._end_deletion(deletion, Unknown(deletion.operation, message, LATER))
                return
            message = f"{deletion.namespace}: {key.ring.owned} bundles were not unloaded in time, and it opens again"
            self._end_deletion(deletion, Rejected("not-unloaded", message))
            return
        if context.now.mono_s < deletion.retry_at_s or not context.may_write:
            return
        deletion.retry_at_s = context.now.mono_s + context.config.retry_interval_s
        if key.ring.owned:
            self._unload_all(deletion, key)
        elif not deletion.writing:
            deletion.writing = True

            def done(result: ProposalResult) -> None:
                deletion.writing = False
                deletion.unsure |= result.status is ProposalStatus.UNKNOWN
                refused = result.refusal is not None and result.status is ProposalStatus.NOT_WRITTEN
                if refused and deletion.namespace in self._deletions:
                    self._end_deletion(deletion, self._first_record(result, deletion.operation, deletion.namespace))
                if result.status is ProposalStatus.ACCEPTED and not deletion.answered:
                    deletion.answered = True
                    partition = context.partition_of(deletion.namespace)
                    started = Started(deletion.operation, deletion.namespace, partition, result.offset)
                    context.complete(deletion.token, started)

            written = self._proposals.propose(
                key,
                State.DELETED,
                done,
                action=Action.DELETE,
                flow=Flow.NAMESPACE,
                operation=deletion.operation,
                reason=deletion.reason,
                version=key.ring.highest + 1,
            )
            deletion.writing = written is not None

    def _deleted(self, deletion: _Deletion, key: KeyState | None) -> Outcome:
        known = self.known.get(deletion.operation)
        if known is not None and known.result == "deleted":
            return Started(deletion.operation, deletion.namespace, known.partition, known.changed_offset)
        winner = key.accepted_id if key is not None else None
        return Rejected(
            "superseded", f"{deletion.namespace} was deleted or re-created by another operation", winner=winner
        )

    def _end_deletion(self, deletion: _Deletion, outcome: Outcome) -> None:
        del self._deletions[deletion.namespace]
        if not deletion.answered:
            deletion.answered = True
            self._context.complete(deletion.token, outcome)

    def _unload_all(self, deletion: _Deletion, key: KeyState) -> None:
        if key.ring is None:
            return
        room = self._context.config.handover_window
        for bundle in key.ring.live.values():
            if bundle.state is not State.ASSIGNED:
                continue
            room -= 1
            if room < 0:
                return
            self._proposals.propose(
                bundle,
                State.RELEASING,
                _ignore,
                action=Action.UNLOAD,
                flow=Flow.NAMESPACE,
                operation=deletion.operation,
                reason=deletion.reason,
                from_=bundle.to,
            )

    # --- waiting ----------------------------------------------------------------------------------------------------

    def wait(self, token: int, command: AwaitOperation) -> None:
        known = self.known.get(command.operation)
        if known is not None and known.status != RUNNING:
            self._context.complete(token, self._outcome(known))
            return
        self._waiters.setdefault(command.operation, {})[token] = None
        self._waited_for[token] = command.operation
        self._deadlines.add(token, self._context.now.mono_s + command.timeout_s)

    def tick(self) -> None:
        """Deadlines of waiters and commands; deletions go on."""
        now_s = self._context.now.mono_s
        for token, (operation, name, deadline_s) in list(self._starting.items()):
            if now_s >= deadline_s:
                del self._starting[token]
                message = f"its first record was not read back in time{self._refused(name)}"
                self._context.complete(token, Unknown(operation, message, LATER))
        self._time_out()
        for deletion in list(self._deletions.values()):
            self._drive(deletion)

    def _time_out(self) -> None:
        late = self._deadlines.due(self._context.now.mono_s, TIMED_OUT_A_STEP)
        for token in late:
            operation_id = self._waited_for.pop(token)
            others = self._waiters[operation_id]
            del others[token]
            if not others:
                del self._waiters[operation_id]
            known = self.known.get(operation_id)
            if known is None:
                outcome: Outcome = NotFound("unknown-operation", f"no record of operation {operation_id} was read")
            else:
                outcome = Undetermined(
                    "running", f"operation {known.id} on {known.name} is at {known.state}{self._refused(known.name)}"
                )
            self._context.complete(token, outcome)
        if len(late) == TIMED_OUT_A_STEP:
            self._context.wake_soon(self._time_out)

    def _refused(self, name: str) -> str:
        """What Kafka lately refused of a key's records, or of this process's heartbeats, as the end of a message."""
        refusal = self._proposals.refusal(name)
        return "" if refusal is None else f": {refusal.message}"


def _ignore(_: ProposalResult) -> None:
    """The next round looks at the state."""
