"""Snapshot of a live cluster from its topics alone, without any broker's help. Pure.

It has what a leader that took over at this moment would decide on: the accepted states of the channel, the registered brokers,
the newest load reports with their ages and marks, the policies in effect, and the memory and settings of the newest decision.
Missing inputs are listed in `remarks`; the reason why the view is unsound, if it is, is in `safe`, and then no moves are planned.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from loaddata.report.record import ReportedLoad, ReportedTopBundles, decode_broker_load, decode_top_bundles
from loaddata.view.ownership import OwnershipChange, change_of, newest_changes
from loaddata.view.table_view import Arrival, Fate, TableView, decoder
from shedders.balancer.active_strategies import PARTS
from shedders.balancer.cluster_inputs import ClusterInputs, RecentTrail, cluster_now, under_way, why_left_alone
from shedders.decision.booked_moves import BudgetSettings
from shedders.model.cluster import IsolationPolicy, Policies
from shedders.model.patterns import compiled
from shedders.model.profiles import DEFAULT, PROFILES
from shedders.model.strategy import KINDS, StrategySettingsError, find, settings_of
from shedders.policies.kinds import PolicyKind
from shedders.snapshots.cluster import with_cluster
from shedders.snapshots.model import (
    BalancingPart,
    BookedPart,
    BudgetPart,
    BundlePart,
    ByStrategy,
    Snapshot,
    StrategyNames,
)
from statechannel.engine.cluster_view import ClusterView
from statechannel.errors import StateChannelError
from statechannel.protocol.side_record import SideRecord
from statechannel.protocol.states import IN_FLIGHT, State

if TYPE_CHECKING:
    from pydantic import BaseModel

    from loaddata.view.table_view import ReportView
    from shedders.balancer.active_strategies import ActiveStrategies
    from shedders.decisions.record import DecisionRecord
    from shedders.model.cluster import Cluster, RecentMoves
    from shedders.policies.effective import EffectivePolicies
    from statechannel.engine.cluster_view import BrokerSeen, BundleSeen


STRATEGIES = "strategies"
_CHOSEN_BY = frozenset((PolicyKind.SETTING, PolicyKind.MANAGER, PolicyKind.WEIGHTS, PolicyKind.SHED_WITH_POLICIES))


class Choice(NamedTuple):
    """The profile, strategies and settings in force.

    Attributes:
        names: Strategies by kind; unknown ones are left to the profile.
        settings: All of them, JSON-able: by `shedding`, `placement`, `split`, `filters`, `splitting`.
    """

    profile: str
    names: Mapping[str, str]
    settings: Mapping[str, Mapping[str, Any]]


def of_chosen(chosen: ActiveStrategies) -> Choice:
    return Choice(chosen.profile, dict(chosen.names), chosen.settings_json())


def of_decision(decision: DecisionRecord, with_settings: DecisionRecord) -> Choice:
    """The choice of the newest decision.

    Args:
        with_settings: A decision with the same settings whose record has them.
    """
    settings = {name: setting for name, setting in (with_settings.settings or {}).items() if isinstance(setting, dict)}
    named = settings.get(STRATEGIES, {})
    names = {kind: str(named[kind]) for kind in KINDS if kind in named}
    names["shedding"] = decision.strategy
    if decision.placement is not None:
        names["placement"] = decision.placement
    return Choice(decision.profile, names, settings)


def changed_since(decision: DecisionRecord, effective: EffectivePolicies | None) -> Sequence[str]:
    """Names of policies that select strategies and that were set, deleted or expired after a decision."""
    known = decision.inputs.policies
    if effective is None or known is None:
        return []
    late = [entry.key for entry in effective.entries if entry.offset > known]
    late += [entry.key for entry in effective.lapsed if entry.offset > known or (entry.until_ms or 0) > decision.at_ms]
    late += [key for key, offset in effective.deleted.items() if offset > known]
    return sorted(key.text for key in late if key.kind in _CHOSEN_BY)


def parts_of(choice: Choice, remarks: list[str]) -> tuple[str, StrategyNames, ByStrategy]:
    """Profile, names and settings for a snapshot: of the settings those that differ from the profile's.

    Args:
        remarks: Is added to.
    """
    profile = choice.profile
    if profile not in PROFILES:
        remarks.append(f"profile {profile} is not known here; {DEFAULT.name} with its settings is used instead")
        profile = DEFAULT.name
    differing: dict[str, dict[str, dict[str, Any]]] = {kind: {} for kind in (*KINDS, "parts")}
    for kind, name in choice.names.items():
        try:
            model: type[BaseModel] | None = find(kind, name).Settings
        except StateChannelError as error:
            remarks.append(f"{kind} strategy {name} cannot be used here: {error}")
            model = None
        differing[kind][name] = _differing(model, profile, kind, name, choice.settings.get(kind, {}))
    for part, part_model in PARTS.items():
        differing["parts"][part] = _differing(part_model, profile, "parts", part, choice.settings.get(part, {}))
    names = StrategyNames(**choice.names)
    kept = {kind: {name: values for name, values in by.items() if values} for kind, by in differing.items()}
    return profile, names, ByStrategy(**kept)


def _differing(
    model: type[BaseModel] | None, profile: str, kind: str, name: str, values: Mapping[str, Any]
) -> dict[str, Any]:
    if model is None:
        return dict(values)
    base = PROFILES[profile].settings.get(kind, {}).get(name, {})
    try:
        usual = settings_of(model, f"{kind}.{name}", base).model_dump(mode="json")  # type: ignore[type-var]
    except StrategySettingsError:
        return dict(values)
    return {field: value for field, value in values.items() if field not in usual or usual[field] != value}


_EVERY_NAMESPACE, _NO_BROKER = ".*", "$x"


class AcceptedRecord(NamedTuple):
    """An accepted record about a bundle; `timestamp_ms` is the log's own time."""

    partition: int
    offset: int
    timestamp_ms: int
    bundle: str
    state: State
    from_: str | None
    to: str | None


