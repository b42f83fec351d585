"""Load and placement by a cluster's topics: a list of loads, and snapshots."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from pydantic import Field
from typing_extensions import TypedDict

from loaddata.report.record import (
    BrokerLoadReport,
    TopBundlesReport,
    decode_broker_load,
    decode_top_bundles,
    parse_tombstone,
)
from loaddata.view.table_view import TableView
from shedders.balancer.active_strategies import balanced_by, in_force
from shedders.balancer.settings import NAME
from shedders.balancer.snapshot_from_topics import (
    AcceptedRecord,
    Choice,
    TopicContents,
    changed_since,
    of_chosen,
    of_decision,
    snapshot_taken,
)
from shedders.decisions.record import DecisionRecord
from shedders.decisions.topic import is_cycle
from shedders.queries.decisions import balancer_settings, decision_reader
from shedders.queries.policies import book_of
from shedders.snapshots.file import parse_snapshot, snapshot_bytes
from statechannel.engine.cluster_view import BundleSeen, seen_brokers, seen_bundle
from statechannel.kafka.errors import KafkaUnavailableError, TopicMissingError
from statechannel.kafka.light_topic import LightBatch, LightReader
from statechannel.kafka.topic_policy import LoadTopics
from statechannel.kafka.topics import TopicAdmin
from statechannel.protocol.side_record import SideRecord
from statechannel.protocol.verdict import Verdict
from statechannel.queries.channel_view import read_channel
from statechannel.queries.live_log import naming_address, notify_if_slow
from statechannel.queries.query import TIME_MAX_MS, RequestModel
from statechannel.queries.registry import read_registry
from statechannel.stories.registry import Registry

if TYPE_CHECKING:
    from loaddata.model.broker_load import BrokerLoad
    from loaddata.model.bundle_load import TopBundle
    from loaddata.settings import LoadSettings
    from shedders.balancer.settings import BalancerSettings
    from shedders.decisions.topic import DecisionReader
    from shedders.policies.effective import EffectivePolicies
    from shedders.snapshots.model import Snapshot
    from statechannel.audit.views import LogViews
    from statechannel.protocol.log import RecordRead
    from statechannel.protocol.view import Judgement
    from statechannel.queries.connection import Connection


def live_at(connection: Connection) -> Snapshot:
    """Take a snapshot of the cluster from its topics.

    Raises:
        KafkaAdapterError: Kafka is out of reach, or the channel does not exist.
        SnapshotError: The topics do not make a consistent snapshot.
        SettingsError: The settings of the balancer, from this command's configuration, are invalid.
    """
    snapshot = snapshot_taken(gather(connection))
    return parse_snapshot(snapshot_bytes(snapshot), "the live snapshot")


class LoadsQuery(RequestModel):
    """Of which moment."""

    at_ms: int | None = Field(
        None, ge=0, le=TIME_MAX_MS, description="As of this log time, as far as the topics have it still; default: now."
    )


class LoadsDocument(TypedDict):
    """Newest load reports of brokers, and the heaviest bundles that they name, the heaviest first."""

    brokers: list[dict[str, Any]]
    bundles: list[dict[str, Any]]
    notes: list[str]


def loads(connection: Connection, asked: LoadsQuery) -> dict[str, Any]:
    """What brokers report of their load; reports that were older than the view's time to live do not count in a past moment."""
    at_ms, remarks = asked.at_ms, list[str]()
    settings = balancer_settings(connection).load
    reports, tops = _load_topics(connection, settings, remarks, at_ms)
    oldest_ms = 0 if at_ms is None else at_ms - round(1_000 * settings.ttl_s)
    brokers = [
        _broker_row(report.header.broker, record.timestamp_ms, report.load)
        for record in _undeleted(reports or ())
        if record.value is not None
        and record.timestamp_ms >= oldest_ms
        and isinstance(report := decode_broker_load(record.key, record.value), BrokerLoadReport)
    ]
    bundles = [
        _bundle_row(top.header.broker, bundle)
        for record in _undeleted(tops or ())
        if record.value is not None
        and record.timestamp_ms >= oldest_ms
        and isinstance(top := decode_top_bundles(record.key, record.value), TopBundlesReport)
        for bundle in top.bundles
    ]
    bundles.sort(key=lambda row: (-row["msg_throughput_in"] - row["msg_throughput_out"], row["bundle"]))
    if reports is None:
        remarks.append("the topic of load reports does not exist: no broker runs the balancer's extension")
    for remark in remarks:
        connection.reporter.note(remark)
    return {"brokers": sorted(brokers, key=lambda row: row["broker"]), "bundles": bundles}


