"""What balancing adds to other commands: checks of `doctor`, remarks of `brokers` and `status`, parts of `audit`."""

from __future__ import annotations

from collections import deque
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from loaddata.settings import LoadSettings
from shedders.balancer.settings import NAME, configured
from shedders.cli.balancers import RUN_IT, unapplied
from shedders.cli.decision_log import decision_reader
from shedders.cli.drain.cordons import failed_drains
from shedders.cli.policy.write import book_of, changes_of
from shedders.decisions.history import DecisionBook
from shedders.decisions.record import DecisionRecord, Deed, MoveEntry, PlacedEntry, Subject, decode
from shedders.filters.isolation import Isolation
from shedders.model.amounts import count
from shedders.model.cluster import Cluster
from shedders.policies.effective import EffectivePolicies, Force
from shedders.policies.kinds import PolicyKind
from shedders.policies.record import Author
from shedders.policies.topic import PolicyChange, PolicyChanges, policy_changes
from statechannel.audit.incident import Incident, IncidentKind
from statechannel.audit.origins import OperationCause, Origin
from statechannel.audit.person_actions import PersonAction
from statechannel.cli.doctor.checks import DoctorCheck, DoctorFacts, DoctorFinding, Plugin, Severity, WantedTopic
from statechannel.cli.kit.connection import Connection
from statechannel.cli.kit.output import duration, moment
from statechannel.cli.kit.remarks import Remarks
from statechannel.cli.kit.side_files import SideRole, side_records
from statechannel.clocks import now_ms
from statechannel.engine.membership import Member
from statechannel.errors import StateChannelError
from statechannel.kafka.errors import TopicMissingError, TopicPolicyError
from statechannel.kafka.topic_policy import LightLags, LoadTopics, TopicSet, decisions_topic, policies_topic
from statechannel.protocol.log import RecordRead
from statechannel.protocol.states import State
from statechannel.settings import SettingsError


def topics(connection: Connection) -> list[WantedTopic]:
    """The four topics of the balancing extension, with the policies that the settings require."""
    channel = connection.topics.channel
    try:
        settings = configured(connection.settings.extensions.get(NAME, {}))
    except SettingsError:  # reported by the check below
        settings = configured({})
    loads: LoadSettings = settings.load
    retention_ms = round(loads.retention_s * 1_000)
    decisions_ms = round(settings.decisions_retention_s * 1_000), round(settings.decisions_segment_s * 1_000)
    sets: tuple[TopicSet, ...] = (
        LoadTopics(channel, light=LightLags(retention_ms, round(loads.segment_s * 1_000), retention_ms)),
        policies_topic(channel),
        decisions_topic(channel, *decisions_ms),
    )
    return [
        WantedTopic(name, policy, owner=NAME, optional=True)
        for settings_set in sets
        for name, policy in settings_set.policies.items()
    ]


def settings_of_balancer(facts: DoctorFacts) -> Iterator[DoctorFinding]:
    """Check the settings of the extension."""
    try:
        configured(facts.settings.extensions.get(NAME, {}))
    except SettingsError as error:
        for problem in error.problems:
            yield DoctorFinding(
                Severity.ERROR,
                problem.rstrip("."),
                "A broker does not start with these settings.",
                f"Change extensions.{NAME} where it is set; design/balancer-settings.md lists all settings.",
            )


def policies(facts: DoctorFacts) -> Iterator[DoctorFinding]:
    """Check for unreadable policies, and for those that switch something off."""
    if facts.connection is None:
        return
    try:
        effective = book_of(facts.connection).at(now_ms())
    except (TopicPolicyError, TopicMissingError):  # reported by the check of topics
        yield DoctorFinding(Severity.INFO, "the policies cannot be read until the topics are valid", checked=False)
        return
    except StateChannelError as error:
        yield DoctorFinding(
            Severity.ERROR,
            f"the policies cannot be read: {error}",
            "Brokers place and shed by the last policies that they read.",
            error.hint,
        )
        return
    alive = {} if facts.registry is None else facts.registry.members.alive
    for what in unapplied(effective, alive):
        yield DoctorFinding(
            Severity.WARNING,
            what,
            "`statechannel policy list` shows them in force, but a broker without the balancer assigns bundles against them.",
            RUN_IT,
        )
    held = {row["broker"]: row["bundles"] for row in facts.status.get("brokers", ())}
    failed = {
        broker: drain
        for broker, drain in failed_drains(facts.connection, effective).items()
        if held.get(broker, 1)  # what a drain had left may have gone since
    }
    for broker, drain in sorted(failed.items()):
        yield DoctorFinding(
            Severity.WARNING,
            f"{broker} was cordoned by a drain ({drain.entry.author.person}, {moment(drain.entry.logged_at_ms)}) that "
            f"{drain.end}; it has {count(held.get(broker, 0), 'bundle')}{f': {drain.why}' if drain.why else ''}",
            "No bundle is assigned to it, and nothing moves away those that it has.",
            f"`statechannel uncordon {broker}` lets it take bundles again; `statechannel drain {broker}` drains it.",
        )
    yield from policy_findings(effective, reported=failed)
    if effective.policies.isolation and len(alive) > 1:
        yield from _isolated(facts.connection, effective)


