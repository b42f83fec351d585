"""What conditions are found in, the same facts of a log and of a broker's memory; what a condition is; rows of brokers. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from math import inf
from types import MappingProxyType, NoneType
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple, cast

from typing_extensions import TypedDict

from statechannel.engine.kafka_limits import QUOTAS
from statechannel.engine.membership import LostMember, Member, Membership
from statechannel.engine.replica_differences import reported_differences
from statechannel.engine.troubles import UnplacedCause
from statechannel.protocol.replica import Phase
from statechannel.protocol.states import Flow, State

if TYPE_CHECKING:
    from statechannel.protocol.replica import Replica
    from statechannel.settings import Settings

NOT_ON_REQUEST = frozenset({Flow.SHUTDOWN, Flow.TRANSFER, Flow.REPAIR})
"""Flows whose Unassigned record means that a bundle was served, and was to be served on."""
HOOKS = {State.RELEASING: "on_release", State.ASSIGNING: "on_own", State.SPLITTING: "on_split"}
"""The hook that ends a state in which a bundle is in flight."""
MISSED_BEATS = 2.5
"""The second of two heartbeats is missed half an interval after it was due."""

BrokerFacts = Mapping[str, Any]
"""A row of `brokers` (`BrokerRow`), with `lag_ms`, and `cordoned` where that is known."""


class ConditionLimits(NamedTuple):
    """Durations in milliseconds above which something is a condition, each from one setting."""

    in_flight_ms: float  # of an operation
    unserved_ms: float  # of a declined bundle without an owner
    debt_ms: float  # of a key that awaits repair
    suspect_ms: float  # since a broker was heard
    lost_ms: float  # the same, of one that counts as lost

    @classmethod
    def of(cls, settings: Settings) -> ConditionLimits:
        return cls(
            settings.observe.in_flight_slow_s * 1_000,
            settings.hooks.deadline_s * 1_000,
            max(5_000.0, 5_000 * settings.leader.debt_age_s),
            MISSED_BEATS * settings.membership.interval_s * 1_000,
            settings.membership.expiry_s * 1_000,
        )


NO_LIMITS = ConditionLimits(*5 * [inf])
"""For conditions that need not last."""


class TopicFacts(TypedDict):
    """What Kafka says of the topics: the key `topics` of `status`."""

    partition_counts: Mapping[str, Sequence[str]]
    heads_lost: Mapping[str, int]
    positions_lost: Mapping[str, int]
    differences: Sequence[Mapping[str, Any]]


NO_TOPIC_FACTS: TopicFacts = {"partition_counts": {}, "heads_lost": {}, "positions_lost": {}, "differences": ()}


class UnservedFacts(TypedDict):
    """Bundles that no broker serves until they are repaired, as the broker that owns or should take each is lost."""

    bundles: int
    assigned: int
    brokers: Sequence[str]
    since_ms: int | None


class UnownedFacts(TypedDict):
    """Bundles that lost their owner though no unload was requested, and the first of them."""

    bundles: int
    since_ms: int | None
    bundle: str


class DeclinedFacts(TypedDict):
    """A bundle without an owner: the reasons of the brokers that declined it, and those that were not asked."""

    bundle: str
    since_ms: int
    by: Mapping[str, str]
    not_asked: Sequence[str]


class PauseFacts(TypedDict):
    """A broker that does not repair, why, and when it goes on by itself."""

    broker: str
    why: str
    left_ms: int | None
    lost_since_ms: int | None


class Facts(TypedDict, total=False):
    """What is known at a moment. A key that is missing is not known, and conditions that need it are not looked for.

    Every document of `status` is one; its keys are described there (design/cli.md). Beyond it the page knows these.

    Attributes:
        behind_s: How far the process that looks is behind the end of the log.
        cordons: Rows of `/v1/cordons` by broker.
        flaps: Bundles that change their owner again and again.
        junk: Records that no correct process writes, lately.
    """

    channel: str
    at_ms: int
    blind_since_ms: int | None
    stopped: Mapping[str, Mapping[str, int]]
    topics: TopicFacts
    partitions: Sequence[Mapping[str, Any]]
    brokers: Sequence[BrokerFacts]
    leader: str | None
    no_leader_for_ms: int | None
    repair_paused: Sequence[PauseFacts]
    without_owner: UnownedFacts | None
    without_service: UnservedFacts | None
    declined_bundles: Sequence[DeclinedFacts]
    declines: Sequence[Mapping[str, Any]]
    in_flight: Sequence[Mapping[str, Any]]
    debts: Sequence[Mapping[str, Any]]
    oldest_debt_ms: float | None
    disowned: Sequence[str]
    doubled: Sequence[str]
    behind_s: float
    cordons: Mapping[str, Mapping[str, Any]]
    flaps: Sequence[FlapFacts]
    junk: JunkFacts | None


class FlapFacts(NamedTuple):
    """A bundle that changes its owner again and again: the number of its moves within a window, by their cause."""

    bundle: str
    balancer: int
    failure: int
    planned: int


class JunkFacts(NamedTuple):
    """Records that no correct process writes, lately: their number in `window_s`, and by verdict, the most first."""

    records: int
    window_s: float
    verdicts: Mapping[str, int]


class MovingBundle(NamedTuple):
    """A bundle in flight, or one that lost its owner though no unload was requested."""

    bundle: str
    state: State
    from_: str | None
    to: str | None
    since_ms: int | None  # log time since which it is in this state; None: not known
    unserved_ms: int | None  # since when no broker has served it; None: one does, or none ever did
    operation: str | None
    flow: str | None

    @property
    def actor(self) -> str | None:
        """Who has to act so that it gets on."""
        return self.to if self.state is State.ASSIGNING else self.from_ if self.state in HOOKS else None


def is_unowned(state: State | None, flow: str | None) -> bool:
    """Whether a bundle has no owner though no unload was requested."""
    return state is State.UNASSIGNED and flow in NOT_ON_REQUEST


def bundle_facts(
    moving: Sequence[MovingBundle],
    owned: Mapping[str, int],
    brokers: Sequence[BrokerFacts],
    declined: set[str],
    at_ms: int,
) -> Facts:
    """The keys `in_flight`, `without_owner` and `without_service`.

    Args:
        owned: Number of bundles by owner.
        declined: Bundles that are reported as declined.
    """
    alive = {row["broker"] for row in brokers if row["state"] not in ("lost", "left")}
    unowned = [row for row in moving if is_unowned(row.state, row.flow) and row.bundle not in declined]
    first = min(unowned, key=lambda row: (row.since_ms is None, row.since_ms, row.bundle), default=None)
    waiting = [row for row in moving if row.actor is not None and row.actor not in alive]
    leaving = Counter(row.from_ for row in waiting if row.state is not State.ASSIGNING)
    lost = {name: many - leaving[name] for name, many in owned.items() if name not in alive}
    since_ms = [row.unserved_ms for row in waiting if row.unserved_ms is not None]
    since_ms += [at_ms - row["heard_ago_ms"] for row in brokers if lost.get(row["broker"])]
    names = sorted({*lost, *(row.actor or "" for row in waiting)})
    without: UnownedFacts | None = None
    if first is not None:
        without = {"bundles": len(unowned), "since_ms": first.since_ms, "bundle": first.bundle}
    assigned = sum(lost.values())
    unserved: UnservedFacts = {
        "bundles": assigned + len(waiting), "assigned": assigned, "brokers": names, "since_ms": min(since_ms, default=None)
    }  # fmt: skip
    in_flight: list[dict[str, Any]] = [
        {
            "bundle": row.bundle,
            "state": row.state.value,
            "from": row.from_,
            "to": row.to,
            "operation": row.operation,
            "age_ms": None if row.since_ms is None else max(0, at_ms - row.since_ms),
            "waits_for_broker": row.actor,
            "waits_for_hook": HOOKS[row.state],
            "waits_for_repair": row.actor is not None and row.actor not in alive,
        }
        for row in moving
        if row.state in HOOKS
    ]
    return {
        "without_owner": without,
        "without_service": unserved if names else None,
        "in_flight": sorted(in_flight, key=lambda row: -(row["age_ms"] or 0)),
    }


def stopped_in(replicas: Iterable[Replica]) -> dict[str, dict[str, int]]:
    """The key `stopped`: the records of a newer format at which a process stopped judging, by partition."""
    return {
        str(replica.partition): {"offset": replica.position, "format": replica.newer_format}
        for replica in replicas
        if replica.phase is Phase.STOPPED
    }


def alive_of(facts: Facts) -> list[BrokerFacts]:
    return [row for row in facts["brokers"] if row["state"] not in ("lost", "left")]


def is_restated(facts: Mapping[str, Any], partition: int, first_offset: int) -> bool:
    """Whether the log says that what was deleted below an offset was restated, or given up, as far as it was read."""
    rows = (row for row in facts.get("partitions", ()) if row["partition"] == partition)
    return any((row["restated_below"] or 0) >= first_offset for row in rows)


def pauses_of(members: Membership, silent_ms: Callable[[Member | LostMember], int], at_ms: int) -> list[PauseFacts]:
    """Who does not repair, by the clock of each and the time since it was heard, and since when others are lost."""
    lost = [member for process, member in members.lost.items() if (process, member.incarnation) not in members.gone]
    lost_ms = min((at_ms - silent_ms(member) for member in lost), default=None)
    rows: list[PauseFacts] = []
    for member in members.alive.values():
        why, sent_ms, resumes_ms = (
            member.info.get(name) for name in ("repair_paused", "sent_at_ms", "repair_resumes_at_ms")
        )
        if isinstance(why, str) and why:
            known = type(sent_ms) is int and type(resumes_ms) is int
            left_ms = max(0, resumes_ms - sent_ms - max(0, silent_ms(member))) if known else None  # type: ignore[operator]
            rows.append({"broker": member.broker, "why": why, "left_ms": left_ms, "lost_since_ms": lost_ms})
    return rows


class ChannelHealth(StrEnum):
    """Verdict on a channel: DEGRADED if some bundles or functions are affected, DOWN if clients of some get no owner."""

    HEALTHY = "healthy"
    DEGRADED = "degraded"
    DOWN = "down"
    UNKNOWN = "unknown"


class ConditionSeverity(StrEnum):
    """How bad a condition is, the worst first; the first three are verdicts on the channel, the others change none."""

    UNKNOWN = "unknown"
    DOWN = "down"
    DEGRADED = "degraded"
    WARNING = "warning"
    NOTE = "note"

    @property
    def verdict(self) -> ChannelHealth:
        """The verdict that it makes, if nothing is worse."""
        return ChannelHealth(self.value) if self.value in set(ChannelHealth) else ChannelHealth.HEALTHY


class Detection(NamedTuple):
    """What a kind found in the facts."""

    message: str
    subject: str | None = None  # the broker, bundle or topic; None: the channel, or several
    since_ms: int | None = None  # None: not known, or the message says it
    brief: str = ""  # how `status` ends the sentence: the next step in a few words
    facts: Mapping[str, Any] = MappingProxyType({})  # values for the templates of its kind
    next_step: str | None = None  # in place of that of its kind
    due_to: str | None = None  # code of the condition that it follows from, if that holds


@dataclass(frozen=True, slots=True)
class Condition:
    """A kind: design/cli.md says when each holds, by which setting, and its other names."""

    code: str  # stable; that of `status` and of the page
    severity: ConditionSeverity
    detect: Callable[[Facts, ConditionLimits], Iterable[Detection]]
    needs: Sequence[str]  # keys of the facts without which it is not looked for
    consequence: str  # like `next_step` a template over the facts of what was found
    next_step: str


@dataclass(frozen=True, slots=True)
class Occurrence:
    """One that holds now: what was found, with the words of its kind."""

    code: str
    severity: ConditionSeverity
    message: str
    consequence: str
    next_step: str
    subject: str | None = None
    since_ms: int | None = None
    brief: str = ""
    facts: Mapping[str, Any] = field(default_factory=dict)
    due_to: str | None = None

    @property
    def sentence(self) -> str:
        """As `status` says it."""
        return self.message + self.brief

    @classmethod
    def of(cls, kind: Condition, detected: Detection) -> Occurrence:
        """With the words of its kind."""
        step = kind.next_step.format(**detected.facts) if detected.next_step is None else detected.next_step
        leads_to = kind.consequence.format(**detected.facts)
        return cls(kind.code, kind.severity, detected.message, leads_to, step, *detected[1:5], detected.due_to)


_AGO_MAX_MS: Final = 10**14


class BrokerRow(TypedDict):
    """A broker that is alive, or lost and not back."""

    broker: str
    incarnation: str
    state: Literal["alive", "draining", "lost", "left"]
    mode: str | None
    phase: str | None
    accepting: bool
    draining: bool
    leading: bool
    bundles: int
    lag_records: int | None
    heard_ago_ms: int
    started_at_ms: int | None
    software: str | None
    extensions: list[str] | None
    urls: dict[str, str]
    http: str | None
    api: str | None
    blocked: dict[str, Any] | None
    hooks_failed: dict[str, dict[str, Any]]
    unplaced: dict[str, Any] | None
    throttled: dict[str, Any] | None
    refused: dict[str, Any] | None
    partitions: int | None
    differs: list[dict[str, Any]]


def leader_of(members: Membership) -> str | None:
    """The broker that claims leadership; with two, the newest claim."""
    leading = [member for member in members.alive.values() if member.info.get("leading") is True]
    newest = max(leading, key=lambda member: member.heard_at_ms, default=None)
    return None if newest is None else newest.broker


def leader_api_of(members: Membership) -> str | None:
    """URL of the admin API of the leader; None where it serves none, or no leader is known."""
    leader = leader_of(members)
    return None if leader is None else members.alive[leader].api_url


def partitions_of(member: Member) -> int | None:
    """Over how many partitions of the channel it distributes keys."""
    applied = member.info.get("applied")
    return len(applied) if isinstance(applied, dict) and applied else None


def broker_rows(
    members: Membership,
    owned: Mapping[str, int],
    applied: Mapping[int, int],
    silent_ms: Callable[[Member | LostMember], int],
) -> list[BrokerRow]:
    """Every member, the lost ones last.

    Args:
        owned: Bundles that each broker serves.
        applied: Offset through which the reader has read each partition.
        silent_ms: Time since a member was last heard.
    """
    leader = leader_of(members)
    rows = [
        alive_row(member, owned.get(name, 0), applied, max(0, silent_ms(member)), leading=name == leader)
        for name, member in sorted(members.alive.items())
    ]
    for name, lost in sorted(members.lost.items()):
        left = (lost.broker, lost.incarnation) in members.gone
        rows.append(_lost(lost, "left" if left else "lost", owned.get(name, 0), max(0, silent_ms(lost))))
    return rows


def _lost(lost: LostMember, state: str, bundles: int, silent_ms: int) -> BrokerRow:
    row: dict[str, Any] = dict.fromkeys(BrokerRow.__annotations__)
    row |= {"broker": lost.broker, "incarnation": lost.incarnation, "state": state, "bundles": bundles}
    row |= {"accepting": False, "draining": False, "leading": False, "heard_ago_ms": silent_ms}
    return cast("BrokerRow", row | {"urls": {}, "hooks_failed": {}, "differs": []})


def alive_row(member: Member, bundles: int, applied: Mapping[int, int], silent_ms: int, *, leading: bool) -> BrokerRow:
    """A member that is alive, by what it said when it was last heard."""
    info = member.info
    started_ms = info.get("started_at_ms")
    return {
        "broker": member.broker,
        "incarnation": member.incarnation,
        "state": "draining" if info.get("draining") is True else "alive",
        "mode": _text(info.get("mode")),
        "phase": _text(info.get("phase")),
        "accepting": member.accepting,
        "draining": info.get("draining") is True,
        "leading": leading,
        "bundles": bundles,
        "lag_records": _lag(info.get("applied"), applied),
        "heard_ago_ms": silent_ms,
        "started_at_ms": started_ms if type(started_ms) is int else None,
        "software": _text(info.get("software")),
        "extensions": None if member.extensions is None else sorted(member.extensions),
        "urls": dict(member.urls),
        "http": _text(info.get("http")),
        "api": member.api_url,
        "blocked": _trouble("blocked", info, info.get("blocked"), silent_ms),
        "hooks_failed": _hooks_failed(info, silent_ms),
        "unplaced": _unplaced(info, silent_ms),
        "throttled": _throttled(info, silent_ms),
        "refused": _trouble("refused", info, info.get("refused"), silent_ms),
        "partitions": partitions_of(member),
        "differs": reported_differences(info.get("differs")),
    }


_TROUBLES: Final[Mapping[str, Mapping[str, Sequence[type]]]] = {
    "blocked": {"times": [int], "seconds": [int, float], "place": [str], "hook": [str, NoneType]},
    "failed": {"times": [int], "since_ms": [int], "bundle": [str], "error": [str]},
    "unplaced": {"bundles": [int], "bundle": [str], "reason": [str], "message": [str], "since_ms": [int]},
    "throttled": {"client": [str], "kind": [str], "throttled_ms": [int], "window_ms": [int], "since_ms": [int]},
    "refused": {"reason": [str], "code": [str], "topic": [str], "message": [str], "times": [int], "since_ms": [int]},
}
"""The fields of each of a broker's troubles in its heartbeats, to which anybody may write."""


