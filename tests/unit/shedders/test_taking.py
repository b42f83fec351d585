"""A snapshot that is taken from the topics: its plan is what a balancer decides from the same records, bit for bit."""

import json
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any

import orjson
import pytest

from loaddata.model.broker_load import BrokerLoad, ResourceUsage
from loaddata.report.record import (
    BrokerLoadReport,
    ReportedLoad,
    ReportedTopBundles,
    ReportHeader,
    Tombstone,
    TopBundlesReport,
    decode_broker_load,
    decode_top_bundles,
    encode_broker_load,
    encode_top_bundles,
)
from loaddata.view.ownership import OwnershipChange, change_of, newest_changes
from loaddata.view.table_view import Arrival, TableView, decoder
from shedders.balancer.active_strategies import ActiveStrategies, choose
from shedders.balancer.cluster_inputs import ClusterInputs, RecentTrail, cluster_now
from shedders.balancer.lead import Balance
from shedders.balancer.settings import BalancerSettings
from shedders.balancer.snapshot_from_topics import (
    AcceptedRecord,
    TopicContents,
    changed_since,
    of_chosen,
    of_decision,
    snapshot_taken,
)
from shedders.decision.booked_moves import BookedMoves, BudgetSettings
from shedders.decision.dry_run import Decision, run_cycles
from shedders.decisions.builder import Occasion, shed_record
from shedders.decisions.record import DecisionRecord, Inputs, decode, encode, key_of
from shedders.filters.rules import FilterSettings
from shedders.model.strategy import SHEDDING
from shedders.policies.book import PolicyBook
from shedders.policies.effective import EffectivePolicies
from shedders.policies.kinds import PolicyKind
from shedders.policies.record import PolicyRecord, made_key
from shedders.policies.record import encode as encode_policy
from shedders.queries.live_source import _bundles, _Log, _unsound
from shedders.snapshots.cluster import booked_of, cluster_of, remarks
from shedders.snapshots.file import parse_snapshot, snapshot_bytes
from shedders.snapshots.model import BalancingPart, BudgetPart, Snapshot
from shedders.snapshots.plan_document import cycle_part
from shedders.snapshots.selection import choose as chosen_by
from shedders.snapshots.selection import part_settings, pipeline_of, remembered_by, shedding_of
from shedders.split.triggers import SplitSettings
from statechannel.audit.views import LogViews
from statechannel.engine.cluster_view import ClusterViews, seen_brokers
from statechannel.engine.membership import Membership
from statechannel.protocol.log import Topic
from statechannel.protocol.side_record import SideRecord
from statechannel.replay.auditor import audit_part
from tests.docs.tiny_log import START_MS, TinyLog
from tests.support.decision_records import IDS, ChannelLog
from tests.support.load_reports import top
from tests.support.strategies import declared

SHEDDERS = sorted(declared()[SHEDDING])
OWNERS = ("b2", "b3", "b4")
RANGES = [f"0x{n << 28:08x}_0x{min((n + 1) << 28, 0xFFFFFFFF):08x}" for n in range(16)]
NOW_MS = START_MS + 400_000
RULES = BalancerSettings().load.view_rules()