@dataclass(frozen=True, slots=True)
class TopicContents:
    """The contents of the topics.

    Attributes:
        now_ms: Estimate of the log's time; not before any record that was read.
        mode: Of the leader; `normal` without a leader.
        unsound: Why the states of the channel cannot be relied on; empty if they can.
        accepted: The remaining records of the log, in any order.
        loads, tops: Records of the load topics in log order; None if the topic does not exist.
        effective: The policies in effect; None if their topic does not exist.
        decision: The newest shedding decision that was not skipped.
        choice: Profile, strategies and settings in force.
        top_ttl_s, move_memory_s, budget, balancing: As the balancer's settings of these names; the budget of the newest decision
            takes precedence if the snapshot uses that decision's settings.
    """

    now_ms: int
    brokers: Sequence[BrokerSeen]
    bundles: Sequence[BundleSeen]
    choice: Choice
    mode: str = "normal"
    repair_paused: str | None = None
    unsound: str | None = None
    accepted: Sequence[AcceptedRecord] = ()
    loads: Sequence[SideRecord] | None = None
    tops: Sequence[SideRecord] | None = None
    effective: EffectivePolicies | None = None
    decision: DecisionRecord | None = None
    rules: Callable[[], TableView[Any]] = TableView
    top_ttl_s: float = 1_800.0
    move_memory_s: float = 1_800.0
    budget: BudgetSettings = field(default_factory=BudgetSettings)
    balancing: bool = True
    remarks: Sequence[str] = ()


def snapshot_taken(gathered: TopicContents) -> Snapshot:
    """Build the snapshot.

    Raises:
        SnapshotError: A number is negative or not finite.
    """
    remarks = [*gathered.remarks]
    cluster = cluster_taken(gathered, remarks)
    profile, names, settings = parts_of(gathered.choice, remarks)
    empty = Snapshot(
        kind="statechannel-snapshot",
        format=1,
        profile=profile,
        strategies=names,
        settings=settings,
        brokers={},
        bundles={bundle.bundle: BundlePart(state=_state(bundle)) for bundle in gathered.bundles},
        memory=ByStrategy(shedding=_memory(gathered.decision, remarks)),
    )
    snapshot = with_cluster(empty, cluster)
    booked = list(_booked(gathered.bundles, cluster))
    return snapshot.model_copy(update={"booked": booked, "balancing": _balancing(gathered), "remarks": remarks})


def cluster_taken(gathered: TopicContents, remarks: list[str]) -> Cluster:
    """The cluster as strategies see it.

    Args:
        remarks: Is added to.
    """
    changes = list(_changes(gathered))
    loads = _seen(gathered, gathered.loads, decoder(decode_broker_load), changes, "load reports", remarks)
    tops = _seen(
        gathered, gathered.tops, decoder(decode_top_bundles), changes, "reports of the heaviest bundles", remarks
    )
    effective = gathered.effective
    picture = ClusterView(
        "", False, -1, gathered.mode, True, False, gathered.repair_paused, (), gathered.brokers, gathered.bundles
    )
    known = ClusterInputs(
        loads={name: ReportedLoad(load.report.load, load.age_s, load.lapsed) for name, load in loads.items()},
        tops={
            name: ReportedTopBundles(top.report.bundles, top.age_s, top.lapsed, top.report.header.owned_as_of)
            for name, top in tops.items()
        },
        top_ttl_s=gathered.top_ttl_s,
        policies=Policies() if effective is None else _readable(effective.policies, remarks),
        domains={} if effective is None else effective.domains,
        quotas={} if effective is None else effective.quotas,
        recent=recent_moves(gathered.accepted, gathered.now_ms, gathered.move_memory_s),
        safe=gathered.unsound or _leaders(why_left_alone(picture)),
    )
    if effective is not None and not effective.shedding_on:
        remarks.append(f"the balancer makes no plan now: {effective.shedding_why}")
    return cluster_now(picture, known, gathered.now_ms)


