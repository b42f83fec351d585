"""Topics of a live channel: readers, an export to a file, and waits for a Kafka that answers slowly or not at all."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING

from statechannel.clocks import now_ms
from statechannel.errors import StateChannelError
from statechannel.kafka.addresses import CONNECT_S, addresses_of, require_listener, silence_of
from statechannel.kafka.advertised import require_advertised
from statechannel.kafka.errors import KafkaAccessDeniedError, KafkaUnavailableError, TopicMissingError
from statechannel.kafka.partition_count import as_used
from statechannel.kafka.tail import PartitionTail, Span, channel_tail
from statechannel.kafka.topics import TopicAdmin, TopicInfo
from statechannel.protocol.log import RecordRead, Topic
from statechannel.protocol.side_record import Headers
from statechannel.queries.connection import Connection
from statechannel.stories.requests import RequestFold, RequestStory, stories_of

if TYPE_CHECKING:  # requests and lookups read no export, and begin sooner without its modules
    from statechannel.audit.engine import LiveSource
    from statechannel.audit.transfer.line import ExportHeader

NOTIFY_AFTER_S = 2.0
BEAT_S = 0.5
ANSWER_S = 1.5
"""A fetch waits for records for up to 0.5 s, and the client's next call waits behind it."""


@contextmanager
def notify_if_slow(connection: Connection) -> Iterator[None]:
    """Wrap a command's first calls to Kafka: note it if they are slow.

    Raises:
        KafkaUnavailableError: As the calls raised it, with the address and what to do.
    """
    timer = threading.Timer(NOTIFY_AFTER_S, _notify, (connection,))
    timer.daemon = True
    timer.start()
    try:
        with naming_address(connection):
            _look_first(connection)
            yield
    finally:
        timer.cancel()


_reached: set[str] = set()
"""Addresses at which a command of this process found a listener: from then on an outage is bridged."""


def _look_first(connection: Connection) -> None:
    address = connection.client.bootstrap_servers
    if address not in _reached:
        protocol = connection.client.properties.get("security.protocol", "plaintext")
        require_listener(address, protocol, connection.settings.kafka.refused_wait_s)
        _reached.add(address)


@contextmanager
def naming_address(connection: Connection) -> Iterator[None]:
    """Add the address to the error if Kafka is unreachable."""
    address = connection.client.bootstrap_servers
    try:
        yield
    except KafkaUnavailableError as error:
        if error.address:
            raise
        silence = silence_of(address, connection.client.properties.get("security.protocol", "plaintext"))
        throttled = connection.client.notes.throttled_lately()
        if silence is None and not throttled:
            require_advertised(connection.client)
        hint = throttled or (_CHECK if silence is None else _hint_of_silence(address))
        raise error.at(address, hint=hint) from error
    except KafkaAccessDeniedError:
        require_advertised(connection.client)
        raise


def _hint_of_silence(address: str) -> str:
    """The same for a port that takes connections and one whose queue of them is full: the second follows from the first."""
    port = addresses_of(address)[0].port
    return (
        "The process of Kafka there is suspended or hangs; or the network or a firewall cuts it off. On its machine "
        f"`ss -ltnp sport = :{port}` names its pid, `ps -o stat -p PID` shows T if it is suspended, and `kill -CONT PID` resumes "
        "it; nothing is lost."
    )


_CHECK = "Check that Kafka runs there, and the address: --bootstrap-servers, setting kafka.bootstrap_servers."


class Pulse:
    """For a command that runs until interrupted: notices when Kafka stops answering, and when it is back.

    Args:
        tail: Any reader of the command; queried every `BEAT_S`, with a timeout of `ANSWER_S`.
        went_away: Called with the seconds of silence, after `NOTIFY_AFTER_S`; by default it is noted.
        came_back: Likewise, at the first answer after that.
    """

    def __init__(
        self,
        connection: Connection,
        tail: PartitionTail,
        *,
        went_away: Callable[[float], None] | None = None,
        came_back: Callable[[float], None] | None = None,
    ) -> None:
        note, kafka = connection.reporter.note, f"Kafka at {connection.client.bootstrap_servers}"
        self._went_away = went_away or (
            lambda _: note(f"{kafka} does not answer; the display continues when it answers again (Ctrl-C ends it)")
        )
        self._came_back = came_back or (lambda silent_s: note(f"{kafka} answers again, after {silent_s:.0f} s"))
        self._tail = tail
        self._answered_s = self._asked_s = time.monotonic()
        self._away = False

    def beat(self) -> None:
        if time.monotonic() - self._asked_s < BEAT_S:
            return
        answers = self._tail.answers(ANSWER_S)
        self._asked_s = time.monotonic()
        silent_s = self._asked_s - self._answered_s
        if answers:
            if self._away:
                self._came_back(silent_s)
            self._answered_s, self._away = self._asked_s, False
        elif not self._away and silent_s >= NOTIFY_AFTER_S:
            self._away = True
            self._went_away(silent_s)


