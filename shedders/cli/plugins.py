"""What balancing adds to other commands: conditions of `doctor`, remarks of `brokers` and `status`, parts of `audit`."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from loaddata.settings import LoadSettings
from shedders.balancer.settings import NAME, configured
from shedders.cli.drain.cordons import drain_remark
from shedders.decisions.history import DecisionBook, decision_read
from shedders.decisions.record import DecisionRecord, Deed, MoveEntry, PlacedEntry, Subject
from shedders.filters.isolation import Isolation
from shedders.model.amounts import count
from shedders.policies.effective import Force
from shedders.policies.kinds import PolicyKind
from shedders.policies.record import Author, PolicyKey
from shedders.policies.topic import PolicyChange, PolicyChanges, policy_changes
from shedders.queries.decisions import decision_reader
from shedders.queries.policies import RUN_IT, book_of, changes_of, cordon_rows, unapplied
from statechannel.audit.origins import OperationCause, Origin
from statechannel.cli.doctor.checks import ConditionExtension, DoctorFacts, WantedTopic
from statechannel.cli.kit.progress import TERMINAL
from statechannel.cli.kit.remarks import Remarks
from statechannel.clocks import moment, now_ms
from statechannel.conditions.facts import Condition, ConditionLimits, ConditionSeverity, Detection
from statechannel.conditions.kinds import DRAIN_ENDS, drain_blocked
from statechannel.conditions.table import DRAIN_BLOCKED
from statechannel.engine.membership import Member
from statechannel.errors import StateChannelError
from statechannel.kafka.errors import TopicMissingError
from statechannel.kafka.topic_policy import LightLags, LoadTopics, TopicSet, decisions_topic, policies_topic
from statechannel.protocol.log import RecordRead
from statechannel.protocol.states import State
from statechannel.queries.connection import Connection
from statechannel.queries.side_files import SideRole, side_records
from statechannel.settings import SettingsError
from statechannel.stories.incident import Incident, IncidentKind
from statechannel.stories.requests import PersonAction


def topics(connection: Connection) -> list[WantedTopic]:
    """The four topics of the balancing extension, with the policies that the settings require."""
    channel = connection.topics.channel
    try:
        settings = configured(connection.settings.extensions.get(NAME, {}))
    except SettingsError:  # a condition of its own
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


def _settings_facts(facts: DoctorFacts) -> Mapping[str, Any]:
    try:
        configured(facts.settings.extensions.get(NAME, {}))
    except SettingsError as error:
        return {"invalid": error.problems}
    return {"invalid": ()}


def _policy_facts(facts: DoctorFacts) -> Mapping[str, Any]:
    """The policies in force and the cordons; where policies isolate, also the cluster with its loads, or why it is not known."""
    connection, alive = facts.connection, {} if facts.registry is None else facts.registry.members.alive
    if connection is None:
        return {}
    effective = book_of(connection).at(now_ms())
    cordons = {row["broker"]: row for row in cordon_rows(connection, effective)}
    known: dict[str, Any] = {"policies": effective, "cordons": cordons, "alive": alive}
    if effective.policies.isolation and len(alive) > 1:
        # Where no policy isolates anything this is not needed, and the load topics are not read.
        from shedders.queries.live_source import live_at
        from shedders.snapshots.cluster import cluster_of

        try:
            known["cluster"] = effective.over(cluster_of(live_at(connection)))
        except StateChannelError as error:
            known["loads_unread"] = str(error)
    return known


def _invalid(facts: Any, _: object) -> Iterator[Detection]:
    return (Detection(problem.rstrip(".")) for problem in facts["invalid"])


def _unreadable(facts: Any, _: object) -> Iterator[Detection]:
    policies = facts["policies"]
    return map(Detection, [*policies.closed, *filter(None, [policies.overfull])])


def _unapplied(facts: Any, _: object) -> Iterator[Detection]:
    return map(Detection, unapplied(facts["policies"], facts["alive"]))


def _isolated(facts: Any, _: object) -> Iterator[Detection]:
    """Namespaces that isolation and cordons leave to one broker or none: no broker takes over their bundles."""
    cluster = facts["cluster"]
    isolation = Isolation(cluster.policies.isolation, cluster.brokers)
    of_isolation = [entry for entry in facts["policies"].entries if entry.key.kind is PolicyKind.ISOLATION]
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
        others = "the others are isolated for other namespaces"
        cause = f"isolation `{policy}`{f', {by}' if by else ''}" if policy else others
        first, more = min(namespaces), len(namespaces) - 1
        cordoned = ", ".join(sorted(cluster.policies.cordons.keys() & cluster.brokers.keys()))
        only = f"{broker} only" if broker else f"no broker{f', as {cordoned} is cordoned' if cordoned else ''}"
        effect = "They stay where they are; those that lose their owner get none."
        todo = "Start a broker that is in no isolation policy; `statechannel policy list --kind isolation` lists them."
        if broker:
            effect = f"If {broker} is lost no broker takes them, and it cannot be drained."
        if policy:
            todo = (
                f"`statechannel policy get isolation {policy}` shows it, `statechannel policy delete isolation {policy}` "
                "deletes it; or add brokers to it."
            )
        yield Detection(
            f"{first}{f' and {more} more namespaces' if more else ''} may be on {only} ({cause}): "
            f"{count(sum(namespaces.values()), 'bundle')}",
            facts={"effect": effect},
            next_step=todo,
        )


def _loads_unread(facts: Any, _: object) -> Iterator[Detection]:
    yield Detection(f"what isolation leaves to one broker only is not known: {facts['loads_unread']}")


def _junk(facts: Any, _: object) -> Iterator[Detection]:
    junk = facts["policies"].junk
    if junk:
        reasons = ", ".join(f"{reason} ({count})" for reason, count in sorted(junk.items()))
        yield Detection(f"{sum(junk.values())} records in the topic of policies were dropped: {reasons}")


def _shedding_off(facts: Any, _: object) -> Iterator[Detection]:
    if not facts["policies"].shedding_on:
        yield Detection(facts["policies"].shedding_why)


def _cordoned(facts: Any, limits: ConditionLimits) -> Iterator[Detection]:
    """Brokers whose cordons no blocked drain explains."""
    blocked = {item.subject for item in drain_blocked(facts, limits)} if "brokers" in facts else set()
    names = sorted(facts["cordons"].keys() - blocked)
    if names:
        yield Detection(f"cordoned: {', '.join(names)}", facts={"broker": names[0]})


_DEGRADED, _WARNING, _NOTE = ConditionSeverity.DEGRADED, ConditionSeverity.WARNING, ConditionSeverity.NOTE

balancer_settings = ConditionExtension(
    "settings of the balancer are valid",
    (
        Condition("settings-invalid", _DEGRADED,
            _invalid, ("invalid",),
            "A broker does not start with these settings.",
            f"Change extensions.{NAME} where it is set; design/reference/balancer-settings.md lists all settings."),
    ),
    _settings_facts,
)  # fmt: skip

POLICY_KINDS: Final = (
    Condition("policies-unreadable", _DEGRADED, _unreadable, ("policies",),
        "What an unreadable policy is about is forbidden, not ignored.",
        "`statechannel policy list` shows the record; set it again, or delete it."),
    Condition("policies-unapplied", _WARNING, _unapplied, ("policies", "alive"),
        "`statechannel policy list` shows them in force, but a broker without the balancer assigns bundles against them.",
        RUN_IT),
    DRAIN_BLOCKED,
    Condition("isolated-to-one", _WARNING, _isolated, ("policies", "cluster"), "{effect}", ""),
    Condition("loads-unread", _NOTE, _loads_unread, ("loads_unread",), "", ""),
    Condition("policies-junk", _WARNING, _junk, ("policies",),
        "A foreign client or a newer version writes to the topic.",
        "`statechannel policy list --output json` counts them; check which clients may write to the topic."),
    Condition("shedding-off", _NOTE, _shedding_off, ("policies",), "",
        "Switch automatic moves on again with `statechannel override end shedding`."),
    Condition("cordoned", _NOTE, _cordoned, ("cordons",),
        "No bundle is assigned to them.", "End a cordon with `statechannel uncordon {broker}`."),
)  # fmt: skip

policies = ConditionExtension(
    "policies can be read", POLICY_KINDS, _policy_facts, needs=("kafka", "topics"), topics=topics
)


def policy_remarks(connection: Connection, alive: Mapping[str, Member]) -> Remarks:
    """Cordons by broker; shedding that is off, overrides in force; and changes of the last hour, as incidents.

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
    cordons = effective.policies.cordons
    brokers = {name: f"cordoned ({why})" if why else "cordoned" for name, why in sorted(cordons.items())}
    rows = cordon_rows(connection, effective)
    brokers |= {row["broker"]: drain_remark(row) for row in rows if row["drain_state"] in DRAIN_ENDS}
    return Remarks(cluster, brokers, frozenset(cordons), tuple(changes_lately(changes.rows, now_ms())))


