"""Command `statechannel status`: verdict, incidents, brokers, operations, counters; once or continuously."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial
from typing import Annotated, Any, NamedTuple

import typer

from statechannel.audit.views import LogViews
from statechannel.cli.doctor.checks import extensions
from statechannel.cli.kit.channel_view import FollowedPartition, open_followed
from statechannel.cli.kit.options import Connect, OutputAs, commands, option, with_connection
from statechannel.cli.kit.output import Output, print_json, say, waiting
from statechannel.cli.kit.remarks import Remarks, remarks
from statechannel.cli.kit.screen import EVERY_S, EndsAfter, Every, Watch, print_whole, screen
from statechannel.cli.status.figures import GAP_OVER_S, INCIDENTS, StatusInputs, figures, with_health
from statechannel.cli.status.tables import INCIDENTS_MAX, status_display
from statechannel.clocks import duration, moment, now_ms
from statechannel.conditions.facts import NO_TOPIC_FACTS, ChannelHealth, ConditionLimits, TopicFacts
from statechannel.engine.membership import Member
from statechannel.engine.proven_positions import ProvenPositions
from statechannel.errors import ExitCode, UsageError
from statechannel.kafka.errors import KafkaUnavailableError
from statechannel.kafka.tail import PartitionTail
from statechannel.operations.outcomes import Answer
from statechannel.operations.table import RequestCommand
from statechannel.protocol.log import RecordRead, Topic
from statechannel.protocol.replica import Phase
from statechannel.queries.channel_view import read_channel
from statechannel.queries.connection import Connection
from statechannel.queries.live_log import Pulse, describe_topic, in_time, notify_if_slow, open_tail, recent_requests
from statechannel.queries.registry import LogClock, open_registry, topic_state
from statechannel.replay.part import PartitionAudit
from statechannel.replay.survey import FormatStop
from statechannel.stories.incident import Incident, IncidentKind, seconds
from statechannel.stories.processes import RegistryStory
from statechannel.stories.registry import Registry, RegistryFold
from statechannel.stories.requests import Dismissal, RequestStory

app = commands()

_TRIED_AGAIN_S = 2.0


@app.command()
@with_connection
def status(
    connect: Connect,
    watch: Watch = False,
    every: Every = EVERY_S,
    max_seconds: EndsAfter = None,
    incidents: Annotated[int, option("--incidents", "Number of last incidents.", min=0, max=INCIDENTS_MAX)] = INCIDENTS,
    gap_over: Annotated[
        float, option("--gaps-over SECONDS", "Minimum length of a gap in service to be an incident.", min=0)
    ] = GAP_OVER_S,
    exit_code: Annotated[
        bool, option("--exit-code", "End with 30 if the verdict is degraded, 32 if it is down, 4 if it is unknown.")
    ] = False,
    output: OutputAs = Output.TABLE,
) -> None:
    """Show the state of the channel and its brokers, and the last incidents; with --watch continuously.

    Where the state can be read the exit code is 0 whatever it is, unless --exit-code is given.
    """
    if exit_code and watch:
        raise UsageError("--exit-code and --watch exclude each other", hint="The verdict changes.")
    connection = connect().within(max_seconds if watch else None)

    def inputs() -> StatusInputs:
        story = RegistryStory(connection.settings.membership.expiry_s)
        return StatusInputs(story, gap_over_ms=max(0.0, gap_over) * 1_000)

    if watch:
        _stay(connection, inputs, incidents, every_s=every, max_s=max_seconds, output=output)
        return
    began_ms, began_s = now_ms(), time.monotonic()
    try:
        fields = read_once(in_time(connection), inputs(), incidents)
    except KafkaUnavailableError as error:
        raise _unknown(error, began_ms, time.monotonic() - began_s) from error
    if output is Output.JSON:
        print_json(fields)
    else:
        print_whole(partial(status_display, fields, counters=False))
    if exit_code and fields["health"] != ChannelHealth.HEALTHY:
        raise typer.Exit(_CODES[ChannelHealth(fields["health"])])


_CODES = {
    ChannelHealth.DEGRADED: ExitCode.DOCTOR_WARNING,
    ChannelHealth.DOWN: ExitCode.DOCTOR_CRITICAL,
    ChannelHealth.UNKNOWN: ExitCode.UNDETERMINED,
}


def _unknown(error: KafkaUnavailableError, began_ms: int, silent_s: float) -> KafkaUnavailableError:
    """The same error; where Kafka is silent, with what that means for clients."""
    if not error.silence:
        return error
    message = (
        f"UNKNOWN: Kafka at {error.address} has not answered since {moment(began_ms)}, when this command began, for "
        f"{duration(silent_s * 1_000)}. Brokers that run go on serving what they serve, in safe mode; no bundle is assigned, "
        "moved or repaired until Kafka answers"
    )
    return KafkaUnavailableError(message, hint=error.hint, silence=error.silence, address=error.address)


def read_once(connection: Connection, inputs: StatusInputs, incidents: int) -> dict[str, Any]:
    """Read log and registry to their ends, once; returns the document."""
    with open_registry(connection, observe=inputs.story.observe) as reader:
        views = read_channel(connection, inputs.observers())
        registry = reader.read()
    # What a remark says of a request must not be newer than what the incidents say of it.
    notes = remarks(connection, registry.members.alive)
    seen = requests_of_last_hour(connection)
    inputs.incidents.requesters = seen.requesters
    topics = _topics_of(connection, registry.members.alive, registry.positions)
    return _document(connection, views, registry, inputs, notes, seen, incidents, topics=topics)


def _document(
    connection: Connection,
    views: LogViews,
    registry: Registry,
    inputs: StatusInputs,
    notes: Remarks,
    seen: RequestIncidents,
    incidents: int,
    **facts: Any,
) -> dict[str, Any]:
    fields = figures(
        views,
        registry.without(seen.dismissals),
        inputs,
        notes,
        channel=connection.topics.channel,
        bootstrap_servers=connection.client.bootstrap_servers,
        context=connection.context,
        drains=seen.drains,
        incidents=incidents,
    )
    return with_health(fields | facts, ConditionLimits.of(connection.settings))


def _topics_of(connection: Connection, alive: Mapping[str, Member], positions: ProvenPositions | None) -> TopicFacts:
    others = [topic for _, item in extensions() for topic in item.topics(connection)]
    return topic_state(connection, [(topic.name, topic.policy) for topic in others], alive, positions)


def _stay(
    connection: Connection,
    inputs: Callable[[], StatusInputs],
    incidents: int,
    *,
    every_s: float,
    max_s: float | None,
    output: Output,
) -> None:
    began_s = time.monotonic()
    try:
        with ExitStack() as stack:
            follower = _follower(connection, inputs, stack, ends_s=None if max_s is None else began_s + max_s)
            draw = stack.enter_context(screen(output))
            shown_s = 0.0
            while max_s is None or time.monotonic() - began_s < max_s:
                if time.monotonic() - shown_s >= every_s:
                    fields = follower.figures(incidents)
                    draw(partial(status_display, fields), fields, fields["at_ms"])
                    shown_s = time.monotonic()
                follower.turn()
    except KeyboardInterrupt:
        return  # the way to end it


def _follower(
    connection: Connection, inputs: Callable[[], StatusInputs], stack: ExitStack, *, ends_s: float | None
) -> StatusFollower:
    """One that has read all; while Kafka does not answer it is tried again, as this is what people open in an outage.

    Args:
        ends_s: The last attempt begins before this time (monotonic); None: there is none.

    Raises:
        KafkaUnavailableError: At that time Kafka does not answer yet.
    """
    away = False
    while True:
        began_s = time.monotonic()
        try:
            with ExitStack() as opened:
                follower = opened.enter_context(StatusFollower(connection, inputs()))
                _read_up(follower, connection)
                stack.push(opened.pop_all())
                return follower
        except KafkaUnavailableError as error:
            again_s = began_s + _TRIED_AGAIN_S
            if ends_s is not None and max(again_s, time.monotonic()) >= ends_s:
                raise
            if not away:
                say(f"UNKNOWN: {error}. {error.hint}".rstrip())
                say("the display begins when it answers (Ctrl-C ends it)")
            away = True
            time.sleep(max(0.0, again_s - time.monotonic()))


def _read_up(follower: StatusFollower, connection: Connection) -> None:
    """The first read; of a compacted log it ends before a heartbeat vouches for it."""
    with waiting("reading the log", connection.timeout_s) as tick:
        while not follower.ready:
            follower.turn()
            tick("")


_REMARKS_EVERY_S = 15.0
_OF_LOST_EVERY_S = 1.0  # whether a broker that is lost was dismissed


class StatusFollower:
    """A context manager. Nothing is read twice, except where a broker would also rejoin: after a gap in the log or a cold start.

    Args:
        inputs: Observers of everything that is read.

    Attributes:
        blind_since_ms: Time by the log's clock since which Kafka does not answer; None while it does.
    """

    def __init__(self, connection: Connection, inputs: StatusInputs) -> None:
        self.blind_since_ms: int | None = None
        self._connection = connection
        self._inputs = inputs
        self._clock = LogClock()
        membership = connection.settings.membership
        channel = describe_topic(connection, Topic.CHANNEL)
        self._positions = ProvenPositions(channel.topic_id, channel.partitions)
        self._fold = RegistryFold(
            membership.expiry_s,
            observe=inputs.story.observe,
            clock=self._seen_ms,
            lost_shown_s=membership.lost_shown_s,
            positions=self._positions,
        )
        self._listens_s = 2 * membership.interval_s
        self._remarks = Remarks()
        self._requests = RequestIncidents()
        self._topics: TopicFacts = NO_TOPIC_FACTS
        self._asked: Future[tuple[Remarks, RequestIncidents, TopicFacts]] | None = None
        self._asked_s = -math.inf
        self._stack = ExitStack()

    def __enter__(self) -> StatusFollower:
        with self._stack as stack:
            connection = self._connection
            self._registry: PartitionTail = stack.enter_context(open_tail(connection, Topic.REGISTRY, 0))
            self._pulse = Pulse(connection, self._registry, went_away=self._went_away, came_back=self._came_back)
            self._parts = open_followed(connection, stack)
            with notify_if_slow(connection):
                span = self._registry.span()
            self._registry_end = span.end
            self._began_s = time.monotonic()
            self._heartbeats = self._registry.follow(span.start)
            stack.callback(_close, self._heartbeats)
            self._pool = ThreadPoolExecutor(len(self._parts) + 2, thread_name_prefix="follower")
            stack.callback(self._pool.shutdown, cancel_futures=True)
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    @property
    def ready(self) -> bool:
        """Whether log and registry were read to their ends as of the start."""
        return self._registry_end <= 0 and all(part.following for part in self._parts)

    def turn(self) -> None:
        """Apply new records; waits briefly if there are none.

        Raises:
            CommandError: The topic was re-created or truncated.
        """
        self._ask_for_remarks()
        waits = [self._pool.submit(part.wait) for part in self._parts]
        self._read_registry(self._pool.submit(next, self._heartbeats, []).result())
        for part, wait in zip(self._parts, waits, strict=True):
            self._take(part, wait.result())
        self._pulse.beat()

    def _read_registry(self, records: Sequence[RecordRead]) -> None:
        self._fold.take(records)
        if records and records[-1].offset + 1 >= self._registry_end:
            if self._registry_end <= 0:
                self._clock.heard(records[-1].timestamp_ms)
            self._registry_end = 0
        elif not records:
            self._registry_end = 0  # a quiet moment: its end was reached, whatever retention took away meanwhile
            if time.monotonic() - self._began_s > self._listens_s:
                self._fold.listened()
                self._listens_s = math.inf

    def _take(self, part: FollowedPartition, records: list[RecordRead]) -> None:
        judged = part.read(records) if part.following else part.open()
        try:
            for record, judgement in judged:
                self._inputs.observe(record, judgement)
        except KafkaUnavailableError:
            if not part.opened:
                raise
        part.refuse_broken()

    def _went_away(self, silent_s: float) -> None:
        self.blind_since_ms = self._clock.now_ms() - round(silent_s * 1_000)

    def _came_back(self, _: float) -> None:
        self._fold.hear_all()  # we were cut off: earlier silence does not count for any broker
        self.blind_since_ms = None

    def _seen_ms(self) -> int:
        """The log's estimated time: it stops while Kafka does not answer, so that no broker looks lost meanwhile."""
        return self._clock.now_ms() if self.blind_since_ms is None else self.blind_since_ms

    def _ask_for_remarks(self) -> None:
        """Refresh remarks in another thread: other packages query Kafka themselves."""
        if self._asked is not None:
            if not self._asked.done():
                return
            (self._remarks, self._requests, self._topics), self._asked = self._asked.result(), None
            self._inputs.incidents.requesters = self._requests.requesters
            self._asked_s = time.monotonic()
        waited_s, registry = time.monotonic() - self._asked_s, self._fold.registry()
        lost = registry.without(self._requests.dismissals).members.lost
        due = waited_s > _REMARKS_EVERY_S or (waited_s > _OF_LOST_EVERY_S and bool(lost))
        if self.blind_since_ms is None and due:
            alive = dict(registry.members.alive)
            self._asked = self._pool.submit(
                lambda: (
                    remarks(self._connection, alive),
                    requests_of_last_hour(self._connection),
                    _topics_of(self._connection, alive, self._positions),
                )
            )

    def figures(self, incidents: int) -> dict[str, Any]:
        waiting = [part for part in self._parts if part.replica.phase not in (Phase.CAUGHT_UP, Phase.STOPPED)]
        reasons = [f"partition {part.partition}: {part.replica.why or 'is being read'}" for part in waiting]
        views = LogViews(
            tuple(_audited(part) for part in self._parts), tuple(part.replica.timestamp_ms for part in self._parts)
        )
        notes, registry = self._remarks._replace(cluster=[*reasons, *self._remarks.cluster]), self._fold.registry()
        facts = {"at_ms": self._clock.now_ms(), "blind_since_ms": self.blind_since_ms, "topics": self._topics}
        return _document(self._connection, views, registry, self._inputs, notes, self._requests, incidents, **facts)


