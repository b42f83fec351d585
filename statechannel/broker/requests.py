"""Requests handled by one broker: reads the requests topic, claims requests for this broker, executes them, replies.

The first claim of a request in the log wins, so that one broker executes it, whatever the others believe about the
leader or owner; only a claim whose broker is lost may be superseded. See design/reference/requests-topic.md.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, replace
from itertools import islice, takewhile
from typing import TYPE_CHECKING

from statechannel.broker.exits import ChannelStoppedError
from statechannel.engine.commands import AwaitOperation, NotFound, Rejected, Started, Unknown
from statechannel.engine.effects import CallHook, Hook
from statechannel.logger import SafeLogger
from statechannel.operations import outcomes, request_record
from statechannel.operations.request_record import Progress, ProgressStage, Reply, Request
from statechannel.operations.table import Addressee, Executor, ExtensionAsk
from statechannel.protocol.bounded import remember
from statechannel.settings.groups_engine import RequestSettings

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from statechannel.broker.exits import Stopped
    from statechannel.engine.commands import Command, Outcome
    from statechannel.engine.engine import Engine
    from statechannel.engine.inputs import PartitionOpened, PositionReached
    from statechannel.protocol.log import RecordRead

_log = SafeLogger(__name__)

_FORGOTTEN_AT_ONCE = 100
_WRITTEN_AT_ONCE = 200
_AHEAD_MS = 2_000
"""So far the time of a request may be ahead of the registry's last: that is a second old, and of another Kafka broker."""


@dataclass(slots=True)
class _Open:
    request: Request
    size_bytes: int
    written_ms: int
    claimed_at: int = -1
    claimer: tuple[str, str] | None = None
    executing: bool = False
    reply: bytes | None = None
    sent_at_s: float = float("-inf")


