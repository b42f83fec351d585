"""Assembly of a running member from settings."""

from __future__ import annotations

import asyncio
import threading
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, NamedTuple, Protocol

from ulid import ULID

from statechannel.broker.changes import PastReader
from statechannel.broker.hook_runner import overridden, warn_of_hooks
from statechannel.broker.hooks import BrokerHooks, ThreadedHooks
from statechannel.broker.host import Host
from statechannel.broker.host_platform import HostPlatform
from statechannel.broker.observe.endpoint import Endpoint, url_of
from statechannel.broker.observe.events import Level
from statechannel.broker.observe.health import routes
from statechannel.broker.observe.kafka_limits import KafkaLimits
from statechannel.broker.observe.metrics import Metrics
from statechannel.broker.observe.observer import Availability
from statechannel.broker.observe.topic_conditions import TopicConditions
from statechannel.broker.parts import KafkaLog
from statechannel.broker.request_writer import write_request
from statechannel.clocks import now_ms
from statechannel.engine.config import OBSERVER, Identity
from statechannel.engine.effects import Hook
from statechannel.engine.engine import Engine
from statechannel.kafka.acls import CHANNEL, OWN_ENDS, REGISTRY, Role, require_rights
from statechannel.kafka.addresses import WAIT_OF_BROKERS, require_answer, require_listener, state_of
from statechannel.kafka.advertised import require_advertised
from statechannel.kafka.client_settings import BROKER_CLIENT, to_client, to_topics
from statechannel.kafka.errors import KafkaAccessDeniedError, KafkaClientError, KafkaUnavailableError
from statechannel.kafka.partition_count import as_used
from statechannel.kafka.reader import ReaderTuning
from statechannel.kafka.tail import PartitionTail
from statechannel.kafka.topic_policy import ObservedTopics
from statechannel.kafka.topics import create_topics as create
from statechannel.kafka.topics import verify_topics
from statechannel.logger import SafeLogger
from statechannel.protocol.log import Topic
from statechannel.settings import to_engine

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from prometheus_client import CollectorRegistry

    from statechannel.broker.observe.traces import Traces
    from statechannel.broker.parts import KafkaParts
    from statechannel.engine.placement import Placement
    from statechannel.kafka.client_settings import ClientSettings
    from statechannel.kafka.topic_policy import ChannelTopics
    from statechannel.kafka.topics import TopicInfo
    from statechannel.operations.request_record import Request
    from statechannel.settings import Settings

_log = SafeLogger(__name__)

SILENCE_SAID_S = 2.0
GATHER_MAX_S = 0.2
"""Longest wait of a heartbeat for others where there are many; a fifth of the interval of heartbeats at most."""

QUIET_LOOKS = 4
"""How often a process that only reads looks at a quiet log before it assumes that Kafka is away."""


class Access(NamedTuple):
    """Client settings and topic names of a channel."""

    client: ClientSettings
    topics: ChannelTopics


class MemberLog(Protocol):
    """What a member does with the log beside its engine."""

    def past(self, partition: int) -> PastReader: ...

    async def write_request(self, request: Request, *, answer_within_s: float) -> None: ...


class KafkaMemberLog:
    def __init__(self, kafka: Access, settings: Settings, *, partitions: int) -> None:
        self._kafka = kafka
        self._timeout_s = settings.kafka.command_timeout_s
        self._lag_s = to_engine(settings).compaction_lag_s
        self._partitions = partitions

    def past(self, partition: int) -> PastReader:
        client, topics = self._kafka
        tail = PartitionTail(client, Topic.CHANNEL, topics.channel, partition, group_id=topics.reader_group)
        return PastReader(tail, partition, partitions=self._partitions, compaction_lag_s=self._lag_s)

    async def write_request(self, request: Request, *, answer_within_s: float) -> None:
        client, topics = self._kafka
        write = partial(write_request, answer_within_s=answer_within_s, timeout_s=self._timeout_s)
        await asyncio.to_thread(write, client, topics, request)