def _isolated(connection: Connection, effective: EffectivePolicies) -> Iterator[DoctorFinding]:
    # Where no policy isolates anything this is not needed, and the load topics are not read.
    from shedders.cli.live_source import live_at
    from shedders.snapshots.cluster import cluster_of

    try:
        cluster = effective.over(cluster_of(live_at(connection)))
    except StateChannelError as error:
        yield DoctorFinding(
            Severity.INFO, f"what isolation leaves to one broker only is not known: {error}", checked=False
        )
        return
    yield from isolation_findings(cluster, effective)


def isolation_findings(cluster: Cluster, effective: EffectivePolicies) -> Iterator[DoctorFinding]:
    """Namespaces that isolation and cordons leave to one broker or none: no broker takes over their bundles."""
    isolation = Isolation(cluster.policies.isolation, cluster.brokers)
    of_isolation = [entry for entry in effective.entries if entry.key.kind is PolicyKind.ISOLATION]
    authors = {entry.key.name: entry.author.text for entry in of_isolation}
    left_to: dict[tuple[str | None, str | None], dict[str, int]] = {}
    for namespace, bundles in cluster.bundles_in.items():
        zone = isolation.zone(namespace)
        if zone is None or zone.broken is not None:
            continue
        able = zone.primary | (zone.secondary if zone.min_available > 0 else frozenset())
        able -= cluster.policies.cordons.keys()
        if len(able) <= 1:
            left_to.setdefault((min(able, default=None), zone.policy), {})[namespace] = len(bundles)
    for (broker, policy), namespaces in sorted(left_to.items(), key=str):
        by = authors.get(policy or "")
        cause = (
            f"isolation `{policy}`{f', {by}' if by else ''}"
            if policy
            else "the others are isolated for other namespaces"
        )
        first, more = min(namespaces), len(namespaces) - 1
        cordoned = ", ".join(sorted(cluster.policies.cordons.keys() & cluster.brokers.keys()))
        only = f"{broker} only" if broker else f"no broker{f', as {cordoned} is cordoned' if cordoned else ''}"
        yield DoctorFinding(
            Severity.WARNING,
            f"{first}{f' and {more} more namespaces' if more else ''} may be on {only} ({cause}): "
            f"{count(sum(namespaces.values()), 'bundle')}",
            f"If {broker} is lost no broker takes them, and it cannot be drained."
            if broker
            else "They stay where they are; those that lose their owner get none.",
            f"`statechannel policy get isolation {policy}` shows it, `statechannel policy delete isolation {policy}` deletes it; "
            "or add brokers to it."
            if policy
            else "Start a broker that is in no isolation policy; `statechannel policy list --kind isolation` lists them.",
        )


def policy_findings(effective: EffectivePolicies, *, reported: Container[str] = ()) -> Iterator[DoctorFinding]:
    """Findings on the policies in force.

    Args:
        reported: Brokers whose cordons another finding reports.
    """
    for why in [*effective.closed, *filter(None, [effective.overfull])]:
        yield DoctorFinding(
            Severity.ERROR,
            why,
            "What an unreadable policy is about is forbidden, not ignored.",
            "`statechannel policy list` shows the record; set it again, or delete it.",
        )
    junk = sum(effective.junk.values())
    if junk:
        reasons = ", ".join(f"{reason} ({count})" for reason, count in sorted(effective.junk.items()))
        yield DoctorFinding(
            Severity.WARNING,
            f"{junk} records in the topic of policies were dropped: {reasons}",
            "A foreign client or a newer version writes to the topic.",
            "`statechannel policy list --output json` counts them; check which clients may write to the topic.",
        )
    if not effective.shedding_on:
        yield DoctorFinding(
            Severity.INFO,
            f"automatic moves are off: {effective.shedding_why}",
            "",
            "Switch them on again with `statechannel override end shedding`.",
        )
    cordons = [broker for broker in effective.policies.cordons if broker not in reported]
    if cordons:
        yield DoctorFinding(
            Severity.INFO,
            f"cordoned: {', '.join(sorted(cordons))}",
            "No bundle is assigned to them.",
            f"End a cordon with `statechannel uncordon {min(cordons)}`.",
        )


