"""`--snapshot live`: takes a snapshot of a cluster from its topics (entry point group `shedders.snapshots`)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from loaddata.view.table_view import LoadTopicRecord, TableView
from shedders.balancer.active_strategies import in_force
from shedders.balancer.setting_names import balanced_by
from shedders.balancer.settings import NAME
from shedders.balancer.snapshot_from_topics import AcceptedRecord, TopicContents, snapshot_taken
from shedders.balancer.strategy_choice import Choice, changed_since, of_chosen, of_decision
from shedders.cli.decision_log import balancer_settings, decision_reader
from shedders.decisions.record import DecisionRecord
from shedders.decisions.topic import is_cycle
from shedders.policies.topic import PolicyTopics, policy_topic_exists, read_book
from shedders.snapshots.file import parse_snapshot, snapshot_bytes
from statechannel.cli.kit.channel_view import read_channel
from statechannel.cli.kit.kafka_wait import naming_address, told_if_slow
from statechannel.cli.kit.registry import Registry, read_registry
from statechannel.engine.cluster_view import BrokerSeen, BundleSeen
from statechannel.kafka.errors import KafkaUnavailableError, TopicMissingError
from statechannel.kafka.light_policy import LoadTopics
from statechannel.kafka.light_topic import LightBatch, LightReader
from statechannel.kafka.topics import TopicAdmin
from statechannel.protocol.states import State
from statechannel.protocol.verdict import Verdict

if TYPE_CHECKING:
    from loaddata.settings import LoadSettings
    from shedders.balancer.settings import BalancerSettings
    from shedders.decisions.topic import DecisionReader
    from shedders.policies.effective import EffectivePolicies
    from shedders.snapshots.model import Snapshot
    from statechannel.audit.views import LogViews
    from statechannel.cli.kit.connection import Connection
    from statechannel.cli.kit.options import Connect
    from statechannel.protocol.log import RecordRead
    from statechannel.protocol.view import Judgement


LIVE = "live"


def live(connect: Connect) -> Snapshot:
    """A snapshot of the cluster as its topics tell of it now.

    Raises:
        KafkaAdapterError: Kafka is away, or the channel does not exist.
        SnapshotError: What was read makes no sound snapshot.
        SettingsError: The settings of the balancer, as this command is given them, cannot be used.
    """
    snapshot = snapshot_taken(gather(connect()))
    return parse_snapshot(snapshot_bytes(snapshot), "the snapshot that was taken")


def gather(connection: Connection) -> TopicContents:
    """Read it all: load first, then who owns what, so that a report is marked as lapsed rather than taken for current."""
    settings = balancer_settings(connection)
    log = _Log()
    remarks: list[str] = []
    loads, tops = _load_topics(connection, settings.load, remarks)
    standing_at = _policies(connection)
    views = read_channel(connection, [log.observe])
    registry = read_registry(connection)
    at_ms = _time_ms(registry, views, [*(loads or ()), *(tops or ())])
    standing = None if standing_at is None else standing_at.at(at_ms)
    decision, choice = _decided(connection, settings, standing, remarks)
    own = balanced_by(settings, {} if standing is None else standing.settings)
    leader = registry.leader
    if leader is None:
        remarks.append(
            "nobody leads: no plan is carried out at present" if registry.members.alive else "no broker is alive"
        )
    info = {} if leader is None else leader.info
    return TopicContents(
        now_ms=at_ms,
        brokers=_brokers(registry),
        bundles=_bundles(views),
        choice=choice,
        mode=str(info.get("mode", "normal")),
        repair_paused=_text(info.get("repair_paused")),
        unsound=_unsound(views),
        accepted=log.accepted,
        loads=loads,
        tops=tops,
        standing=standing,
        decision=decision,
        rules=lambda: _view(settings.load, registry),
        top_ttl_s=settings.load.ttl_s,
        move_memory_s=own.move_memory_s,
        budget=own.budget,
        balancing=own.balancing,
        remarks=remarks,
    )


# --- the channel ------------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class _Log:
    """What is accepted of the channel's log."""

    accepted: list[AcceptedRecord] = field(default_factory=list)

    def observe(self, record: RecordRead, judgement: Judgement) -> None:
        """Take one record in."""
        said, key = judgement.record, judgement.key
        if judgement.verdict is Verdict.ACCEPTED and said is not None and key is not None and not key.is_namespace:
            self.accepted.append(
                AcceptedRecord(
                    record.partition, record.offset, record.timestamp_ms, key.name, said.state, said.from_, said.to
                )
            )