def _close(batches: Iterator[list[RecordRead]]) -> None:
    if isinstance(batches, Generator):
        batches.close()


def _audited(part: FollowedPartition) -> PartitionAudit:
    replica = part.replica
    stopped = replica.phase is Phase.STOPPED
    return PartitionAudit(
        replica.view,
        stop=FormatStop(replica.position, replica.newer_format) if stopped else None,
        tentative=not stopped and not replica.caught_up,
        head=None if replica.marks.head is None else replica.marks.head[1],
        head_lost=replica.first_offset if replica.is_headless else 0,
    )


class RequestIncidents(NamedTuple):
    """What the requests topic adds to incidents.

    Attributes:
        requesters: Who asked for an operation, by its id.
        dismissals: Lost brokers that will not come back.
    """

    drains: Sequence[Incident] = ()
    requesters: Mapping[str, str] = {}
    dismissals: Mapping[tuple[str, str], Dismissal] = {}


def requests_of_last_hour(connection: Connection) -> RequestIncidents:
    """Drains, dismissals and requesters in the requests topic; empty if it cannot be read, which `doctor` reports."""
    fold = recent_requests(connection)
    stories = fold.stories.values()
    return RequestIncidents(drains_of(stories), {story.id: story.by for story in stories if story.by}, fold.dismissals)