_LATELY_MS: Final = 3_600_000
_TOGETHER_MS: Final = 60_000


def changes_lately(rows: Iterable[PolicyChange], at_ms: int) -> list[Incident]:
    """Policies set and deleted within the last hour, as incidents; those of one kind in quick succession are one.

    Drains have incidents of their own, and their cordons none.
    """
    groups: list[list[tuple[PolicyKey, PolicyChange]]] = []
    for change in rows:
        key, record = change.key, change.record
        if key is None or change.trouble or at_ms - change.logged_at_ms >= _LATELY_MS:
            continue
        if record is not None and Author.parse(record.by).drain is not None:
            continue
        if groups and _is_more_of(groups[-1][-1], (key, change)):
            groups[-1].append((key, change))
        else:
            groups.append([(key, change)])
    return [Incident(group[0][1].logged_at_ms, IncidentKind.POLICY, _of_changes(group)) for group in groups]


def _is_more_of(before: tuple[PolicyKey, PolicyChange], after: tuple[PolicyKey, PolicyChange]) -> bool:
    of = [(change.by, change.what, key.kind, key.override) for key, change in (before, after)]
    return of[0] == of[1] and after[1].logged_at_ms - before[1].logged_at_ms < _TOGETHER_MS


def _of_changes(group: Sequence[tuple[PolicyKey, PolicyChange]]) -> str:
    key, last = group[-1]
    kind = f"{'override' if key.override else 'policy'} {key.kind}"
    why = f": {last.why}" if last.why else ""
    many = "" if len(group) == 1 else f" and {len(group) - 1} more"
    return f"{last.by or 'an unknown user'} {last.what} {kind} {key.name}{many}{why}"


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
        side = side_records(export, SideRole.POLICIES, TERMINAL)
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
            known.take(*decision_read(record))
        known.since_ms = max(known.since_ms, since_ms)
        return known


decisions = DecisionOrigins()


class Decisions:
    """Decisions by operation, the newest `_DECISIONS_MAX`.

    Attributes:
        since_ms: See `statechannel.audit.origins.OriginTopic`.
    """

    name = "decisions"

    def __init__(self) -> None:
        self._book = DecisionBook(_DECISIONS_MAX)
        self._placements: dict[str, deque[DecisionRecord]] = {}
        self.since_ms = 0
        self._read = 0

    def take(self, offset: int, timestamp_ms: int, record: Any) -> None:
        """Add a record of the topic, or the reason why it cannot be read."""
        if not self._read and offset > 0:
            self.since_ms = timestamp_ms
        self._read += 1
        full = len(self._book) >= _DECISIONS_MAX
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
