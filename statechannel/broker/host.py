"""Host of one running member: engine, driver, Kafka, hooks, requests and watchdog, assembled and supervised."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from ulid import ULID

from statechannel.broker.changes import LiveChanges
from statechannel.broker.driver import Driver, DriverOptions
from statechannel.broker.endings import LOG_AWAY, after_all, log_end, outcome_of_stopping, within_budget
from statechannel.broker.exits import ChannelStoppedError, JoinTimeoutError, Stopped, TooManyCommandsError
from statechannel.broker.handlers import Handlers
from statechannel.broker.hook_runner import HookCounts, HookRunner
from statechannel.broker.hooks import BrokerHooks
from statechannel.broker.host_platform import HostPlatform, LoopWatch
from statechannel.broker.inbox import InboxLane
from statechannel.broker.next_steps import with_next_step
from statechannel.broker.observe.collector import ReplayGcPause, gc_exclusion
from statechannel.broker.observe.observer import Observer
from statechannel.broker.observe.topic_conditions import TopicConditions
from statechannel.broker.opening_process import opening_process
from statechannel.broker.requests import EngineSurroundings, RequestCoordinator
from statechannel.broker.supervision import (
    LOOP_CLOSED,
    OpenMember,
    SeatRequest,
    abandon,
    log_evidence,
    place_of,
    stack_of,
    within,
)
from statechannel.engine import commands
from statechannel.engine.commands import Command, Outcome
from statechannel.engine.context import Mode
from statechannel.engine.effects import (
    Append,
    CallHook,
    Complete,
    Effect,
    Emit,
    Hook,
    InterruptStream,
    RestartReading,
    StandForLeader,
    StopEngine,
)
from statechannel.engine.inputs import (
    Appended,
    AppendFailed,
    CommandReceived,
    HookFailed,
    Input,
    LoopBlocked,
    PartitionBroken,
    PartitionOpened,
    PositionReached,
)
from statechannel.logger import SafeLogger, unwritten
from statechannel.operations import request_record
from statechannel.operations.request_record import Request
from statechannel.operations.table import RequestCommand, check
from statechannel.protocol.log import RecordRead, RecordsRead, Topic
from statechannel.settings import Settings

if TYPE_CHECKING:
    from collections.abc import Sequence

    from statechannel.broker.observe.endpoint import Endpoint
    from statechannel.broker.observe.kafka_limits import KafkaLimits
    from statechannel.broker.observe.metrics import Metrics
    from statechannel.broker.observe.observer import Availability
    from statechannel.broker.observe.traces import Traces
    from statechannel.broker.parts import KafkaParts
    from statechannel.engine.engine import Engine


_log = SafeLogger(__name__)

CLOSING_SLACK_S = 3.0
"""Extra time for hooks and Kafka clients beyond their own bounds at the end."""
CLOSING_BEAT_S = 0.1
FINAL_LOG_S = 1.0


_ENDED = {"mode": "stopped", "leading": False, "term": -1, "deputizing": False, "caught_up": False, "serving": 0}
"""What holds for a member that has ended, whatever its engine knew last."""


class Host:
    """One running member. All methods belong to the loop's thread.

    Args:
        on_stuck: Called, in the watchdog's thread, when the loop is stuck (a broker process then ends itself).
    """

    def __init__(
        self,
        engine: Engine,
        log: KafkaParts,
        hooks: BrokerHooks,
        metrics: Metrics,
        *,
        settings: Settings | None = None,
        traces: Traces | None = None,
        on_stuck: Callable[[], None] | None = None,
        platform: HostPlatform | None = None,
    ) -> None:
        self.engine = engine
        self.settings = settings = settings or Settings()
        self.metrics = metrics
        self.live = LiveChanges(settings.runtime.changes_max_mib * 2**20, engine.streams.closed_why)
        self.process = opening_process()
        self.endpoint: Endpoint | None = None
        self.availability: Availability | None = None
        self.topics = TopicConditions(metrics)
        self.kafka_limits: KafkaLimits | None = None
        self._log = log
        self._on_stuck = on_stuck
        self._platform = platform or HostPlatform()
        self._mono_s = self._platform.clocks.mono_s
        self._around = EngineSurroundings(engine)
        debt_alarm_s = settings.observe.debt_alarm_fraction * settings.channel.min_compaction_lag_ms / 1_000
        self._watch = Observer(engine, metrics, traces, debt_alarm_s=debt_alarm_s, mono_s=self._mono_s)
        self._driver = Driver(
            engine,
            perform=self._perform,
            divert=self._divert,
            on_progress=self._progressed,
            on_failure=self._violated,
            on_loop_closed=self._loop_closed,
            options=DriverOptions(limits=settings.limits, beat_s=self._platform.beat_s),
            clocks=self._platform.clocks,
        )
        self.now_s, self.feed = self._driver.now_s, self._driver.inbox.push
        self._driver.stalls.on_burst, self._driver.stalls.on_turn = self._watch.burst, self._watch.turn
        self._hooks = HookRunner(
            hooks,
            feed=partial(self._driver.inbox.push, lane=InboxLane.REPORTS),
            urls_of=self._around.urls_of,
            on_problem=self._hook_failed,
            on_end=self._watch.hook_ended,
            broker=engine.identity.broker,
        )
        self.handlers = Handlers(
            settings.requests.extension_requests_max, broker=engine.identity.broker, promised=engine.identity.checks
        )
        self._desk = RequestCoordinator(
            self._around,
            append=self._append_request,
            submit=self._submit,
            ask_extension=self.handlers.give,
            # What a lost broker has begun is not checked again.
            refusal=lambda asked: None if asked.id in engine.operations.known else self.handlers.refusal(asked),
            settings=settings.requests,
        )
        self._watchdog: LoopWatch | None = None
        self._waiting: dict[int, tuple[Command, Callable[[Outcome], None], float]] = {}
        self._tokens = self._desk_tokens = self._closing_beats = 0
        self._observed_s = self._beats_until_s = self._last_beat_s = 0.0
        self._budget_until_s: float | None = None
        self._caught_up = asyncio.Event()
        self._calm = ReplayGcPause(tunes=self._platform.tunes_collector)
        self._ended: asyncio.Future[Stopped] | None = None
        self._stopping: Stopped | None = None
        self._left_behind: Stopped | None = None
        self._winding_down: asyncio.Task[None] | None = None
        self._seat = SeatRequest(log.stand)
        self._open = OpenMember(engine.identity.broker, self._around.serving_count)

    # --- life -------------------------------------------------------------------------------------------------------

    def start(self) -> None:
        self._ended = asyncio.get_running_loop().create_future()
        self._watchdog = self._platform.watch(
            lambda: self._driver.beats + self._closing_beats,
            limit_s=self.settings.runtime.watchdog_s,
            on_stuck=partial(self._stuck, threading.get_ident()),
            loop_lives=self._driver.check_loop,
            blocked_s=self.settings.runtime.loop_blocked_s,
            on_blocked=partial(self._blocked, asyncio.get_running_loop(), threading.get_ident()),
        )
        self._log.start(
            self._driver.inbox,
            lambda _, why: self.stop(Stopped("part-failed", why)),
            lambda: self._driver.last_progress_s,
        )
        gc_exclusion.begin(tunes=self._platform.tunes_collector)
        self._calm.begin()
        self._driver.start()
        self._watchdog.start()
        self._open.begin()

    @property
    def stopped(self) -> Stopped | None:
        """How this member ends or has ended; None while it runs. In any thread."""
        if self._stopping is None:
            if self.process.forked is not None:
                return self.process.forked
            if not self._driver.check_loop():
                return LOOP_CLOSED
        return self._stopping

    async def wait_stopped(self) -> Stopped:
        """Return once everything is closed."""
        if self._ended is None:
            raise RuntimeError("the host was not started")
        if not self._ended.done():
            self.process.require()
        return await asyncio.shield(self._ended)

    async def wait_caught_up(self, timeout_s: float) -> None:
        """Return once this member judges every partition and is registered.

        Raises:
            ChannelStoppedError: It stopped before.
            JoinTimeoutError: It takes longer.
        """
        caught_up = asyncio.ensure_future(self._caught_up.wait())
        ended = asyncio.ensure_future(self.wait_stopped())
        try:
            await asyncio.wait({caught_up, ended}, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
        finally:
            caught_up.cancel()
            ended.cancel()
        if self._stopping is not None:
            raise ChannelStoppedError(self._stopping)
        if not self._caught_up.is_set():
            why = "; ".join(f"partition {r.partition}: {r.phase}, {r.why}" for r in self.engine.replicas)
            raise JoinTimeoutError(timeout_s, f"mode {self.engine.mode}; {why}")

    def stop(self, stopped: Stopped) -> None:
        """Stop processing and close everything; `wait_stopped` waits for the end."""
        if self.stopped is not None:
            return
        self._stopping = stopped
        serving = self._around.serving_count()  # before they are released
        self._open.end()
        self._calm.end(keep=False)
        self._driver.stop()
        self._beats_until_s = self._mono_s() + self.settings.hooks.deadline_s + CLOSING_SLACK_S
        self._beat()
        if stopped.reason == "id-in-use" and not self._caught_up.is_set():
            # The caller of `open` gets it as an error.
            _log.debug("stopped", broker=self._open.broker, serving=0, reason=stopped.reason, detail=stopped.detail)
        elif stopped.reason != LOG_AWAY:  # whether its goodbye is in the log shows while the clients close
            log_end(stopped, self._open.broker, serving)
        self._seat.ask(stand=False)
        self._release(stopped)
        self._winding_down = asyncio.get_running_loop().create_task(self._wind_down(stopped, serving))

    def _release(self, stopped: Stopped) -> None:
        """Release the served bundles, even if the engine has not ended by itself."""
        try:
            for effect in (*self._driver.unperformed(), *self._around.let_go(stopped)):
                if isinstance(effect, CallHook) and effect.hook is Hook.ON_RELEASE:
                    self._hooks.call(effect)
        except Exception:  # an engine that has violated an invariant may not even know what it serves
            _log.exception("closing-failed", broker=self._open.broker)

    async def _wind_down(self, stopped: Stopped, serving: int) -> None:
        """In order: callers, hooks, then the clients (records flushed, leadership resigned)."""
        try:
            self._answer_all(stopped)
            runtime, until_s = self.settings.runtime, self._budget_until_s
            left_s = None if until_s is None else until_s - self._mono_s()
            await self._hooks.close(within_budget(self.settings.hooks.deadline_s, left_s, runtime.shutdown_grace_s))
            self._beats_until_s = self._mono_s() + runtime.close_timeout_s + CLOSING_SLACK_S
            await self._platform.aside(self._log.close, runtime.close_timeout_s)
        except Exception:
            _log.exception("closing-failed", broker=self._open.broker)
        finally:
            gc_exclusion.end()
            if stopped.reason == LOG_AWAY:
                stopped = self._stopping = after_all(
                    stopped, registered=self._log.registered, left=self._around.left_behind()
                )
                log_end(stopped, self._open.broker, serving)
            if self._watchdog is not None:
                await self._platform.aside(self._watchdog.close)
            if self.endpoint is not None:
                await self._platform.aside(self.endpoint.close)
            self._watch.close()
            if self._ended is not None and not self._ended.done():
                self._ended.set_result(stopped)

    def _answer_all(self, stopped: Stopped) -> None:
        for command, report, _ in list(self._waiting.values()):
            report(outcome_of_stopping(command, stopped))
        self._waiting.clear()
        self.handlers.close()
        self.live.close(ChannelStoppedError(stopped))

    def abandon(self, stopped: Stopped) -> None:
        """End as if the process were killed: no hook is called, and nothing is written. For the test kit."""
        self._stopping = stopped
        self._open.end()
        self._driver.stop()
        self._calm.end(keep=False)
        self._answer_all(stopped)
        if self._ended is not None and not self._ended.done():
            gc_exclusion.end()
            self._ended.set_result(stopped)

    def _violated(self, error: Exception, inputs: Sequence[Input]) -> None:
        log_evidence(error, inputs, self._open.broker)
        detail = f"{type(error).__name__}: {error}; this is a bug, the log holds the last inputs"
        self.stop(Stopped("invariant-violated", detail))

    def _beat(self) -> None:
        """Keep the watchdog's beat while the loop closes, but not for ever."""
        if (self._ended is None or not self._ended.done()) and self._mono_s() < self._beats_until_s:
            self._closing_beats += 1
            self._last_beat_s = self._mono_s()
            if self.availability is not None:
                self.availability.review()
            asyncio.get_running_loop().call_later(CLOSING_BEAT_S, self._beat)

    def _hook_failed(self, effect: CallHook, error: str) -> None:
        self.metrics.hook_failed(effect.hook, error)
        self._driver.inbox.push(HookFailed(effect.hook, effect.bundle, error))

    def _blocked(self, loop: asyncio.AbstractEventLoop, thread: int, seconds: float) -> None:
        """In the watchdog's thread."""
        call = self._hooks.call_of(asyncio.current_task(loop))
        place = place_of(thread)
        hook, bundle = (None, None) if call is None else (call.hook, call.bundle)

        def say() -> None:
            self.metrics.log.emit(
                "loop-blocked", seconds=round(seconds, 1), hook=hook, bundle=bundle, place=place.calls
            )

        within(FINAL_LOG_S, say)
        self._driver.inbox.push(LoopBlocked(seconds, place.innermost, hook))

    @property
    def loop_blocked(self) -> bool:
        """Whether the loop makes no progress now; may be read from any thread."""
        last_s = max(self._driver.last_progress_s, self._last_beat_s)  # a closing loop makes beats only
        return self._mono_s() - last_s > self.settings.runtime.loop_blocked_s

    def _stuck(self, thread: int) -> None:
        """In the watchdog's thread. A blocked loop may also block logging, which must not delay the end."""
        self._seat.yield_it()
        place, stack = place_of(thread).calls, stack_of(thread)

        def say() -> None:
            self.metrics.stuck(stuck=True)
            _log.critical(
                "loop-stuck",
                broker=self._open.broker,
                seconds=self.settings.runtime.watchdog_s,
                place=place,
                stack=stack,
            )

        within(FINAL_LOG_S, say)
        if self._on_stuck is not None:
            try:
                self._on_stuck()
            except Exception as error:
                raised = error
                within(FINAL_LOG_S, lambda: _log.error("on-stuck-raised", broker=self._open.broker, exc_info=raised))

    def _loop_closed(self) -> None:
        """In any thread: the embedder's loop was closed while this member was open."""
        if self._stopping is None:
            self._stopping = LOOP_CLOSED
            if self._watchdog is not None:
                self._watchdog.end()  # what the loop's thread does from here on is no affair of the member
            closing = (
                lambda: self._seat.ask(stand=False),
                lambda: self._log.close(self.settings.runtime.close_timeout_s),
                lambda: self._calm.end(keep=False),
                gc_exclusion.end,
                lambda: None if self.endpoint is None else self.endpoint.close(),
                self._watch.close,
            )
            abandon(self._open, closing)

    # --- commands ---------------------------------------------------------------------------------------------------

    def submit(self, command: Command) -> asyncio.Future[Outcome]:
        """Submit a command to the engine.

        Raises:
            ArgumentTypeError: A field of the command is of the wrong type.
            ArgumentValueError: A field of the command is out of bounds or malformed.
            ChannelStoppedError: This member has stopped, or too many commands wait.
        """
        future: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()

        def report(outcome: Outcome) -> None:
            if not future.done():
                future.set_result(outcome)

        self._submit(command, report)
        return future

    def cached_owner(self, name: str) -> commands.Owned | None:
        """See `OwnerCache.find`; may be called from any thread."""
        if self.stopped is not None:
            return None
        owner = self.engine.cached_owner(self._driver.now_s(), name)
        if owner is not None:
            self._watch.cached_lookups[threading.get_ident()] += 1
        return owner

    def _submit(self, command: Command, report: Callable[[Outcome], None]) -> None:
        check(command)
        if (stopped := self.stopped) is not None:
            raise ChannelStoppedError(stopped)
        if len(self._waiting) >= self.settings.runtime.commands_max and not isinstance(command, commands.Shutdown):
            raise TooManyCommandsError(self.settings.runtime.commands_max)
        if isinstance(command, commands.Shutdown) and self._budget_until_s is None:
            self._budget_until_s = self._mono_s() + command.budget_s
        self._tokens += 1
        self._waiting[self._tokens] = (command, report, self._mono_s())
        self._driver.inbox.push(CommandReceived(self._tokens, command), InboxLane.CALLS)

    # --- effects ----------------------------------------------------------------------------------------------------

    def _perform(self, effect: Effect) -> None:
        match effect:
            case Append():
                self._watch.appending(effect.token)
                self._log.append(effect)
            case Emit(event, facts):
                if event == "record.accepted":
                    self.live.deliver(facts["record"], facts["read"])
                    self._watch.accepted(facts["record"], facts["read"])
                self.metrics.take(effect)
            case Complete(token, outcome):
                self._answered(token, outcome)
            case CallHook():
                self._hooks.call(effect)
            case RestartReading(topic, partition):
                self._log.restart_reading(topic, partition)
            case InterruptStream(partition, why):
                self.live.interrupt(partition, why)
                self._watch.flights.restart()
            case StandForLeader(stand):
                self._seat.ask(stand=stand)
            case StopEngine(reason, detail):
                self.stop(self._left_behind or Stopped(reason, detail))

    def _answered(self, token: int, outcome: Outcome) -> None:
        waiting = self._waiting.pop(token, None)
        if waiting is None:
            return
        command, report, asked_s = waiting
        self._watch.answered(command, outcome, asked_s)
        if isinstance(command, commands.Shutdown) and isinstance(outcome, commands.Rejected):
            # The mode of the registry: not where a newer format made it stop.
            away = outcome.reason == LOG_AWAY or self.engine.context.registry_mode is Mode.SAFE
            if outcome.reason != "draining":
                self._left_behind = Stopped(LOG_AWAY if away else "shutdown-late", outcome.message)
        report(with_next_step(outcome, command))

    def _append_request(self, identifier: str, value: bytes) -> None:
        self._desk_tokens -= 1
        self._log.append(Append(self._desk_tokens, Topic.REQUESTS, 0, identifier.encode(), value))

    def request(
        self,
        asked: RequestCommand,
        args: Mapping[str, Any],
        timeout_s: float,
        on_reply: Callable[[Outcome], None] | None = None,
    ) -> str:
        """Write a request to the requests topic; returns its id.

        Args:
            on_reply: Called once with the reply, if one is read in time.

        Raises:
            ChannelStoppedError: This member has stopped.
        """
        if (stopped := self.stopped) is not None:
            raise ChannelStoppedError(stopped)
        request = Request(str(ULID()), asked.value, 0, args, self._around.broker)
        if on_reply is not None:
            self._desk.hear(request.id, on_reply)
        self._append_request(request.id, request_record.encode(request, timeout_s=timeout_s))
        return request.id

    # --- inputs -----------------------------------------------------------------------------------------------------

    def _divert(self, item: Input) -> bool:
        """Keep the requests topic from the engine."""
        if item.__class__ is RecordRead:
            return self._divert_record(item)
        if item.__class__ is RecordsRead:  # of the channel or the registry: the requests topic comes record by record
            return self._divert_record(item.records[-1])
        if isinstance(item, Appended | AppendFailed):
            self._watch.appended(item)
            if self.kafka_limits is not None and isinstance(item, AppendFailed) and item.refusal is not None:
                self.kafka_limits.look()
            return item.token < 0  # the desk's own: it writes again what it does not read back
        if isinstance(item, PartitionOpened | PositionReached | PartitionBroken) and item.topic is Topic.REQUESTS:
            self._requests_topic(item)
            return True
        if isinstance(item, PartitionOpened) and item.topic is Topic.CHANNEL:
            self._calm.begin()  # a replay begins
        return False

    def _divert_record(self, record: RecordRead) -> bool:
        if record.topic is Topic.REQUESTS:
            self._desk.read(record)
            return True
        if record.topic is Topic.REGISTRY:
            self._desk.heard(record.timestamp_ms)
        return False

    def _requests_topic(self, item: PartitionOpened | PositionReached | PartitionBroken) -> None:
        match item:
            case PartitionOpened():
                self._desk.opened(item)
            case PositionReached():
                self._desk.reached(item)
            case PartitionBroken(detail=detail):
                self.stop(Stopped("topic-broken", f"the requests topic: {detail}; create it again with init"))

    # --- after each burst -------------------------------------------------------------------------------------------

    def _progressed(self) -> None:
        now_s, engine = self._driver.last_progress_s, self.engine
        self._seat.resume()
        if engine.ready:
            self._calm.end()
            self._caught_up.set()
        self._desk.look(now_s)
        if now_s - self._observed_s >= self._platform.observe_s:
            self._observed_s = now_s
            self._observe()

    def _observe(self) -> None:
        if self.availability is not None:
            self.availability.review()
        if self.kafka_limits is not None:
            self.kafka_limits.look()
        self._watch.look(
            inbox=len(self._driver.inbox),
            commands=len(self._waiting),
            requests=len(self._desk),
            hooks=self._hooks.counts,
            unanswered=self._log.unanswered,
        )

    def serving(self) -> dict[str, int]:
        return {} if self.stopped is not None else self.engine.serving()

    def serves(self, bundle: str) -> int | None:
        """Generation by which this process may serve a bundle right now, by the engine's clock. In any thread."""
        return None if self.stopped is not None else self.engine.lease.serves_at(bundle, self._driver.now_s())

    def accepts_writes(self, bundle: str) -> int | None:
        """Generation by which this process may take writes to a bundle right now, by the engine's clock. In any thread."""
        return None if self.stopped is not None else self.engine.lease.accepts_writes_at(bundle, self._driver.now_s())

    @property
    def hooks(self) -> HookCounts:
        """Numbers of running and late hooks; may be read from any thread."""
        return self._hooks.counts

    @property
    def last_progress_s(self) -> float:
        """When the loop last processed its inputs; may be read from any thread."""
        return self._driver.last_progress_s

    def status(self) -> dict[str, Any]:
        return {
            **self.engine.status(),
            **(_ENDED if self.stopped is not None else {}),
            "runtime": {
                "steps": self._driver.steps,
                "waiting_inputs": len(self._driver.inbox),
                "waiting_inputs_bytes": self._driver.inbox.size_bytes,
                "stalls": self._driver.stalls.to_json(),
                "waiting_commands": len(self._waiting),
                **self._hooks.counts.to_json(),
                "open_requests": len(self._desk),
                "unwritten_log_lines": unwritten(),
                "metrics_port": None if self.endpoint is None else self.endpoint.port,
                "stopped": None if self._stopping is None else self._stopping.reason,
            },
        }