class Cluster:
    """The topics of a channel, spelled out: `b2` is loaded, `b3` half, `b4` idle; `b1` serves nothing and has left the load."""

    def __init__(self) -> None:
        self.log = ChannelLog(START_MS + 100_000)
        self.log.created(*RANGES, namespace="acme/orders")
        self.names = [f"acme/orders/{item}" for item in RANGES]
        for number, name in enumerate(self.names):
            self.log.assigned(name, OWNERS[0] if number < 10 else OWNERS[1], by="b2")
        self.log.moved(self.names[15], "b3", "b4")
        self.log.write(self.names[9], "Releasing", by="b2", action="transfer", **{"from": "b2"}, to="b4")
        self.loads: list[SideRecord] = []
        self.tops: list[SideRecord] = []
        self._seq = 0
        end = len(self.log.records)
        self.report("b1", 0.05, {}, end, age_ms=9_000)
        self.null(self.loads, "b1")
        self.report("b2", 0.9, {name: 4_000.0 + 100 * n for n, name in enumerate(self.names[:9])}, end, age_ms=4_000)
        self.report("b3", 0.5, dict.fromkeys(self.names[10:15], 900.0), end, age_ms=3_500)
        self.report("b4", 0.1, {self.names[15]: 900.0}, end, age_ms=2_000)
        self.book = PolicyBook()

    def report(self, broker: str, usage: float, rates: dict[str, float], applied: int, *, age_ms: int) -> None:
        """Both reports of a broker."""
        self._seq += 1
        at_ms = NOW_MS - age_ms
        header = ReportHeader(broker, f"{broker}-1", self._seq, at_ms, {0: applied})
        throughput = 1_000.0 * sum(rates.values())
        load = BrokerLoad(
            cpu=ResourceUsage(400 * usage, 400),
            bandwidth_in=ResourceUsage(1e6 * usage, 1e6),
            bandwidth_out=ResourceUsage(1e6 * usage, 1e6),
            msg_rate_in=sum(rates.values()),
            msg_throughput_in=throughput,
            bundles=len(rates),
            topics=4 * len(rates),
            max_resource_usage=usage,
            weighted_max_ema=usage,
            msg_throughput_ema=throughput,
            updated_at_ms=at_ms,
            reported_at_ms=at_ms,
        )
        key = broker.encode()
        self.loads.append(
            SideRecord(key, encode_broker_load(BrokerLoadReport(header, load)), (), len(self.loads), at_ms)
        )
        results = [top(name, rate) for name, rate in sorted(rates.items(), key=lambda item: item[1])]
        self.tops.append(
            SideRecord(key, encode_top_bundles(TopBundlesReport(header, results)), (), len(self.tops), at_ms)
        )

    def null(self, records: list[SideRecord], broker: str) -> None:
        headers = Tombstone("leaving", len(records) - 1, NOW_MS).headers()
        records.append(SideRecord(broker.encode(), None, headers, len(records), NOW_MS - 5_000))

    def policy(self, kind: PolicyKind, name: str, value: dict[str, Any]) -> None:
        key = made_key(kind, name)
        raw = encode_policy(PolicyRecord(key, value, "me", written_at_ms=NOW_MS))
        self.book.take(self.book.position + 1, NOW_MS, key.encode(), raw)


# --- the two ways -----------------------------------------------------------------------------------------------------


class Member(TinyLog):
    """The real engine of `b1`, which reads that log and hears the others; what it hears is kept."""

    def __init__(self, log: ChannelLog) -> None:
        super().__init__()
        self.heard: list[tuple[int, int, bytes]] = []
        self.others = OWNERS
        self._history = list(log.records)
        self._ends[Topic.CHANNEL] = len(log.records)
        self.open()
        self.wait(1.0)

    def _append(self, topic: Topic, key: bytes, value: bytes | None) -> Any:
        if topic is Topic.CHANNEL:
            raise AssertionError("the member writes to the channel: the picture would not be that of the log")
        read = super()._append(topic, key, value)
        if value is not None:
            self.heard.append((read.offset, read.timestamp_ms, value))
        return read


def live_cluster(topics: Cluster, member: Member, move_memory_s: float = 1_800.0) -> Any:
    """As the balancing extension puts it together in the leader."""
    picture = ClusterViews().of(member.engine.context)
    log = _read(topics)[1]
    changes = newest_changes(
        OwnershipChange(bundle.owner, bundle.partition, bundle.offset)
        for bundle in picture.bundles
        if bundle.state == "Assigned" and bundle.owner is not None
    )
    changes += [change for item in log.accepted if (change := change_of(item)) is not None]
    trail = RecentTrail(lambda: move_memory_s)
    for item in log.accepted:
        trail.changed(item, (item.timestamp_ms - NOW_MS) / 1_000)
    result = topics.book.at(NOW_MS)
    known = ClusterInputs(
        loads={
            name: ReportedLoad(entry.report.load, entry.age_s, entry.lapsed)
            for name, entry in _followed(topics.loads, decoder(decode_broker_load), changes).seen(50.0).items()
        },
        tops={
            name: ReportedTopBundles(entry.report.bundles, entry.age_s, entry.lapsed, entry.report.header.owned_as_of)
            for name, entry in _followed(topics.tops, decoder(decode_top_bundles), changes).seen(50.0).items()
        },
        policies=result.policies,
        domains=result.domains,
        quotas=result.quotas,
        recent=trail.recent(0.0),
    )
    return cluster_now(picture, known, NOW_MS)