def recent_moves(accepted: Iterable[AcceptedRecord], now_ms: int, keep_s: float) -> RecentMoves:
    trail = RecentTrail(lambda: keep_s)
    for record in sorted(accepted, key=lambda record: (record.timestamp_ms, record.partition, record.offset)):
        if now_ms - record.timestamp_ms <= keep_s * 1_000:
            trail.changed(record, (record.timestamp_ms - now_ms) / 1_000)
    return trail.recent(0.0)


def _changes(gathered: TopicContents) -> Iterator[OwnershipChange]:
    """Changes of ownership: from the log, and from the states where records were compacted away."""
    yield from (change for record in gathered.accepted if (change := change_of(record)) is not None)
    yield from newest_changes(
        OwnershipChange(bundle.owner, bundle.partition, bundle.offset)
        for bundle in gathered.bundles
        if bundle.state == State.ASSIGNED and bundle.owner is not None
    )


def _seen(
    gathered: TopicContents,
    records: Sequence[SideRecord] | None,
    decode: Callable[[SideRecord], Any],
    changes: Iterable[OwnershipChange],
    what: str,
    remarks: list[str],
) -> Mapping[str, ReportView[Any]]:
    """The newest report of each broker, with its age by the log's present time."""
    view = gathered.rules()
    for change in changes:
        view.ownership_changed(change)
    for record in records or ():
        view.read(record, decode(record), Arrival(0.0, 0, gathered.now_ms))
    seen = view.seen(0.0)
    if records is None:
        remarks.append(f"there is no topic of {what}: no broker has ever published any")
    elif not seen:
        remarks.append(f"there are no {what} (any more)")
    old = [name for name, report in seen.items() if report.outdated]
    if old:
        remarks.append(f"outdated {what}: {', '.join(old)}")
    if view.fates[Fate.DROPPED]:
        remarks.append(f"{view.fates[Fate.DROPPED]} {what} could not be used; the newest: {view.last_dropped}")
    return seen


def _leaders(why: str | None) -> str | None:
    """A broker's reason about itself, as one about the leader."""
    return None if why is None else why.replace("this broker", "the leader")


def _readable(policies: Policies, remarks: list[str]) -> Policies:
    """Policies in the form of a snapshot: an unreadable one allows no broker for what it may apply to."""
    readable = []
    for policy in policies.isolation:
        texts = (*policy.namespaces, *policy.primary, *policy.secondary)
        broken = next((text for text in texts if isinstance(compiled((text,)), str)), None)
        if broken is None:
            readable.append(policy)
        else:
            remarks.append(
                f"isolation policy {policy.name} cannot be read: bundles that it may apply to get no broker ({broken})"
            )
            readable.append(IsolationPolicy(policy.name, (_EVERY_NAMESPACE,), (_NO_BROKER,)))
    return replace(policies, isolation=tuple(readable))


def _state(bundle: BundleSeen) -> Any:
    return bundle.state if bundle.state in IN_FLIGHT else None


def _booked(bundles: Iterable[BundleSeen], cluster: Cluster) -> Iterator[BookedPart]:
    """The bookings of a leader that takes over; their loads are computed from the snapshot."""
    for booking in under_way(bundles, cluster):
        yield BookedPart(bundle=booking.bundle, source=booking.source, destination=booking.destination)


def _balancing(gathered: TopicContents) -> BalancingPart:
    """The rules for all strategies: how much may move, how, and whether any bundle may."""
    budget = BudgetSettings.model_validate(gathered.choice.settings.get("budget") or gathered.budget.model_dump())
    effective = gathered.effective
    off = None if gathered.balancing else "extensions.balancer.balancing is false"
    if effective is not None and not effective.shedding_on:
        off = effective.shedding_why
    mode: Literal["transfer", "unload"] = "transfer"
    if effective is not None and effective.unload_mode == "unload":
        mode = "unload"
    return BalancingPart(
        budget=BudgetPart(moves=budget.moves, load_percent=budget.load_percent), unload_mode=mode, shedding_off=off
    )


def _memory(decision: DecisionRecord | None, remarks: list[str]) -> dict[str, dict[str, Any]]:
    if decision is None:
        return {}
    if decision.memory is None:
        remarks.append(f"decision {decision.id} has no memory of {decision.strategy}; the snapshot's is empty")
        return {}
    return {decision.strategy: dict(decision.memory)}