class Opened(NamedTuple):
    """A started member.

    Attributes:
        access: To Kafka; None on a log without it (the test kit).
    """

    host: Host
    log: MemberLog
    access: Access | None


def access(settings: Settings, *, client_id: str = "statechannel") -> Access:
    """Addresses, properties and topic names from the settings.

    Raises:
        ClientSettingRefusedError: A property that the design fixes, or no address at all.
    """
    return Access(to_client(settings, client_id=client_id), to_topics(settings))


async def open_member(
    settings: Settings,
    identity: Identity,
    hooks: BrokerHooks,
    *,
    create_topics: bool = False,
    placement: Placement | None = None,
    registry: CollectorRegistry | None = None,
    on_stuck: Callable[[], None] | None = None,
) -> Opened:
    """Verify the topics (or create them), and start a member on the running loop.

    Raises:
        KafkaAdapterError: Kafka is unavailable, or a topic is missing or has settings that void the protocol.
        MetricsPortError: The port for metrics is in use.
    """
    kafka = access(settings, client_id=f"{BROKER_CLIENT}{identity.broker}")
    find_topics = partial(_topics, settings, kafka, create_topics=create_topics)
    infos = await _awaited(settings, kafka, identity.broker, find_topics)
    partitions = infos[Topic.CHANNEL].partitions
    identity = replace(identity, log=infos[Topic.CHANNEL].topic_id)
    observe = settings.observe
    metrics = _metrics(settings, identity.broker, registry)
    traces = _traces(settings, identity) if observe.traces else None
    endpoint = _endpoint(settings, metrics, identity.broker)
    if endpoint is not None:
        identity = replace(identity, http=url_of(observe.metrics_address, endpoint.port or 0))
    availability = _availability(kafka, metrics)
    topics = TopicConditions(metrics)
    topics.policies.update(kafka.topics.policies)
    log = _kafka_log(settings, kafka, infos, metrics, availability, topics, broker=identity.broker)
    host = make_host(
        settings,
        identity,
        hooks,
        log,
        metrics,
        partitions=partitions,
        placement=placement,
        traces=traces,
        on_stuck=on_stuck,
    )
    if endpoint is not None:
        host.endpoint = endpoint
        endpoint.routes = dict(routes(host, asyncio.get_running_loop(), timeout_s=observe.http_timeout_s))
    await _start(host, log, kafka, availability, topics)
    return Opened(host, KafkaMemberLog(kafka, settings, partitions=partitions), kafka)


def make_host(
    settings: Settings,
    identity: Identity,
    hooks: BrokerHooks,
    log: KafkaParts,
    metrics: Metrics,
    *,
    partitions: int,
    placement: Placement | None = None,
    traces: Traces | None = None,
    on_stuck: Callable[[], None] | None = None,
    platform: HostPlatform | None = None,
) -> Host:
    """A member on a log, not started yet."""
    warn_of_hooks(hooks, identity.broker)
    split_hooks = overridden(hooks, Hook.ON_SPLIT) or overridden(hooks, Hook.ON_SPLIT_DONE)
    platform = platform or HostPlatform()
    config = replace(
        to_engine(settings, partitions=partitions), split_hooks=split_hooks, tick_interval_s=platform.tick_interval_s
    )
    if isinstance(hooks, ThreadedHooks):
        hooks.threads = settings.hooks.threads_max
    engine = Engine(identity, config, placement)
    return Host(engine, log, hooks, metrics, settings=settings, traces=traces, on_stuck=on_stuck, platform=platform)


def make_observer(
    settings: Settings,
    log: KafkaParts,
    metrics: Metrics,
    *,
    partitions: int,
    log_id: str = "",
    platform: HostPlatform | None = None,
) -> Host:
    """An observer on a log, not started yet: it only reads."""
    platform = platform or HostPlatform()
    config = replace(
        to_engine(settings, partitions=partitions), observes=True, tick_interval_s=platform.tick_interval_s
    )
    identity = Identity(OBSERVER, str(ULID()), bytes(10), now_ms(), log=log_id)
    return Host(Engine(identity, config), log, BrokerHooks(), metrics, settings=settings, platform=platform)