def _undeleted(records: Iterable[SideRecord]) -> list[SideRecord]:
    """The newest report of each broker, unless a tombstone deletes it: its broker has left, or it has expired."""
    held: dict[bytes | None, SideRecord] = {}
    for record in records:
        if record.value is not None:
            held[record.key] = record
            continue
        tombstone, report = parse_tombstone(record.headers, record.offset), held.get(record.key)
        if tombstone is not None and report is not None and tombstone.honoured_over(report.offset):
            del held[record.key]
    return list(held.values())


def _broker_row(broker: str, logged_at_ms: int, load: BrokerLoad) -> dict[str, Any]:
    used = {name: getattr(load, name) for name in ("cpu", "memory", "direct_memory", "bandwidth_in", "bandwidth_out")}
    return {
        "broker": broker,
        "logged_at_ms": logged_at_ms,
        **{f"{name}_percent": round(own.percent, 1) if own.limit > 0 else None for name, own in used.items()},
        "msg_throughput_in": load.msg_throughput_in,
        "msg_throughput_out": load.msg_throughput_out,
    }


def _bundle_row(broker: str, bundle: TopBundle) -> dict[str, Any]:
    return {
        "bundle": bundle.name,
        "broker": broker,
        "msg_throughput_in": bundle.stats.msg_throughput_in,
        "msg_throughput_out": bundle.stats.msg_throughput_out,
    }


def gather(connection: Connection) -> TopicContents:
    """Read all topics: load before ownership, so that an old report is marked as stale, never taken for current."""
    settings = balancer_settings(connection)
    log = _Log()
    remarks: list[str] = []
    loads, tops = _load_topics(connection, settings.load, remarks)
    policies = book_of(connection)
    views = read_channel(connection, [log.observe])
    registry = read_registry(connection)
    at_ms = registry.read_at_ms
    effective = policies.at(at_ms)
    decision, choice = _decided(connection, settings, effective, remarks)
    own = balanced_by(settings, effective.settings)
    leader = registry.leader
    if leader is None:
        remarks.append(
            "there is no leader: no plan is executed at present" if registry.members.alive else "no broker is alive"
        )
    info = {} if leader is None else leader.info
    return TopicContents(
        now_ms=at_ms,
        brokers=seen_brokers(registry.members, at_ms / 1_000),
        bundles=_bundles(views),
        choice=choice,
        mode=str(info.get("mode", "normal")),
        repair_paused=_text(info.get("repair_paused")),
        unsound=_unsound(views),
        accepted=log.accepted,
        loads=loads,
        tops=tops,
        effective=effective,
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
    """Accepted state of the channel's log."""

    accepted: list[AcceptedRecord] = field(default_factory=list)

    def observe(self, record: RecordRead, judgement: Judgement) -> None:
        state, key = judgement.record, judgement.key
        if judgement.verdict is Verdict.ACCEPTED and state is not None and key is not None and not key.is_namespace:
            self.accepted.append(
                AcceptedRecord(
                    record.partition, record.offset, record.timestamp_ms, key.name, state.state, state.from_, state.to
                )
            )


def _bundles(views: LogViews) -> list[BundleSeen]:
    return [seen_bundle(key, part.view.partition) for part in views.parts for key in part.view.live()]


def _unsound(views: LogViews) -> str | None:
    if views.tentative:
        return "the channel's log was cleaned, and no clean heartbeat vouches for the rest"
    stopped = [part for part in views.parts if part.stop is not None]
    if stopped:
        return f"partition {stopped[0].view.partition} of the channel holds records of a newer format"
    return None


def _text(value: object) -> str | None:
    return value if isinstance(value, str) and value else None


# --- load reports, policies -------------------------------------------------------------------------------------------


def _view(settings: LoadSettings, registry: Registry) -> TableView[Any]:
    """The leader's view: reports of unregistered brokers do not count."""
    view: TableView[Any] = TableView(settings.view_rules())
    view.registered([*registry.members.lost, *registry.members.alive], 0.0)
    return view


def _load_topics(
    connection: Connection, settings: LoadSettings, remarks: list[str], at_ms: int | None = None
) -> tuple[Sequence[SideRecord] | None, Sequence[SideRecord] | None]:
    topics = LoadTopics(connection.topics.channel)
    names = (topics.broker_load, topics.top_bundles)
    with notify_if_slow(connection):
        there = TopicAdmin(connection.client, timeout_s=connection.timeout_s).describe(list(names))
    loads, tops = (_records(connection, name, settings, remarks, at_ms) if name in there else None for name in names)
    return loads, tops


def _records(
    connection: Connection, name: str, settings: LoadSettings, remarks: list[str], at_ms: int | None
) -> Sequence[SideRecord]:
    """Records that count in a load topic now, or at a log time, read with headers, as tombstones have them."""
    newest = NewestRecords(settings.brokers_max, settings.held_bytes)

    def sink(batch: LightBatch) -> None:
        if batch.opened:
            newest.clear()
        for record in batch.records:
            if at_ms is None or record.timestamp_ms <= at_ms:
                newest.add(record)

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
                f"{name} could not be read to its end within {connection.timeout_s:g} s{cause}.",
                hint="Check bootstrap.servers and that Kafka runs: `statechannel kafka status`.",
            )
    if newest.left_out:
        remarks.append(
            f"{newest.left_out} records of {name} were omitted: extensions.{NAME}.load.held_bytes or brokers_max is reached"
        )
    return newest.records