def in_time(connection: Connection) -> Connection:
    """The connection for a command that answers within its time-out in all, also where Kafka is silent.

    Raises:
        KafkaUnavailableError: There is certainly no Kafka.
    """
    began_s = time.monotonic()
    with naming_address(connection):
        _look_first(connection)
    looked_s = time.monotonic() - began_s
    if looked_s < CONNECT_S:
        return connection
    _notify(connection)
    # Whatever listens there has not said a word: it is asked once more at the end, for the hint.
    return replace(connection.within(connection.timeout_s - looked_s - 2 * CONNECT_S), notified=True)


def _notify(connection: Connection) -> None:
    if connection.notified:
        return
    connection.reporter.note(
        f"Kafka at {connection.client.bootstrap_servers} has not answered yet; "
        f"waiting for at most {connection.timeout_s:g} s (setting kafka.command_timeout_s)"
    )


_EVERY = 1_000


def describe_topic(connection: Connection, topic: Topic) -> TopicInfo:
    """The cluster's description of a topic of the channel; of the channel's own with the partitions that it uses.

    Raises:
        TopicMissingError: It does not exist.
    """
    name = connection.topics.names[topic]
    with notify_if_slow(connection):
        topics = TopicAdmin(connection.client, timeout_s=connection.timeout_s).describe([name])
        if name not in topics:
            raise TopicMissingError(
                f"the topic {name} does not exist at {connection.client.bootstrap_servers}",
                hint="Check --channel and --bootstrap-servers, or create the topics with `statechannel init`.",
            )
        info = topics[name]
        if topic is Topic.CHANNEL:
            info = as_used(connection.client, connection.topics, info, timeout_s=connection.timeout_s)
    return info


@contextmanager
def open_tail(
    connection: Connection, topic: Topic, partition: int, observe_headers: Callable[[int, Headers], None] | None = None
) -> Iterator[PartitionTail]:
    client, topics, timeout_s = connection.client, connection.topics, connection.timeout_s
    tail = channel_tail(client, topics, topic, partition, timeout_s=timeout_s, observe_headers=observe_headers)
    with naming_address(connection), tail:
        yield tail