class RequestCoordinator:
    """Open requests, and this broker's part in them. In the loop's thread only.

    Args:
        around: This broker's view of the cluster.
        append: Writes one record to the requests topic.
        submit: Submits a command to the engine; the callback receives the outcome.
        ask_extension: The same for requests to extensions.
        refusal: Why this broker must not execute a request; None: it may.
    """

    def __init__(
        self,
        around: EngineSurroundings,
        *,
        append: Callable[[str, bytes], None],
        submit: Callable[[Command, Callable[[Outcome], None]], None],
        ask_extension: Callable[[ExtensionAsk, Callable[[Outcome], None]], None],
        refusal: Callable[[Request], Outcome | None] = lambda _: None,
        settings: RequestSettings | None = None,
    ) -> None:
        self._around = around
        self._log = _log.bound(broker=around.broker)
        self._append = append
        self._submit = submit
        self._ask_extension = ask_extension
        self._refusal = refusal
        self._settings = settings or RequestSettings()
        self._open: dict[str, _Open] = {}
        self._open_bytes = 0
        self._touched: dict[str, None] = {}
        self._review_all = False
        self._refusals: dict[str, int] = {}
        self._ended: OrderedDict[str, None] = OrderedDict()
        self._heard: dict[str, Callable[[Outcome], None]] = {}
        self._end_offset = 0
        self._position = 0
        self._log_ms = 0
        self._is_registry_heard = False
        self._now_s = 0.0
        self._written = 0
        self._reviewed_s = 0.0
        self.executed = 0
        self.refused = 0

    def __len__(self) -> int:
        return len(self._open)

    # --- reading ----------------------------------------------------------------------------------------------------

    def opened(self, event: PartitionOpened) -> None:
        """Start of the topic; requests are not executed before its end is reached."""
        self._end_offset = event.end_offset
        self._position = event.first_offset
        self._open.clear()
        self._open_bytes = 0

    def reached(self, event: PositionReached) -> None:
        """Note that everything below the position was delivered."""
        self._position = max(self._position, event.position)

    def heard(self, timestamp_ms: int) -> None:
        """The log's clock, by which deadlines are measured: the time of the registry's last record; one comes each second.

        Not the latest time of any: after a while with a clock ahead every request would look late, for as long as it was ahead.
        """
        self._log_ms, self._is_registry_heard = timestamp_ms, True

    def hear(self, identifier: str, on_reply: Callable[[Outcome], None]) -> None:
        """Call `on_reply` once, when the reply to a request is read; beyond the bound the oldest callback is dropped."""
        remember(self._heard, identifier, on_reply, self._settings.remembered_max)

    def read(self, record: RecordRead) -> None:
        """Apply one record of the requests topic."""
        self._position = record.offset + 1
        if not self._is_registry_heard:
            self._log_ms = record.timestamp_ms
        item = request_record.decode(record.value, record.timestamp_ms)
        match item:
            case Request():
                self._asked(item, len(record.value or b""), record.timestamp_ms)
            case Progress(stage=ProgressStage.CLAIMED):
                self._claimed(item, record.offset)
            case Reply():
                on_reply = self._heard.pop(item.id, None)
                self._end(item.id)
                if on_reply is not None:
                    on_reply(_outcome_of(item))

    def _asked(self, request: Request, size_bytes: int, written_ms: int) -> None:
        if request.id in self._open or request.id in self._ended:
            return
        if self._is_full(size_bytes):
            self._forget_late()
        if self._is_full(size_bytes):
            self._refuse(request)
            return
        self._open[request.id] = _Open(request, size_bytes, written_ms)
        self._open_bytes += size_bytes
        self._touched[request.id] = None

    def _is_full(self, size_bytes: int) -> bool:
        settings = self._settings
        return len(self._open) >= settings.open_max or self._open_bytes + size_bytes > settings.open_max_mib * 2**20

    def _forget_late(self) -> None:
        """Forget expired requests at the front; in the history of a week these are many."""
        for request in list(islice(self._open.values(), _FORGOTTEN_AT_ONCE)):
            if request.request.deadline_ms >= self._log_ms or request.executing:
                return
            self._end(request.request.id)

    def _refuse(self, request: Request) -> None:
        """Refuse a request beyond the limit; only its id is kept, so that a flood does not exhaust memory."""
        self.refused += 1
        remember(self._refusals, request.id, request.deadline_ms, self._settings.remembered_max)

    def _write_refusals(self) -> None:
        """Write some refusals at a time: the producer's queue cannot take ten thousand replies in one turn."""
        for identifier in list(islice(self._refusals, _WRITTEN_AT_ONCE)):
            if self._refusals.pop(identifier) >= self._log_ms:
                message = f"{len(self._open)} requests are open ({self._open_bytes} bytes)"
                self._write(identifier, self._encoded(identifier, Rejected("busy", message, "Try again later.")))

    @property
    def _read_to_end(self) -> bool:
        return self._position >= self._end_offset

    def _claimed(self, claim: Progress, offset: int) -> None:
        request = self._open.get(claim.id)
        if request is None or claim.supersedes != request.claimed_at:
            return
        request.claimed_at = offset
        request.claimer = (claim.broker, claim.incarnation)
        self._touched[claim.id] = None
        request.sent_at_s = float("-inf")

    def _end(self, identifier: str) -> None:
        request = self._open.pop(identifier, None)
        self._touched.pop(identifier, None)
        self._refusals.pop(identifier, None)
        self._heard.pop(identifier, None)
        if request is not None:
            self._open_bytes -= request.size_bytes
        self._ended[identifier] = None
        while len(self._ended) > self._settings.remembered_max:
            self._ended.popitem(last=False)

    # --- acting -----------------------------------------------------------------------------------------------------

    def look(self, now_s: float) -> None:
        """After each turn of the loop: `review`, if needed."""
        whole = now_s - self._reviewed_s >= self._settings.review_s
        if self._read_to_end and self._answers_for_all:
            self._write_refusals()
        if self._touched or self._review_all or whole:
            if whole:
                self._reviewed_s = now_s
            self.review(now_s, whole=whole)

    def review(self, now_s: float, *, whole: bool = True) -> None:
        """Perform due work: called after records of the topic, and periodically because owners and leaders change.

        Args:
            whole: Check all requests, not only those with new records.
        """
        self._now_s = now_s
        if not self._read_to_end:
            return
        whole = whole or self._review_all
        names = list(self._open) if whole else list(self._touched)
        self._touched.clear()
        self._review_all = False
        written = self._written
        for name in names:
            request = self._open.get(name)
            if request is not None:
                self._review(request, now_s)
            if self._written - written >= _WRITTEN_AT_ONCE:
                self._review_all = True  # the loop has other things to do, too
                return

    def _review(self, entry: _Open, now_s: float) -> None:
        ahead_ms = entry.written_ms - self._log_ms
        if ahead_ms > _AHEAD_MS and self._around.acting:
            # Written while Kafka's clock was ahead: it must not be executed hours after its caller has given up.
            entry.written_ms -= ahead_ms
            entry.request = replace(entry.request, deadline_ms=entry.request.deadline_ms - ahead_ms)
        if entry.request.deadline_ms + 1_000 * self._settings.linger_s < self._log_ms:
            # Answered or not (Kafka may refuse a reply for ever): no caller waits for it any more.
            self._end(entry.request.id)
        elif entry.reply is not None:
            self._repeat(entry, entry.reply, now_s)
        elif entry.request.deadline_ms < self._log_ms and not entry.executing:
            self._end(entry.request.id)
        elif not entry.executing and (self._around.acting or entry.request.executor is Executor.NAMED):
            self._consider(entry, now_s)

    def _consider(self, entry: _Open, now_s: float) -> None:
        around, request = self._around, entry.request
        if entry.claimer == (around.broker, around.incarnation):
            self._execute(entry)
        elif request.problem:
            if self._answers_for_all:
                self._answer(entry, Rejected("bad-request", request.problem), now_s)
        elif (entry.claimer is None or not around.is_alive(*entry.claimer)) and self._is_addressed(request):
            if request.is_in_order and self._has_earlier_to_execute(request):
                return
            claim = Progress(request.id, ProgressStage.CLAIMED, around.broker, around.incarnation, entry.claimed_at)
            self._repeat(entry, request_record.encode(claim), now_s)

    def _has_earlier_to_execute(self, request: Request) -> bool:
        """Whether the log has an earlier `pre-stop` or undo for this process that is still to be executed."""
        earlier = takewhile(lambda entry: entry.request is not request, self._open.values())
        return any(
            entry.request.is_in_order
            and not (entry.request.problem or entry.executing)
            and self._is_addressed(entry.request)
            for entry in earlier
        )

    @property
    def _answers_for_all(self) -> bool:
        """Whether requests that are not addressed to a broker id are for this one; the first claim in the log decides."""
        return self._around.leading or self._around.deputizing

    def _is_addressed(self, request: Request) -> bool:
        around = self._around
        if request.executor is Executor.NAMED:
            # Not the process that was started since.
            meant = request.args.get("incarnation") in (None, around.incarnation)
            return meant and request.broker == around.broker
        if request.executor is Executor.LEADER:
            return self._answers_for_all
        if request.executor is Executor.ADDRESSEE and request.addressee is not Addressee.OWNER:
            # Not for a deputy: what an extension does as leader need not be judged by the log.
            return around.leading if request.addressee is Addressee.LEADER else request.broker == around.broker
        owner = around.owner_of(request.name)
        if owner is None or not around.is_alive(owner):
            return self._answers_for_all
        return owner == around.broker

    def _repeat(self, entry: _Open, value: bytes, now_s: float) -> None:
        """Write, and write again if it was not read back: copies are harmless."""
        if now_s - entry.sent_at_s >= self._settings.repeat_s:
            entry.sent_at_s = now_s
            self._write(entry.request.id, value)

    def _write(self, identifier: str, value: bytes) -> None:
        self._written += 1
        self._append(identifier, value)

    def _execute(self, entry: _Open) -> None:
        entry.executing = True
        self.executed += 1
        request = entry.request
        self._log.info("request-executing", operation=request.id, command=request.asked, by=request.by)
        try:
            command = request_record.command_of(request, self._left_s(request))
            # The engine begins no operation id twice, so what a lost claimer began is not begun again.
            if isinstance(command, ExtensionAsk):
                self._ask_extension(command, lambda outcome: self._finish(entry, outcome))
            elif (refusal := self._refusal(request)) is not None:
                self._finish(entry, refusal)
            else:
                self._submit(command, lambda outcome: self._outcome(entry, outcome))
        except ChannelStoppedError as error:  # too many commands wait, or this member ends
            reason = error.stopped.reason
            self._finish(entry, Rejected("busy" if reason == "busy" else "draining", error.stopped.detail))
        except Exception as error:  # one bad request must not stop a broker, nor every broker after it
            self._log.exception("request-failed", operation=request.id)
            self._finish(entry, Rejected("internal-error", f"{type(error).__name__}: {error}"))

    def _outcome(self, entry: _Open, outcome: Outcome) -> None:
        if not isinstance(outcome, Started):
            self._finish(entry, outcome)
            return
        around, request = self._around, entry.request
        facts = outcomes.to_json(outcome)
        started = Progress(request.id, ProgressStage.STARTED, around.broker, around.incarnation, facts=facts)
        self._write(request.id, request_record.encode(started))
        self._submit(AwaitOperation(request.id, self._left_s(request)), lambda end: self._finish(entry, end))

    def _finish(self, entry: _Open, outcome: Outcome) -> None:
        self._answer(entry, outcome, self._now_s)

    def _answer(self, entry: _Open, outcome: Outcome, now_s: float) -> None:
        try:
            entry.reply = self._encoded(entry.request.id, outcome)
        except (TypeError, ValueError, RecursionError) as error:
            # One outcome that cannot be written must not stop a broker, nor every broker after it.
            self._log.error("reply-refused", operation=entry.request.id, error=type(error).__name__)
            entry.reply = self._encoded(
                entry.request.id, Unknown(entry.request.id, "the outcome cannot be written as a reply")
            )
        entry.size_bytes += len(entry.reply)
        if entry.request.id in self._open:
            self._open_bytes += len(entry.reply)
        entry.sent_at_s = now_s
        self._write(entry.request.id, entry.reply)

    def _encoded(self, identifier: str, outcome: Outcome) -> bytes:
        around = self._around
        facts = outcomes.to_json(outcome) | {"answer": outcomes.answer_of(outcome)}
        reply = request_record.encode(Reply(identifier, around.broker, around.incarnation, facts))
        if len(reply) > self._settings.reply_max_bytes:
            raise ValueError(f"a reply of {len(reply)} bytes")
        return reply

    def _left_s(self, request: Request) -> float:
        return max(0.5, (request.deadline_ms - self._log_ms) / 1000)