# --- decisions --------------------------------------------------------------------------------------------------------


def _decided(
    connection: Connection, settings: BalancerSettings, effective: EffectivePolicies | None, remarks: list[str]
) -> tuple[DecisionRecord | None, Choice]:
    """The newest decision and its settings; without one, those of the policies and this command's configuration."""
    decision, decided = _newest(connection, remarks)
    if decision is not None and decided is not None:
        late = changed_since(decision, effective)
        if not late:
            return decision, of_decision(decision, decided)
        remarks.append(
            f"set after the newest decision: {', '.join(late)}; these policies override this command's settings"
        )
    elif decision is not None:
        remarks.append(f"decision {decision.id} has no settings; policies override this command's settings")
    return decision, of_chosen(in_force(settings, effective)[1])


def _newest(connection: Connection, remarks: list[str]) -> tuple[DecisionRecord | None, DecisionRecord | None]:
    try:
        with decision_reader(connection) as reader:
            decision = _last(reader, is_cycle)
            if decision is None:
                cause = f"none was found, as {reader.ended}" if reader.ended else "none was made yet"
                remarks.append(f"no previous decision, {cause}: no memory, settings are this command's")
                return None, None
            fingerprint = decision.fingerprint
            return decision, _last(
                reader,
                lambda entry: (
                    isinstance(entry, DecisionRecord)
                    and entry.subject == "shed"
                    and entry.fingerprint == fingerprint
                    and entry.settings is not None
                ),
            )
    except TopicMissingError:
        remarks.append("the topic of decisions does not exist: no memory, settings are this command's")
        return None, None


def _last(reader: DecisionReader, wanted: Any) -> DecisionRecord | None:
    records = [entry.record for entry in reader.newest(1, wanted)]
    return next((record for record in reversed(records) if isinstance(record, DecisionRecord) and wanted(record)), None)


class NewestRecords:
    """Newest records of each key, as a compacted log has them, collected in log order.

    Args:
        keys_max: Most keys, and `held_bytes` most bytes of their values; records beyond are omitted and counted.

    Attributes:
        left_out: Number of omitted records.
    """

    def __init__(self, keys_max: int, held_bytes: int) -> None:
        self._keys_max = keys_max
        self._room_bytes = held_bytes
        self._held: dict[bytes, tuple[SideRecord | None, SideRecord | None]] = {}
        self.left_out = 0

    def clear(self) -> None:
        """Start again, as the topic is read from its beginning."""
        for value, _ in self._held.values():
            self._room_bytes += _size_bytes(value)
        self._held.clear()
        self.left_out = 0

    def add(self, record: SideRecord) -> None:
        key = record.key or b""
        known = key in self._held
        value, null = self._held.get(key, (None, None))
        more_bytes = 0 if record.value is None else _size_bytes(record) - _size_bytes(value)
        if more_bytes > self._room_bytes or (not known and len(self._held) >= self._keys_max):
            self.left_out += 1
            return
        self._room_bytes -= more_bytes
        # A tombstone counts only if it names the report before it, so both are needed.
        self._held[key] = (value, record) if record.value is None else (record, null)

    @property
    def records(self) -> list[SideRecord]:
        kept = [record for pair in self._held.values() for record in pair if record is not None]
        return sorted(kept, key=lambda record: record.offset)


def _size_bytes(record: SideRecord | None) -> int:
    return 0 if record is None else len(record.value or b"") + len(record.key or b"")