def _trouble(name: str, info: Mapping[str, Any], fields: object, silent_ms: int) -> dict[str, Any] | None:
    """A trouble of a broker, with `ago_ms` in place of `at_ms`, by its own clock and the time since it was heard.

    None: it says nothing of it, or it is malformed.
    """
    sent_ms = info.get("sent_at_ms")
    if not isinstance(fields, dict) or type(sent_ms) is not int or type(fields.get("at_ms")) is not int:
        return None
    if any(type(fields.get(field)) not in kinds for field, kinds in _TROUBLES[name].items()):
        return None
    ago_ms = min(_AGO_MAX_MS, max(0, sent_ms - fields["at_ms"]) + silent_ms)  # bounded, as numbers of JSON are
    return {field: value for field, value in fields.items() if field != "at_ms"} | {"ago_ms": ago_ms}


def _hooks_failed(info: Mapping[str, Any], silent_ms: int) -> dict[str, dict[str, Any]]:
    hooks = info.get("hooks_failed")
    rows = (
        {name: _trouble("failed", info, fields, silent_ms) for name, fields in hooks.items()}
        if isinstance(hooks, dict)
        else {}
    )
    return {name: row for name, row in rows.items() if row is not None}


def _unplaced(info: Mapping[str, Any], silent_ms: int) -> dict[str, Any] | None:
    """Bundles for which its placement found no broker."""
    fields = _trouble("unplaced", info, info.get("unplaced"), silent_ms)
    if fields is None:
        return None
    known = [cause for cause in UnplacedCause if cause == fields.get("cause")]  # brokers of older versions do not say
    return fields | {"cause": known[0] if known else UnplacedCause.POLICIES}


def _throttled(info: Mapping[str, Any], silent_ms: int) -> dict[str, Any] | None:
    """Its client that Kafka throttles most."""
    fields = _trouble("throttled", info, info.get("throttled"), silent_ms)
    return fields if fields is not None and fields["kind"] in QUOTAS else None


def _text(value: object) -> str | None:
    return value if isinstance(value, str) else None


def _lag(reported: object, applied: Mapping[int, int]) -> int | None:
    """Records between the member's last heartbeat and the end of the log; heartbeats on the channel count."""
    if not isinstance(reported, dict):
        return None
    lag = 0
    for partition, through in applied.items():
        at = reported.get(str(partition))
        lag += max(0, through - max(at, -1)) if type(at) is int else 0
    return lag