def _outcome_of(reply: Reply) -> Outcome:
    """The outcome of a reply; it may be invalid, as any client may write to the topic."""
    try:
        return outcomes.from_json(reply.outcome)
    except ValueError as error:
        return Unknown(reply.id, f"the reply cannot be read: {error}")


class EngineSurroundings:
    """View of the engine for requests and hooks."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    @property
    def broker(self) -> str:
        return self._engine.identity.broker

    @property
    def incarnation(self) -> str:
        return self._engine.identity.incarnation

    @property
    def leading(self) -> bool:
        return self._engine.leading

    @property
    def deputizing(self) -> bool:
        """Whether this process is a deputy for a lost leader."""
        return self._engine.deputizing

    @property
    def acting(self) -> bool:
        """Whether this process may start operations: caught up, not draining, the log available."""
        return self._engine.stopped is None and self._engine.context.refusal() is None

    def owner_of(self, name: str) -> str | None:
        location = self._engine.locate(name)
        return None if isinstance(location, NotFound) else location.owner

    def is_alive(self, broker: str, incarnation: str | None = None) -> bool:
        """Whether this process is registered under its broker id."""
        member = self._engine.presence.members.alive.get(broker)
        return member is not None and incarnation in (None, member.incarnation)

    def serving_count(self) -> int:
        return sum(held.generation is not None for held in list(self._engine.reactions.holdings.values()))

    def left_behind(self) -> str:
        """Bundles that a shutdown has not handed over, as text; empty if none."""
        return self._engine.departure.left_behind

    def let_go(self, stopped: Stopped) -> list[CallHook]:
        """End the engine between two steps, for an external cause; returns the hooks for its served or prepared bundles."""
        engine = self._engine
        releases = []
        if engine.stopped is None:
            deadline_s = engine.config.hook_deadline_s
            for name, held in engine.reactions.holdings.items():
                generation = held.generation if held.generation is not None else held.prepared
                releases.append(CallHook(0, Hook.ON_RELEASE, name, generation or 0, None, deadline_s))
            engine.stop(stopped.reason, stopped.detail)
        return releases

    def urls_of(self, broker: str) -> Mapping[str, str]:
        return self._engine.context.urls_of(broker)