def _bundles(views: LogViews) -> list[BundleSeen]:
    return [
        BundleSeen(
            key.name,
            str(key.state),
            key.version,
            key.owner,
            key.to if key.to != key.owner else None,
            key.generation,
            part.view.partition,
            key.offset,
            key.from_ if key.state is State.ASSIGNING else None,
        )
        for part in views.parts
        for key in part.view.live()
    ]


def _unsound(views: LogViews) -> str | None:
    if views.tentative:
        return "the channel's log was cleaned and no heartbeat vouches for what is left"
    stopped = [part for part in views.parts if part.stop is not None]
    if stopped:
        return f"partition {stopped[0].view.partition} of the channel holds records of a newer format"
    return None


def _brokers(registry: Registry) -> list[BrokerSeen]:
    read_at_s = registry.read_at_ms / 1_000
    return [
        BrokerSeen(name, one.incarnation, one.accepting, one.caught_up, max(0.0, read_at_s - one.heard_at_s), one.info)
        for name, one in sorted(registry.members.alive.items())
    ]


def _time_ms(registry: Registry, views: LogViews, reports: Sequence[LoadTopicRecord]) -> int:
    """Now by Kafka's clock, as far as can be known; nothing that was read is younger."""
    return max(registry.read_at_ms, *views.newest_ms, *(one.timestamp_ms for one in reports))


def _text(value: object) -> str | None:
    return value if isinstance(value, str) and value else None


# --- load reports, policies -------------------------------------------------------------------------------------------


def _view(settings: LoadSettings, registry: Registry) -> TableView[Any]:
    """As a leader has it: reports of brokers that nobody has registered do not count."""
    view: TableView[Any] = TableView(settings.view_rules())
    view.registered([*registry.members.lost, *registry.members.alive], 0.0)
    return view


def _load_topics(
    connection: Connection, settings: LoadSettings, remarks: list[str]
) -> tuple[Sequence[LoadTopicRecord] | None, Sequence[LoadTopicRecord] | None]:
    topics = LoadTopics(connection.topics.channel)
    names = (topics.broker_load, topics.top_bundles)
    with told_if_slow(connection):
        there = TopicAdmin(connection.client, timeout_s=connection.timeout_s).describe(list(names))
    loads, tops = (_records(connection, name, settings, remarks) if name in there else None for name in names)
    return loads, tops


def _records(
    connection: Connection, name: str, settings: LoadSettings, remarks: list[str]
) -> Sequence[LoadTopicRecord]:
    """What counts in a load topic; by the reader that knows headers, as tombstones have them."""
    found = NewestOfEach(settings.brokers_max, settings.held_bytes)

    def sink(batch: LightBatch) -> None:
        if batch.opened:
            found.clear()
        for record in batch.records:
            found.add(LoadTopicRecord(*record))

    with naming_address(connection):
        reader = LightReader(connection.client, name, sink, group_id=connection.topics.reader_group)
        reader.start()
        try:
            there = reader.wait_caught_up(connection.timeout_s)
        finally:
            ended = reader.close(connection.timeout_s)
        if not there or not ended:
            cause = f" ({reader.last_error})" if reader.last_error else ""
            raise KafkaUnavailableError(
                f"{name} was not read to its end within {connection.timeout_s:g} s{cause}.",
                hint="Check bootstrap.servers and that Kafka runs: `statechannel kafka status`.",
            )
    if found.left_out:
        remarks.append(
            f"{found.left_out} records of {name} were left out: extensions.{NAME}.load.held_bytes or brokers_max is reached"
        )
    return found.records