def _followed(records: Iterable[SideRecord], decode: Any, changes: Iterable[OwnershipChange]) -> TableView[Any]:
    """As `loaddata.live.topics` does it: each record live, when it came."""
    view: TableView[Any] = TableView(RULES)
    for change in changes:
        view.ownership_changed(change)
    for record in records:
        view.read(record, decode(record), Arrival(50.0 - (NOW_MS - record.timestamp_ms) / 1_000, record.timestamp_ms))
    return view


def _read(topics: Cluster) -> tuple[LogViews, _Log]:
    log = _Log()
    audit = audit_part(0, 1, topics.log.records, observe=log.observe)
    return LogViews((audit,), (topics.log.records[-1].timestamp_ms,)), log


def gathered(topics: Cluster, member: Member, **more: Any) -> TopicContents:
    """As the command gathers it, from the same records."""
    views, log = _read(topics)
    members = Membership(6.0)
    for offset, at_ms, value in member.heard:
        members.heard(at_ms / 1_000, offset, at_ms, orjson.loads(value))
    fields: dict[str, Any] = {
        "now_ms": NOW_MS,
        "brokers": seen_brokers(members, NOW_MS / 1_000),
        "bundles": _bundles(views),
        "choice": of_chosen(choose(BalancerSettings())),
        "unsound": _unsound(views),
        "accepted": log.accepted,
        "loads": topics.loads,
        "tops": topics.tops,
        "effective": topics.book.at(NOW_MS),
        "rules": partial(TableView, RULES),
    }
    return TopicContents(**{**fields, **more})


def as_file(snapshot: Snapshot) -> Snapshot:
    return parse_snapshot(snapshot_bytes(snapshot))


def dry_run(snapshot: Snapshot) -> Decision:
    """What `shed plan` makes of it."""
    cluster = cluster_of(snapshot)
    chosen = chosen_by(snapshot, "shedding")
    memory = remembered_by(snapshot, "shedding", chosen.name)
    placing = pipeline_of(snapshot)[1]
    return next(run_cycles(cluster, shedding_of(chosen), memory, placing, booked=booked_of(snapshot, cluster)))


def record_of(decision: Decision, chosen: ActiveStrategies, policies: int) -> DecisionRecord:
    """The decision record as it comes back out of the topic."""
    settings: dict[str, Any] = {name: setting.model_dump(mode="json") for name, setting in chosen.settings.items()}
    settings["strategies"] = dict(chosen.names)
    occasion = Occasion(
        IDS[1], 7, "b1", 1, NOW_MS, Inputs(channel={"0": 1}, policies=policies), chosen.names["shedding"], chosen.profile,
        settings, write_settings=True, placement=chosen.names["placement"],
    )  # fmt: skip
    record = shed_record(occasion, decision)
    entry = decode(key_of(record), encode(record))
    assert isinstance(entry, DecisionRecord)
    return entry


def describe(decision: Decision) -> dict[str, Any]:
    return cycle_part(1, decision).model_dump()


# --- bit for bit ------------------------------------------------------------------------------------------------------

BALANCERS: dict[str, BalancerSettings] = {
    **{name: BalancerSettings(shedding=name) for name in SHEDDERS},
    "modular": BalancerSettings(profile="modular"),
    "production": BalancerSettings(profile="production"),
    "upstream": BalancerSettings(profile="upstream-extensible"),
    "settings": BalancerSettings(
        shedding="transfer",
        strategies={
            "shedding": {"transfer": {"hit_threshold": 0, "cool_down_s": 0}},
            "parts": {"filters": {"max_topics": 37}},
        },
    ),
}