async def open_observer(settings: Settings, *, registry: CollectorRegistry | None = None) -> Opened:
    """Verify the two topics that say who owns what, and start an observer on the running loop: it only reads.

    Raises:
        KafkaAdapterError: Kafka is unavailable, or a topic is missing, may not be read, or does not belong to a channel.
    """
    kafka = access(settings, client_id="statechannel-observer")
    infos = await _awaited(settings, kafka, OBSERVER, partial(_observed_topics, settings, kafka))
    partitions = infos[Topic.CHANNEL].partitions
    metrics = _metrics(settings, OBSERVER, registry)
    availability = _availability(kafka, metrics)
    topics = TopicConditions(metrics)
    topics.policies.update(ObservedTopics(kafka.topics).policies)
    log = _kafka_log(settings, kafka, infos, metrics, availability, topics, broker=OBSERVER, reads_only=True)
    host = make_observer(settings, log, metrics, partitions=partitions, log_id=infos[Topic.CHANNEL].topic_id)
    await _start(host, log, kafka, availability, topics)
    return Opened(host, KafkaMemberLog(kafka, settings, partitions=partitions), kafka)


def _metrics(settings: Settings, broker: str, registry: CollectorRegistry | None) -> Metrics:
    observe = settings.observe
    return Metrics(
        settings.channel.name,
        broker,
        registry,
        least=Level[observe.log_level.name],
        events_per_second_max=observe.events_per_second_max,
    )


def _availability(kafka: Access, metrics: Metrics) -> Availability:
    protocol = kafka.client.properties.get("security.protocol", "plaintext")
    return Availability(metrics, lambda: state_of(kafka.client.bootstrap_servers, protocol))


def _kafka_log(
    settings: Settings,
    kafka: Access,
    infos: Mapping[Topic, TopicInfo],
    metrics: Metrics,
    availability: Availability,
    topics: TopicConditions,
    *,
    broker: str,
    reads_only: bool = False,
) -> KafkaLog:
    return KafkaLog(
        kafka.client,
        kafka.topics,
        infos,
        runtime=settings.runtime,
        on_restart=metrics.restarted,
        on_availability=availability.changed,
        on_findings=topics.take,
        policies=topics.policies,
        progress_limit_s=settings.membership.expiry_s,
        gather_s=min(GATHER_MAX_S, settings.membership.interval_s / 5),
        broker=broker,
        reads_only=reads_only,
        reader_tuning=ReaderTuning(quiet_s=settings.safe_mode.after_s / QUIET_LOOKS) if reads_only else None,
    )


async def _start(host: Host, log: KafkaLog, kafka: Access, availability: Availability, topics: TopicConditions) -> None:
    """Start a host; what was opened for one that fails to start is closed."""
    host.availability, host.topics = availability, topics
    topics.is_lost = host.engine.head.is_lost
    host.kafka_limits = KafkaLimits(kafka.client.notes, host.metrics, host.feed)
    availability.loop_blocked = lambda: host.loop_blocked
    try:
        host.start()
    except BaseException:
        await asyncio.to_thread(log.close, 1.0)
        if host.endpoint is not None:
            host.endpoint.close()
        raise