class ExportBounds:
    """How much of a log is exported.

    Args:
        records_max: Offsets that are read; each partition has its share, and what one does not need goes to the others.
        time_s: Time after which reading stops.

    Attributes:
        stopped_at: By partition, the first offset that was left out; empty if the whole log was read.
    """

    def __init__(self, records_max: int, time_s: float) -> None:
        self._records_max = records_max
        self._ends_s = time.monotonic() + time_s
        self.stopped_at: dict[int, int] = {}

    def spans(self, spans: Sequence[Span]) -> list[Span]:
        left, ends = self._records_max, {}
        by_size = sorted(range(len(spans)), key=lambda number: spans[number].end - spans[number].start)
        for place, number in enumerate(by_size):
            share = min(spans[number].end - spans[number].start, left // (len(spans) - place))
            ends[number], left = spans[number].start + share, left - share
        self.stopped_at = {number: end for number, end in sorted(ends.items()) if end < spans[number].end}
        return [replace(span, end=ends[number]) for number, span in enumerate(spans)]

    def within(self, records: Iterable[RecordRead], spans: Sequence[Span]) -> Iterator[RecordRead]:
        """The records until the time is up."""
        newest: RecordRead | None = None
        for newest in records:
            yield newest
            if time.monotonic() > self._ends_s:
                break
        else:
            return
        for number, span in enumerate(spans):
            if number == newest.partition:
                self.stopped_at[number] = newest.offset + 1
            elif number > newest.partition:
                self.stopped_at[number] = span.start


def export_live(
    connection: Connection,
    path: Path,
    *,
    beside: Mapping[str, str] | None = None,
    bounds: ExportBounds | None = None,
    positions_lost: Mapping[int, int] = MappingProxyType({}),
) -> ExportHeader:
    """Write the channel's topic to an export file: all records below the end offsets as of the start.

    Args:
        beside: Digests of the files of other topics that were made with it, by role; None: the file does not say so.
        bounds: Where it stops before the end.
        positions_lost: What the topic does not have of what brokers had read, by the registry.
    """
    from statechannel.audit.transfer.export_file import read_export, write_export
    from statechannel.audit.transfer.line import ExportHeader

    info = describe_topic(connection, Topic.CHANNEL)
    headers = _HeadersRead()
    with ExitStack() as stack:
        tails = [
            stack.enter_context(open_tail(connection, Topic.CHANNEL, partition, headers.of_partition(partition)))
            for partition in range(info.partitions)
        ]
        spans = [tail.span() for tail in tails]
        if bounds is not None:
            spans = bounds.spans(spans)
        header = ExportHeader(
            info.name,
            {number: span.end for number, span in enumerate(spans)},
            now_ms(),
            beside=beside,
            first_offsets={number: span.low for number, span in enumerate(spans) if span.low > 0},
            positions_lost=positions_lost,
        )
        total = sum(span.end - span.start for span in spans)
        advance = stack.enter_context(connection.reporter.progress(f"reading {info.name}", total, unit="offsets"))
        # Closed before the tails are, also if the file cannot be written.
        every = stack.enter_context(closing(_all(tails, spans, advance)))
        records: Iterable[RecordRead] = every if bounds is None else bounds.within(every, spans)
        written = write_export(path, header, records, now_ms=now_ms, headers_of=headers.take)
    stopped_at = {} if bounds is None else bounds.stopped_at
    ends = dict(header.end_offsets) | stopped_at
    if ends == header.end_offsets:
        return written
    # The time was up: the first line is to name the ends that the file has.
    cut = read_export(path, made_here=True)
    headers = _HeadersRead()
    lines = (line for _, part in sorted(cut.partitions.items()) for line in part.lines())
    again = (headers.keep(line.record, line.headers) for line in lines)
    return write_export(path, replace(header, end_offsets=ends), again, now_ms=now_ms, headers_of=headers.take)


class _HeadersRead:
    """Headers of records that were read and are not written yet."""

    def __init__(self) -> None:
        self._held: dict[tuple[int, int], Headers] = {}

    def of_partition(self, partition: int) -> Callable[[int, Headers], None]:
        return lambda offset, headers: self._held.__setitem__((partition, offset), headers)

    def keep(self, record: RecordRead, headers: Headers) -> RecordRead:
        self._held[record.partition, record.offset] = headers
        return record

    def take(self, record: RecordRead) -> Headers:
        """Those of a record, which are held no longer."""
        return self._held.pop((record.partition, record.offset), ())


def export_side_topics(connection: Connection, files: Mapping[str, Path]) -> dict[str, ExportHeader]:
    """Write other topics, each to its file; those that do not exist are left out.

    Args:
        files: By topic.

    Returns:
        The headers of the files, by topic.
    """
    from statechannel.audit.transfer.export_file import write_export
    from statechannel.audit.transfer.line import ExportHeader

    with notify_if_slow(connection):
        there = TopicAdmin(connection.client, timeout_s=connection.timeout_s).describe(list(files))
    written: dict[str, ExportHeader] = {}
    for name, file in files.items():
        if name not in there:
            continue
        headers = _HeadersRead()
        tail = PartitionTail(
            connection.client,
            Topic.REQUESTS,  # the role is not written
            name,
            0,
            group_id=connection.topics.reader_group,
            timeout_s=connection.timeout_s,
            observe_headers=headers.of_partition(0),
        )
        with naming_address(connection), tail:
            span = tail.span()
            header = ExportHeader(name, {0: span.end}, now_ms())
            with closing(_all([tail], [span], lambda _: None)) as records:
                written[name] = write_export(file, header, records, now_ms=now_ms, headers_of=headers.take)
    return written


def live_source(connection: Connection) -> LiveSource:
    from statechannel.audit.engine import LiveSource

    return LiveSource(
        connection.client.bootstrap_servers,
        connection.topics.names[Topic.CHANNEL],
        connection.client.properties,
        lambda path: export_live(connection, path),
    )


def _all(
    tails: list[PartitionTail], spans: list[Span], advance: Callable[[int], None]
) -> Generator[RecordRead, None, None]:
    before = 0
    for tail, span in zip(tails, spans, strict=True):
        for number, record in enumerate(tail.records(span)):
            if number % _EVERY == 0:
                advance(before + record.offset - span.start)
            yield record
        before += span.end - span.start
        advance(before)


# --- requests of the past ---------------------------------------------------------------------------------------------


_LEAST_BACK_S = 3_600.0


def read_requests(connection: Connection) -> Mapping[str, RequestStory]:
    """All requests of the topic, by id, the oldest first."""
    with open_tail(connection, Topic.REQUESTS, 0) as tail:
        return stories_of(tail.records(tail.span()))


def recent_requests(connection: Connection) -> RequestFold:
    """Requests as old as the lost brokers that are shown, at least of the last hour; none where they cannot be read."""
    fold = RequestFold()
    back_s = max(_LEAST_BACK_S, connection.settings.membership.lost_shown_s)
    with suppress(StateChannelError), open_tail(connection, Topic.REQUESTS, 0) as tail:
        fold.take(tail.records(tail.span(from_time_ms=now_ms() - round(back_s * 1_000))))
    return fold


def extension_requests(connection: Connection, extension: str, ask: str) -> Iterator[RequestStory]:
    """Requests of one kind to an extension, the oldest first."""
    return (story for story in read_requests(connection).values() if story.is_to(extension, ask))