balancer = Plugin(
    checks=(
        DoctorCheck("balancer-settings", "settings of the balancer are valid", settings_of_balancer),
        DoctorCheck("policies", "policies can be read", policies, needs=("kafka", "topics")),
    ),
    topics=topics,
)
"""Checks of the entry point group `statechannel.doctor`."""


def policy_remarks(connection: Connection, alive: Mapping[str, Member]) -> Remarks:
    """Cordons by broker; shedding that is off, overrides in force, and changes of the last hour.

    Raises:
        StateChannelError: The policies cannot be read.
    """
    changes, book = changes_of(connection)
    effective = book.at(now_ms())
    cluster = [*effective.closed, *filter(None, [effective.overfull])]
    if not effective.shedding_on:
        cluster.append(effective.shedding_why)
    overrides = sum(entry.key.override for entry in effective.entries if entry.force is Force.IN_FORCE)
    if overrides:
        is_are = "override is" if overrides == 1 else "overrides are"
        cluster.append(f"{overrides} {is_are} in force (`statechannel override list`)")
    cluster += unapplied(effective, alive)
    cluster += _changed_lately(effective, now_ms())
    cordons = effective.policies.cordons
    brokers = {name: f"cordoned ({why})" if why else "cordoned" for name, why in sorted(cordons.items())}
    drains = failed_drains(connection, effective)
    brokers |= {name: drain.remark(empty=False) for name, drain in drains.items()}
    empty = {name: drain.remark(empty=True) for name, drain in drains.items()}
    return Remarks(cluster, brokers, frozenset(cordons), empty, tuple(changes_lately(changes.rows, now_ms())))


_LATELY_MS: Final = 3_600_000
_LATELY_SHOWN: Final = 3
_TOGETHER_MS: Final = 60_000


def _changed_lately(effective: EffectivePolicies, at_ms: int) -> Iterator[str]:
    """The newest policies of the last hour with their authors; cordons are remarks of their brokers."""
    entries = [
        entry
        for entry in effective.entries
        if entry.key.kind is not PolicyKind.CORDON and at_ms - entry.logged_at_ms < _LATELY_MS
    ]
    entries.sort(key=lambda entry: -entry.logged_at_ms)
    for entry in entries[:_LATELY_SHOWN]:
        what = f"{'override ' if entry.key.override else ''}{entry.key.kind} {entry.key.name}"
        yield f"{entry.author.text or 'an unknown user'} set {what}, {duration(at_ms - entry.logged_at_ms)} ago"
    if len(entries) > _LATELY_SHOWN:
        yield f"{len(entries) - _LATELY_SHOWN} more policies were set within the last hour (`statechannel policy list`)"


def changes_lately(rows: Iterable[PolicyChange], at_ms: int) -> list[Incident]:
    """Policies set and deleted within the last hour, as incidents; those of one kind in quick succession are one.

    Drains have incidents of their own, and their cordons none.
    """
    groups: list[list[PolicyChange]] = []
    for change in rows:
        if change.key is None or change.trouble or at_ms - change.logged_at_ms >= _LATELY_MS:
            continue
        if change.record is not None and Author.parse(change.record.by).drain is not None:
            continue
        before = groups[-1][-1] if groups else None
        if before is not None and _is_more_of(before, change):
            groups[-1].append(change)
        else:
            groups.append([change])
    return [Incident(group[0].logged_at_ms, IncidentKind.POLICY, _of_changes(group)) for group in groups]


def _is_more_of(before: PolicyChange, change: PolicyChange) -> bool:
    if before.key is None or change.key is None:
        return False
    is_alike = (before.by, before.what, before.key.kind, before.key.override) == (
        change.by, change.what, change.key.kind, change.key.override,
    )  # fmt: skip
    return is_alike and change.logged_at_ms - before.logged_at_ms < _TOGETHER_MS


def _of_changes(group: Sequence[PolicyChange]) -> str:
    last = group[-1]
    if last.key is None:
        raise ValueError("a change without a key")
    kind = f"{'override' if last.key.override else 'policy'} {last.key.kind}"
    why = f": {last.why}" if last.why else ""
    many = "" if len(group) == 1 else f" and {len(group) - 1} more"
    return f"{last.by or 'an unknown user'} {last.what} {kind} {last.key.name}{many}{why}"