async def _awaited(
    settings: Settings, kafka: Access, broker: str, find_topics: Callable[[], Mapping[Topic, TopicInfo]]
) -> Mapping[Topic, TopicInfo]:
    """The topics; if Kafka does not answer soon, what this waits for is logged, long before the time is up."""

    def say() -> None:
        try:
            _look_at_addresses(kafka.client)
        except KafkaUnavailableError as error:
            why = str(error)
        else:
            throttled = kafka.client.notes.throttled_lately()
            why = throttled or "it is slow to answer, or its address cannot be reached: the client tries again"
        _log.warning(
            "kafka.awaited",
            broker=broker,
            address=kafka.client.bootstrap_servers,
            seconds=SILENCE_SAID_S,
            limit_s=settings.kafka.command_timeout_s,
            why=why,
        )

    def say_aside() -> None:
        threading.Thread(target=say, name="statechannel-kafka-awaited", daemon=True).start()

    timer = asyncio.get_running_loop().call_later(SILENCE_SAID_S, say_aside)
    try:
        return await asyncio.to_thread(find_topics)
    except (KafkaUnavailableError, KafkaClientError, KafkaAccessDeniedError):
        await asyncio.to_thread(
            _look_at_addresses, kafka.client
        )  # what is certain is said rather than the client's words
        raise
    finally:
        timer.cancel()


def _look_at_addresses(client: ClientSettings) -> None:
    """Return unless no Kafka can be reached for a reason that is known.

    Raises:
        KafkaUnavailableError: With this reason.
    """
    protocol = client.properties.get("security.protocol", "plaintext")
    require_listener(client.bootstrap_servers, protocol, 0.0, WAIT_OF_BROKERS)
    require_answer(client.bootstrap_servers, protocol)
    require_advertised(client)


def _endpoint(settings: Settings, metrics: Metrics, broker: str) -> Endpoint | None:
    """Open the endpoint on its port; it gets its pages once the member exists."""
    observe = settings.observe
    if observe.metrics_port is None:
        return None
    endpoint = Endpoint(
        {},
        connections_max=observe.http_connections_max,
        timeout_s=observe.http_timeout_s,
        on_answer=lambda path, status: metrics.counted("http_requests", path, str(status)),
        on_refused=lambda: metrics.counted("http_refused"),
        broker=broker,
    )
    endpoint.serve(observe.metrics_port, observe.metrics_address)
    return endpoint


def _traces(settings: Settings, identity: Identity) -> Traces:
    from statechannel.broker.observe.traces import exporting  # noqa: PLC0415 - an extra: nothing of it is needed without

    return exporting(settings.channel.name, identity.broker, identity.incarnation)


def _observed_topics(settings: Settings, kafka: Access) -> Mapping[Topic, TopicInfo]:
    timeout_s, observed = settings.kafka.command_timeout_s, ObservedTopics(kafka.topics)
    require_rights(kafka.client, Role.ROUTER, kafka.topics.channel, ends=(CHANNEL, REGISTRY), timeout_s=timeout_s)
    topics = verify_topics(kafka.client, observed, timeout_s=timeout_s).topics
    return _used(settings, kafka, {topic: topics[name] for topic, name in observed.names.items()})


def _topics(settings: Settings, kafka: Access, *, create_topics: bool) -> Mapping[Topic, TopicInfo]:
    timeout_s = settings.kafka.command_timeout_s
    require_rights(kafka.client, Role.BROKER, kafka.topics.channel, ends=OWN_ENDS, timeout_s=timeout_s)
    if create_topics:
        topics = create(
            kafka.client,
            kafka.topics,
            partitions=settings.channel.partitions,
            replication_factor=settings.channel.replication_factor,
            timeout_s=timeout_s,
        )
    else:
        topics = verify_topics(kafka.client, kafka.topics, timeout_s=timeout_s).topics
    return _used(settings, kafka, {topic: topics[name] for topic, name in kafka.topics.names.items()})


def _used(settings: Settings, kafka: Access, infos: Mapping[Topic, TopicInfo]) -> Mapping[Topic, TopicInfo]:
    """The topics with the partitions that this channel uses: of all but its own one."""
    used = {topic: replace(info, partitions=1) for topic, info in infos.items()}
    timeout_s = settings.kafka.command_timeout_s
    return used | {Topic.CHANNEL: as_used(kafka.client, kafka.topics, infos[Topic.CHANNEL], timeout_s=timeout_s)}