@pytest.mark.parametrize("name", BALANCERS)
def test_the_plan_of_the_snapshot_is_what_the_balancer_decides(name: str) -> None:
    topics = Cluster()
    member = Member(topics.log)
    chosen = choose(BALANCERS[name])
    balance = Balance(BookedMoves(expire_s=120, keep_s=1_800))
    first, _ = balance.look(live_cluster(topics, member), 1_000.0)
    before = decided(balance, first, chosen)
    snapshot = as_file(snapshot_taken(gathered(topics, member, choice=of_chosen(chosen))))
    assert cluster_of(snapshot) == first
    assert describe(dry_run(snapshot.model_copy(update={"booked": []}))) == describe(before)

    # The next cycle, with what was remembered and settings as the decision tells them.
    record = record_of(before, chosen, topics.book.position)
    balance.memory = {chosen.names["shedding"]: before.memory}
    topics.report("b2", 0.95, dict.fromkeys(topics.names[:9], 4200.0), len(topics.log.records), age_ms=500)
    second, _ = balance.look(live_cluster(topics, member), 1_060.0)
    after = decided(balance, second, chosen)
    choice = of_decision(record, record)
    snapshot = as_file(snapshot_taken(gathered(topics, member, choice=choice, decision=record)))
    assert cluster_of(snapshot) == second
    assert snapshot.memory.shedding == ({chosen.names["shedding"]: dict(before.memory)})
    assert describe(dry_run(snapshot.model_copy(update={"booked": []}))) == describe(after)
    for kind in ("shedding", "placement", "split"):
        assert chosen_by(snapshot, kind).settings == chosen.settings[kind]
    assert part_settings(snapshot, "filters", FilterSettings) == chosen.settings["filters"]
    assert part_settings(snapshot, "splitting", SplitSettings) == chosen.settings["splitting"]


def decided(balance: Balance, cluster: Any, chosen: ActiveStrategies) -> Decision:
    return balance.question(cluster, chosen)()


def test_the_strategies_do_find_something_to_do() -> None:
    """Else the comparison above would compare nothing with nothing."""
    topics = Cluster()
    member = Member(topics.log)
    moving = set()
    for name, settings in BALANCERS.items():
        snapshot = snapshot_taken(gathered(topics, member, choice=of_chosen(choose(settings))))
        if dry_run(snapshot.model_copy(update={"booked": []})).plan.moves:
            moving.add(name)
    assert {"modular", "overload", "settings", "threshold", "uniform"} <= moving


# --- what is in it ----------------------------------------------------------------------------------------------------


@pytest.fixture
def topics() -> Cluster:
    return Cluster()


@pytest.fixture
def take(topics: Cluster) -> Callable[..., Snapshot]:
    return lambda **more: as_file(snapshot_taken(gathered(topics, Member(topics.log), **more)))


def test_states_owners_reports_and_their_ages(topics: Cluster, take: Callable[..., Snapshot]) -> None:
    snapshot = take()
    assert list(snapshot.brokers) == ["b1", "b2", "b3", "b4"]
    assert snapshot.brokers["b1"].load is None  # its tombstone names its newest report
    assert snapshot.brokers["b2"].load is not None
    assert (snapshot.brokers["b2"].load_age_s, snapshot.brokers["b3"].load_age_s) == (4.0, 3.5)
    assert not any(broker.load_lapsed for broker in snapshot.brokers.values())
    assert snapshot.bundles[topics.names[0]].owner == "b2"
    assert snapshot.bundles[topics.names[0]].rank == 0
    assert snapshot.bundles[topics.names[9]].state == "Releasing"
    assert [(item.bundle, item.source, item.destination) for item in snapshot.booked] == [(topics.names[9], "b2", "b4")]
    assert snapshot.clock.now_ms == NOW_MS
    assert snapshot.safe is None
    assert remarks(snapshot, cluster_of(snapshot)) == ["broker b1 has no load report", "1 bundle in flight, left alone"]