def drains_of(requests: Iterable[RequestStory]) -> list[Incident]:
    """Drains, by the time of the request; failures for one reason are one incident.

    The time in front of an incident is that of the request, so its sentence begins with that.
    """
    incidents: list[Incident] = []
    failed: dict[tuple[str, str, str], tuple[int, Incident]] = {}
    for story in requests:
        if story.command != RequestCommand.EXTENSION or story.flow != "drain":
            continue
        broker, at_ms, by, message = str(story.args.get("broker")), story.asked_ms, story.by, story.message
        of, took = f"the drain of {broker}{f' by {by}' if by else ''}", seconds(story.changed_ms - at_ms)
        if story.outcome is None:
            incidents.append(
                Incident(at_ms, IncidentKind.DRAIN, f"{broker} is being drained{f', by {by}' if by else ''}")
            )
        elif story.answer != Answer.REJECTED:
            end = f"timed out after {took}" if story.is_timed_out else f"ended after {took}: {story.result}"
            why = f"; {message}" if message else ""
            incidents.append(Incident(at_ms, IncidentKind.DRAIN, f"{of} began, and {end}{why}"))
        else:
            reason = str(story.outcome.get("reason"))
            times = failed.get((broker, by, reason), (0, None))[0] + 1
            end = "began, and failed" if times == 1 else f"failed {times} times, the last time"
            sentence = f"{of} {end} after {took}: {story.outcome.get('message') or reason} ({reason})"
            failed[broker, by, reason] = times, Incident(at_ms, IncidentKind.DRAIN, sentence)
    return [*incidents, *(incident for _, incident in failed.values())]