def _policies(connection: Connection) -> Any:
    topics = PolicyTopics(connection.topics.channel)
    with naming_address(connection):
        if not policy_topic_exists(connection.client, topics, timeout_s=connection.timeout_s):
            return None
        return read_book(connection.client, topics, timeout_s=connection.timeout_s)


# --- decisions --------------------------------------------------------------------------------------------------------


def _decided(
    connection: Connection, settings: BalancerSettings, standing: EffectivePolicies | None, remarks: list[str]
) -> tuple[DecisionRecord | None, Choice]:
    """The newest decision, and with what was decided; without one, what policies and this command's settings make."""
    decision, told = _newest(connection, remarks)
    if decision is not None and told is not None:
        late = changed_since(decision, standing)
        if not late:
            return decision, of_decision(decision, told)
        remarks.append(
            f"laid down after the newest decision: {', '.join(late)}; settings are theirs over this command's"
        )
    elif decision is not None:
        remarks.append(f"decision {decision.id} does not tell its settings; they are the policies' over this command's")
    return decision, of_chosen(in_force(settings, standing)[1])


def _newest(connection: Connection, remarks: list[str]) -> tuple[DecisionRecord | None, DecisionRecord | None]:
    try:
        with decision_reader(connection) as reader:
            decision = _last(reader, is_cycle)
            if decision is None:
                made = f"none was found, as {reader.ended}" if reader.ended else "none was made yet"
                remarks.append(f"no decision to go on from, {made}: nothing is remembered, settings are this command's")
                return None, None
            fingerprint = decision.fingerprint
            return decision, _last(
                reader,
                lambda one: (
                    isinstance(one, DecisionRecord)
                    and one.subject == "shed"
                    and one.fingerprint == fingerprint
                    and one.settings is not None
                ),
            )
    except TopicMissingError:
        remarks.append("there is no topic of decisions: nothing is remembered, settings are this command's")
        return None, None


def _last(reader: DecisionReader, wanted: Any) -> DecisionRecord | None:
    found = [one.record for one in reader.newest(1, wanted)]
    return next((one for one in reversed(found) if isinstance(one, DecisionRecord) and wanted(one)), None)


class NewestOfEach:
    """Takes records in log order, and keeps those that a compacted log would have.

    Args:
        keys_max: So many keys; `held_bytes`: so much of their values. What finds no room is left out, and counted.

    Attributes:
        left_out: Records that found no room.
    """

    def __init__(self, keys_max: int, held_bytes: int) -> None:
        self._keys_max = keys_max
        self._room_bytes = held_bytes
        self._held: dict[bytes, tuple[LoadTopicRecord | None, LoadTopicRecord | None]] = {}
        self.left_out = 0

    def clear(self) -> None:
        """The topic is read from its beginning again."""
        for value, _ in self._held.values():
            self._room_bytes += _size_bytes(value)
        self._held.clear()
        self.left_out = 0

    def add(self, record: LoadTopicRecord) -> None:
        """Take one in."""
        key = record.key or b""
        known = key in self._held
        value, null = self._held.get(key, (None, None))
        more_bytes = 0 if record.value is None else _size_bytes(record) - _size_bytes(value)
        if more_bytes > self._room_bytes or (not known and len(self._held) >= self._keys_max):
            self.left_out += 1
            return
        self._room_bytes -= more_bytes
        # A null counts only if it names the report before it, so both are needed.
        self._held[key] = (value, record) if record.value is None else (record, null)

    @property
    def records(self) -> list[LoadTopicRecord]:
        """What is kept, in log order."""
        found = [one for pair in self._held.values() for one in pair if one is not None]
        return sorted(found, key=lambda one: one.offset)


def _size_bytes(record: LoadTopicRecord | None) -> int:
    return 0 if record is None else len(record.value or b"") + len(record.key or b"")