def test_moves_are_recent_by_the_logs_own_times(topics: Cluster, take: Callable[..., Snapshot]) -> None:
    moved = next(item for item in _read(topics)[1].accepted if item.from_ == "b3" and item.state == "Assigned")
    age_s = (NOW_MS - moved.timestamp_ms) / 1_000
    recent = take().recent
    assert recent.bundles == {topics.names[15]: age_s}
    assert recent.brokers == {"b3": age_s, "b4": age_s}
    assert take(move_memory_s=age_s - 0.001).recent.bundles == {}


def test_a_report_older_than_a_change_of_what_its_broker_owns_is_marked(topics: Cluster, take: Callable[..., Snapshot]):
    topics.log.moved(topics.names[14], "b3", "b4")
    snapshot = take()
    assert {name: broker.load_lapsed for name, broker in snapshot.brokers.items()} == {
        "b1": False, "b2": False, "b3": True, "b4": True
    }  # fmt: skip


def test_a_tombstone_that_names_an_older_report_takes_nothing_away(topics: Cluster, take: Callable[..., Snapshot]):
    topics.report("b1", 0.07, {}, len(topics.log.records), age_ms=100)
    headers = Tombstone("expired", 0, NOW_MS).headers()
    topics.loads.append(SideRecord(b"b1", None, headers, len(topics.loads), NOW_MS))
    assert take().brokers["b1"].load is not None


def test_policies_domains_and_quotas_are_in_it(topics: Cluster, take: Callable[..., Snapshot]) -> None:
    topics.policy(PolicyKind.CORDON, "b3", {})
    topics.policy(PolicyKind.DOMAIN, "b2", {"domain": "rack-7"})
    topics.policy(PolicyKind.SHEDDING, "cluster", {"on": False})
    snapshot = take()
    assert list(snapshot.policies.cordons) == ["b3"]
    assert snapshot.brokers["b2"].domain == "rack-7"
    assert any("shedding is off" in remark for remark in snapshot.remarks)


def test_an_isolation_policy_that_nobody_can_read_lets_nobody_have_anything(
    topics: Cluster, take: Callable[..., Snapshot]
) -> None:
    key = made_key(PolicyKind.ISOLATION, "gold")
    topics.book.take(0, NOW_MS, key.encode(), b"not JSON")
    snapshot = take()
    assert "isolation policy gold cannot be read" in snapshot.remarks[0]
    decision = dry_run(snapshot)
    live = live_cluster(topics, Member(topics.log))
    pipeline = choose(BalancerSettings()).pipeline
    bundle = live.bundles[topics.names[0]]
    assert pipeline.filters(live).passed(bundle, live.broker_names).names == []
    assert pipeline_of(snapshot)[1].filters(decision.cluster).passed(bundle, live.broker_names).names == []


# --- what is not there ------------------------------------------------------------------------------------------------


def test_a_cluster_without_load_topics_says_so(take: Callable[..., Snapshot]) -> None:
    snapshot = take(loads=None, tops=None, effective=None)
    assert len(snapshot.remarks) == 2
    assert dry_run(snapshot).moves == []
    assert "broker b2 has no load report" in remarks(snapshot, cluster_of(snapshot))


def test_empty_topics_old_reports_and_junk_are_said(topics: Cluster, take: Callable[..., Snapshot]) -> None:
    assert take(loads=[]).remarks == ["there are no load reports (any more)"]
    old = [load._replace(timestamp_ms=NOW_MS - 2_000_000) for load in topics.loads]
    assert take(loads=old).remarks == ["outdated load reports: b2, b3, b4"]
    junk = SideRecord(b"b9", b"{", (), len(topics.loads), NOW_MS)
    assert take(loads=[*topics.loads, junk]).remarks[0].startswith("1 load reports could not be used; the newest: ")