class PolicyActions:
    """Changes of policies and overrides, for `audit actions` and the report."""

    questions = frozenset({"may-take"})

    def read(self, connection: Connection) -> Iterator[PersonAction]:
        """Those that the topic still has.

        Raises:
            StateChannelError: They cannot be read.
        """
        return self._of(changes_of(connection)[0])

    def beside(self, export: Path) -> Iterator[PersonAction]:
        """The same from the file beside an export; none without a file."""
        side = side_records(export, SideRole.POLICIES)
        if side is None:
            return iter(())
        low = 0 if not side.since_ms else 1
        return self._of(policy_changes(side.records, low=low, end=side.end, headers=side.headers()))

    def _of(self, changes: PolicyChanges) -> Iterator[PersonAction]:
        for change in changes.rows:
            key, fields = change.key, change.fields()
            if key is None or change.trouble:
                continue
            verb = "set" if change.record is not None else "end" if key.override else "delete"
            value = fields["value"] or {}
            details = ", ".join(f"{name}={_plain(value[name])}" for name in sorted(value))
            if fields["until_ms"] is not None:
                details += f"{', ' if details else ''}until {moment(fields['until_ms'])}"
            yield PersonAction(
                change.logged_at_ms,
                fields["by"] or "",
                f"{verb} {'override of ' if key.override else ''}{key.kind}",
                key.name,
                None,
                change.why,
                details,
                None,
                None,
                SideRole.POLICIES.value,
                change.offset,
            )


def _plain(value: object) -> str:
    return " ".join(map(str, value)) if isinstance(value, list | tuple) else str(value)


policy_actions = PolicyActions()

_DECISIONS_MAX: Final = 100_000
_PLACEMENTS_MAX: Final = 64
"""Most placements kept of one bundle."""
_PLACED_BEFORE_MS: Final = 5_000
_PLACED_WITHIN_MS: Final = 5_000
"""Longest time between a placement's decision and the record that it leads to."""


class DecisionOrigins:
    """Reads the topic of decisions for `audit origins`."""

    def __call__(self, connection: Connection) -> Decisions:
        """Read the decisions that the topic still has.

        Raises:
            StateChannelError: They cannot be read.
        """
        known = Decisions()
        with suppress(TopicMissingError), decision_reader(connection) as reader:  # no balancer has run: there are none
            for read in reader.read():
                known.take(read.offset, read.timestamp_ms, read.record)
        return known

    def of_records(self, records: Iterable[RecordRead], since_ms: int) -> Decisions:
        """The decisions of a file, complete from this time on."""
        known = Decisions()
        for record in records:
            known.take(record.offset, record.timestamp_ms, decode(record.key, record.value))
        known.since_ms = max(known.since_ms, since_ms)
        return known


decisions = DecisionOrigins()


class Decisions:
    """Decisions by operation.

    Args:
        decisions_max: Number of decisions kept; older ones are dropped.

    Attributes:
        since_ms: See `statechannel.audit.origins.OriginTopic`.
    """

    name = "decisions"

    def __init__(self, decisions_max: int = _DECISIONS_MAX) -> None:
        self._book = DecisionBook(decisions_max)
        self._placements: dict[str, deque[DecisionRecord]] = {}
        self._max = decisions_max
        self.since_ms = 0
        self._read = 0

    def take(self, offset: int, timestamp_ms: int, record: Any) -> None:
        """Add a record of the topic, or the reason why it cannot be read."""
        if not self._read and offset > 0:
            self.since_ms = timestamp_ms
        self._read += 1
        full = len(self._book) >= self._max
        self._book.add(record)
        if full:
            self.since_ms = self._book.decisions[0].at_ms
        if isinstance(record, DecisionRecord) and record.subject == Subject.PLACE.value:
            for entry in record.placed:
                self._placements.setdefault(entry.bundle, deque(maxlen=_PLACEMENTS_MAX)).append(record)

    def asker(self, begun: Mapping[str, Any]) -> OperationCause | None:
        """Decision that names the operation; for an assignment, which none names, the one that placed the bundle at that time."""
        deed = self._book.by_operation(begun["operation"])
        if deed is not None:
            return _asker(deed.decision, deed.entry)
        for decision in self._placements.get(begun["name"], ()):
            early, late = decision.at_ms - _PLACED_BEFORE_MS, decision.at_ms + _PLACED_WITHIN_MS
            if decision.leader != begun["by"] or not early <= begun["began_ms"] <= late:
                continue
            for entry in decision.placed:
                if (entry.bundle, entry.broker) == (begun["name"], begun["to"]):
                    return _asker(decision, entry)
        return None


def _asker(decision: DecisionRecord, entry: Deed) -> OperationCause:
    destination = None
    if isinstance(entry, MoveEntry):
        begins, destination = State.RELEASING, entry.destination
    elif isinstance(entry, PlacedEntry):
        begins, destination = State.ASSIGNING, entry.broker
    else:
        begins = State.SPLITTING
    what = f"{decision.subject} ({decision.strategy})"
    states = frozenset({begins})
    return OperationCause(
        Origin.DECISION, decision.id, decision.leader, decision.at_ms, what, entry.bundle, states, destination
    )