@pytest.mark.parametrize(
    ("more", "why"),
    [
        ({"unsound": "the log is not"}, "the log is not"),
        ({"mode": "safe"}, "the leader is in safe mode"),
        ({"repair_paused": "too many lost"}, "repair is paused: too many lost"),
    ],
)
def test_nothing_is_planned_on_an_unsound_picture(more: dict[str, Any], why: str, take: Callable[..., Snapshot]):
    snapshot = take(**more, choice=of_chosen(choose(BalancerSettings(shedding="uniform"))))
    assert snapshot.safe == why
    assert dry_run(snapshot).moves == []


def test_a_decision_whose_memory_was_cut_is_said(topics: Cluster, take: Callable[..., Snapshot]) -> None:
    chosen = choose(BalancerSettings())
    record = record_of(dry_run(take()), chosen, 3).model_copy(update={"memory": None})
    assert (snapshot := take(decision=record)).memory.shedding == {}
    forgot = "has no memory of weighted-move; the snapshot's is empty"
    assert snapshot.remarks == [f"decision {record.id} {forgot}"]


def test_profiles_and_strategies_that_are_not_known_here_are_said(take: Callable[..., Snapshot]) -> None:
    choice = of_chosen(choose(BalancerSettings()))
    snapshot = take(choice=choice._replace(profile="theirs", names={**choice.names, "placement": "own"}))
    assert snapshot.profile == "default"
    assert "profile theirs is not known here" in snapshot.remarks[0]
    assert "placement strategy own cannot be used here" in snapshot.remarks[1]
    assert snapshot.strategies.placement == "own"


def test_policies_laid_down_after_the_newest_decision_are_found(topics: Cluster, take: Callable[..., Snapshot]) -> None:
    topics.policy(PolicyKind.SETTING, "shedding", {"value": "avg"})
    record = record_of(dry_run(take()), choose(BalancerSettings()), topics.book.position)
    assert changed_since(record, topics.book.at(NOW_MS)) == []
    topics.policy(PolicyKind.MANAGER, "cluster", {"manager": "modular"})
    topics.policy(PolicyKind.CORDON, "b3", {})
    assert changed_since(record, topics.book.at(NOW_MS)) == ["manager/cluster"]
    assert changed_since(record, None) == []


def test_it_is_the_same_whatever_the_order_of_the_log_partitions(topics: Cluster) -> None:
    member = Member(topics.log)
    state = gathered(topics, member)
    other = gathered(topics, member, accepted=list(reversed(state.accepted)), bundles=list(reversed(state.bundles)))
    assert snapshot_bytes(snapshot_taken(state)) == snapshot_bytes(snapshot_taken(other))
    assert json.loads(snapshot_bytes(snapshot_taken(state)))["kind"] == "statechannel-snapshot"


def test_accepted_records_are_those_about_bundles(topics: Cluster) -> None:
    records: Sequence[AcceptedRecord] = _read(topics)[1].accepted
    assert {record.bundle for record in records} == set(topics.names)
    assert len(records) == 2 * 16 + 3 + 1


def test_what_stands_around_the_strategies_is_in_it(take: Callable[..., Snapshot]) -> None:
    assert take(effective=None).balancing == BalancingPart(budget=BudgetPart(moves=500, load_percent=60.0))
    off = EffectivePolicies(unload_mode="unload", shedding_on=False, shedding_why="sale")
    balancing = take(effective=off, budget=BudgetSettings(moves=7)).balancing
    assert (balancing.budget, balancing.unload_mode) == (BudgetPart(moves=7, load_percent=60.0), "unload")
    assert balancing.shedding_off == "sale"
    assert take(effective=None, balancing=False).balancing.shedding_off == "extensions.balancer.balancing is false"


def test_the_budget_of_the_newest_decision_stands_over_the_commands(take: Callable[..., Snapshot]) -> None:
    chosen = of_chosen(choose(BalancerSettings()))
    results = {**chosen.settings, "budget": {"moves": 5, "load_percent": 3.0}}
    balancing = take(choice=chosen._replace(settings=results), budget=BudgetSettings(moves=9)).balancing
    assert balancing.budget == BudgetPart(moves=5, load_percent=3.0)
