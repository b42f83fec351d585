"""Verdict on a channel in one line: healthy, degraded, down or unknown, with the reasons. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from enum import StrEnum
from typing import Any, NamedTuple

from statechannel.broker.observe.kafka_limits import refused_sentence, throttled_sentence
from statechannel.broker.observe.topic_conditions import head_lost_sentence, positions_lost_sentence
from statechannel.cli.kit.output import duration, moment
from statechannel.cli.kit.topic_state import is_restated
from statechannel.engine.effects import Hook
from statechannel.engine.replica_differences import DifferingReplica, replica_differences
from statechannel.protocol.replica import Phase
from statechannel.settings import Settings

LAG_WARNING_MS = 5_000
"""A broker that is further behind the log is a problem."""
BLOCKED_LATELY_MS = 60_000
HOOK_FAILED_LATELY_MS = DECLINED_LATELY_MS = 600_000
_BRIEF_MS = 1_000
_NAMED = 3
_DOES = {Hook.ON_RELEASE: "release", Hook.ON_OWN: "take", Hook.ON_SPLIT: "split"}
_UNSPREAD_AT_LEAST = 2
"""Bundles of one broker, in multiples of the number of brokers, from which a broker without any is worth a note."""


class ChannelHealth(StrEnum):
    """Verdict on a channel.

    Attributes:
        HEALTHY: Brokers are alive, one leads, and nothing waits for longer than it should.
        DEGRADED: Some bundles or functions are affected.
        DOWN: No broker is alive, or no broker takes some bundles: their clients get no owner.
        UNKNOWN: Kafka does not answer this command, or this version cannot read the log.
    """

    HEALTHY = "healthy"
    DEGRADED = "degraded"
    DOWN = "down"
    UNKNOWN = "unknown"


class HealthReason(StrEnum):
    """Stable code of a reason for a verdict."""

    KAFKA_SILENT = "kafka-silent"
    NEWER_FORMAT = "newer-format"
    HEAD_LOST = "head-lost"
    PARTITIONS_DIFFER = "partitions-differ"
    REPLICAS_DIFFER = "replicas-differ"
    TOPIC_UNFIT = "topic-unfit"
    NO_BROKER = "no-broker"
    BUNDLES_DECLINED = "bundles-declined"
    BUNDLES_UNPLACED = "bundles-unplaced"
    DECLINED_BY_SOME = "declined-by-some"
    WITHOUT_OWNER = "without-owner"
    BROKER_LOST = "broker-lost"
    OWNER_UNREACHABLE = "owner-unreachable"
    NO_LEADER = "no-leader"
    REPAIR_PAUSED = "repair-paused"
    SAFE_MODE = "safe-mode"
    LOOP_BLOCKED = "loop-blocked"
    HOOK_FAILS = "hook-fails"
    KAFKA_REFUSES = "kafka-refuses"
    KAFKA_THROTTLES = "kafka-throttles"
    NONE_ACCEPTS = "none-accepts"
    SLOW_OPERATION = "slow-operation"
    AWAITING_REPAIR = "awaiting-repair"
    BROKER_LATE = "broker-late"
    FORGED = "forged"
    DUPLICATE_ID = "duplicate-id"


class HealthProblem(NamedTuple):
    """A reason for a verdict, with a sentence for people."""

    reason: HealthReason
    message: str


class HealthLimits(NamedTuple):
    """Durations in milliseconds above which something is a problem.

    Attributes:
        in_flight_ms: Of an operation.
        unserved_ms: Of a declined bundle without an owner.
        debt_ms: Of a key that awaits repair.
    """

    in_flight_ms: float
    unserved_ms: float
    debt_ms: float

    @classmethod
    def of(cls, settings: Settings) -> HealthLimits:
        in_flight_ms, unserved_ms = settings.observe.in_flight_slow_s * 1_000, settings.hooks.deadline_s * 1_000
        return cls(in_flight_ms, unserved_ms, max(5_000.0, 5_000 * settings.leader.debt_age_s))


def with_health(fields: Mapping[str, Any], limits: HealthLimits) -> dict[str, Any]:
    """The figures of `status`, led by the verdict and its reasons."""
    verdict, problems = health(fields, limits)
    reasons = [{"reason": problem.reason.value, "message": problem.message} for problem in problems]
    return {"health": verdict.value, "problems": reasons, **fields}


def health(fields: Mapping[str, Any], limits: HealthLimits) -> tuple[ChannelHealth, list[HealthProblem]]:
    """The verdict on the figures of `status`, and its reasons, the most important first."""
    problems = list(_problems(fields, limits))
    reasons = {problem.reason for problem in problems}
    if reasons & {HealthReason.KAFKA_SILENT, HealthReason.NEWER_FORMAT}:
        return ChannelHealth.UNKNOWN, problems
    if reasons & {HealthReason.NO_BROKER, HealthReason.BUNDLES_DECLINED, HealthReason.BUNDLES_UNPLACED}:
        return ChannelHealth.DOWN, problems
    return (ChannelHealth.DEGRADED if problems else ChannelHealth.HEALTHY), problems


def _problems(fields: Mapping[str, Any], limits: HealthLimits) -> Iterator[HealthProblem]:
    blind_ms = fields["blind_since_ms"]
    if blind_ms is not None:
        yield HealthProblem(
            HealthReason.KAFKA_SILENT,
            f"Kafka has not answered since {moment(blind_ms)}, for {duration(max(0, fields['at_ms'] - blind_ms))}; "
            "all below is from then",
        )
    for partition, stop in fields["stopped"].items():
        yield HealthProblem(
            HealthReason.NEWER_FORMAT,
            f"partition {partition} needs format {stop['format']} from offset {stop['offset']} on; use a newer version",
        )
    yield from _of_topics(fields)
    for difference in differing_replicas(fields):
        yield HealthProblem(
            HealthReason.REPLICAS_DIFFER, f"{difference.sentence} (`statechannel doctor` says what to do)"
        )
    alive = [row for row in fields["brokers"] if row["state"] not in ("lost", "left")]
    if not alive:
        yield HealthProblem(HealthReason.NO_BROKER, "no broker is alive")
    refused = unserved_by_all(fields, limits)
    if refused:
        yield HealthProblem(HealthReason.BUNDLES_DECLINED, decline_sentence(refused) + _listed(refused))
    unplaced = unplaced_sentence(fields)
    if unplaced:
        yield HealthProblem(HealthReason.BUNDLES_UNPLACED, unplaced)
    by_some = unserved_by_some(fields, limits)
    if by_some:
        yield HealthProblem(HealthReason.DECLINED_BY_SOME, decline_sentence(by_some) + _listed(by_some))
    unowned = unowned_sentence(fields)
    if unowned:
        yield HealthProblem(HealthReason.WITHOUT_OWNER, f"{unowned}; a lookup of each assigns it")
    yield from _of_brokers(fields, alive)
    yield from _of_bundles(fields, limits)
    yield from _of_writers(fields)


def _of_topics(fields: Mapping[str, Any]) -> Iterator[HealthProblem]:
    topics = fields.get("topics")
    if topics is None:
        return
    if len(topics["partition_counts"]) > 1:
        words = "; ".join(f"{number}: {_named(brokers)}" for number, brokers in topics["partition_counts"].items())
        yield HealthProblem(
            HealthReason.PARTITIONS_DIFFER, f"brokers read different numbers of the channel's partitions ({words})"
        )
    is_served = any(row["phase"] == Phase.CAUGHT_UP for row in fields["brokers"])
    for partition, offset in topics["heads_lost"].items():
        if not is_restated(fields, int(partition), offset):
            todo = "brokers restate it" if is_served else "no broker knows what was deleted"
            sentence = head_lost_sentence(fields["channel"], partition, offset)
            yield HealthProblem(HealthReason.HEAD_LOST, f"{sentence}; {todo} (`statechannel doctor`)")
    for partition, known in topics["positions_lost"].items():
        sentence = positions_lost_sentence(fields["channel"], partition, known)
        yield HealthProblem(HealthReason.HEAD_LOST, f"{sentence} (`statechannel doctor`)")
    for row in topics["differences"]:
        if row["hard"]:
            yield HealthProblem(
                HealthReason.TOPIC_UNFIT,
                f"{row['topic']}: {row['setting']} is {row['actual']}, required {row['wanted']} (`statechannel doctor` has the "
                "command)",
            )


def _of_brokers(fields: Mapping[str, Any], alive: Sequence[Mapping[str, Any]]) -> Iterator[HealthProblem]:
    lost = [f"{row['broker']}, last heard {duration(row['heard_ago_ms'])} ago" for row in _in(fields, "state", "lost")]
    if lost:
        left = (
            f"; {alive[0]['broker']} alone is left, with {alive[0]['bundles']} bundles"
            if len(alive) == 1 < len(lost)
            else ""
        )
        yield HealthProblem(HealthReason.BROKER_LOST, f"lost without a goodbye, and not back: {_named(lost)}{left}")
    unserved = without_service_sentence(fields)
    if unserved:
        yield HealthProblem(HealthReason.OWNER_UNREACHABLE, unserved)
    if alive and fields["leader"] is None:
        without_ms = fields["no_leader_for_ms"]
        since = "" if without_ms is None or without_ms < _BRIEF_MS else f" for {duration(without_ms)}"
        yield HealthProblem(HealthReason.NO_LEADER, f"no broker has led{since}" if since else "no broker leads")
    for row in fields["repair_paused"]:
        yield HealthProblem(
            HealthReason.REPAIR_PAUSED,
            f"{row['broker']} paused repair: {pause_sentence(row)}; if they are dead: `statechannel repair resume`",
        )
    safe = [row["broker"] for row in _in(fields, "mode", "safe")]
    if safe:
        yield HealthProblem(HealthReason.SAFE_MODE, f"in safe mode, without Kafka: {_named(safe)}")
    for row in fields["brokers"]:
        blocked = blocked_sentence(row)
        if blocked:
            yield HealthProblem(HealthReason.LOOP_BLOCKED, blocked)
        for failing in failing_hooks(row):
            yield HealthProblem(HealthReason.HOOK_FAILS, failing.sentence)
        refused, throttled = refused_sentence(row), throttled_sentence(row)
        if refused:
            yield HealthProblem(HealthReason.KAFKA_REFUSES, f"{refused}, since {moment(row['refused']['since_ms'])}")
        if throttled:
            yield HealthProblem(
                HealthReason.KAFKA_THROTTLES, f"{throttled}, since {moment(row['throttled']['since_ms'])}"
            )
    if alive and not any(row["accepting"] for row in alive):
        yield HealthProblem(HealthReason.NONE_ACCEPTS, "no broker accepts bundles")
    late = [row for row in fields["brokers"] if (row["lag_ms"] or 0) >= LAG_WARNING_MS]
    if late:
        named = _named([f"{row['broker']} by {duration(row['lag_ms'])}" for row in late])
        yield HealthProblem(HealthReason.BROKER_LATE, f"behind the log: {named}")


def without_service_sentence(fields: Mapping[str, Any]) -> str:
    """How many bundles no broker serves until they are repaired, since when, and for which brokers; empty without any."""
    unserved = fields.get("without_service")
    if unserved is None:
        return ""
    many, wait = (
        ("1 bundle is", "it waits") if unserved["bundles"] == 1 else (f"{unserved['bundles']} bundles are", "they wait")
    )
    since = "" if unserved["since_ms"] is None else f" since {moment(unserved['since_ms'])}"
    lost = _all_of(unserved["brokers"])
    is_are = "is" if len(unserved["brokers"]) == 1 else "are"
    goes_on = ", and repair is paused" if fields["repair_paused"] else f": {wait} for repair"
    return f"{many} without service{since}: {lost} {is_are} not alive{goes_on}"


def term_text(term: int | None) -> str:
    """A leader's term as the end of a sentence: it grows by many with each leader, as all heartbeats count; empty: unknown."""
    return "" if term is None else f"; term {term} (the offset of its claim in the registry)"


def pause_sentence(row: Mapping[str, Any]) -> str:
    """Why a broker does not repair, since when others are lost, and when it goes on by itself."""
    since = "" if row["lost_since_ms"] is None else f"; lost since {moment(row['lost_since_ms'])}"
    left = "" if row["left_ms"] is None else f"; it goes on by itself in {duration(row['left_ms'])}"
    return f"{row['why']}{since}{left}"


def unserved_by_all(fields: Mapping[str, Any], limits: HealthLimits) -> list[Mapping[str, Any]]:
    """Declined bundles that every broker that takes bundles declined, or that have had no owner for long."""
    return [row for row in fields.get("declined_bundles", ()) if _unserved(fields, row, limits)]


def unserved_by_some(fields: Mapping[str, Any], limits: HealthLimits) -> list[Mapping[str, Any]]:
    """Declined bundles without an owner that another broker may still take, once it is asked."""
    return [
        row
        for row in fields.get("declined_bundles", ())
        if fields["at_ms"] - row["since_ms"] > _BRIEF_MS and not _unserved(fields, row, limits)
    ]


def _unserved(fields: Mapping[str, Any], row: Mapping[str, Any], limits: HealthLimits) -> bool:
    return not row["not_asked"] or fields["at_ms"] - row["since_ms"] > limits.unserved_ms


def failing_takers(fields: Mapping[str, Any], refused: Sequence[Mapping[str, Any]]) -> list[str]:
    """The brokers that declined these bundles, and those that lately declined others."""
    declining = {row["broker"] for row in fields.get("declines", ()) if row["age_ms"] <= DECLINED_LATELY_MS}
    return sorted(declining.union(*(row["by"] for row in refused)))


def decline_sentence(refused: Sequence[Mapping[str, Any]]) -> str:
    """How many bundles have no owner, which brokers declined them, why, since when, and which were not asked yet."""
    brokers = sorted({broker for row in refused for broker in row["by"]})
    reasons = dict.fromkeys(reason for row in refused for reason in row["by"].values() if reason)
    first = next(iter(reasons), "")
    others = f", and {len(reasons) - 1} other reasons" if len(reasons) > 1 else ""
    many = "1 bundle has" if len(refused) == 1 else f"{len(refused)} bundles have"
    decline = "declines" if len(brokers) == 1 else "decline"
    waiting = sorted({broker for row in refused for broker in row["not_asked"]})
    of_all = " about all of them" if set(waiting) & set(brokers) else ""
    not_asked = f"; not asked{of_all} yet: {_all_of(waiting)} (the next lookup does)" if waiting else ""
    return (
        f"{many} no owner since {moment(refused[0]['since_ms'])}: {_all_of(brokers)} {decline} "
        f"{'it' if len(refused) == 1 else 'them'}{f' ({first}{others})' if first else ''}{not_asked}"
    )


def _listed(refused: Sequence[Mapping[str, Any]]) -> str:
    return f": {refused[0]['bundle']}" if len(refused) == 1 else "; `statechannel bundles --unowned` lists them"


def unowned_sentence(fields: Mapping[str, Any]) -> str:
    """Which bundles lost their owner though no unload was requested; empty without any, or for a moment."""
    unowned = fields.get("without_owner")
    if unowned is None or (unowned["since_ms"] is not None and fields["at_ms"] - unowned["since_ms"] <= _BRIEF_MS):
        return ""
    others = unowned["bundles"] - 1
    since = "" if unowned["since_ms"] is None else f" since {moment(unowned['since_ms'])}"
    many, which = (f"{others + 1} bundles were", "them") if others else ("1 bundle was", "it")
    more = f" and {others} more (`statechannel bundles --unowned`)" if others else ""
    return f"{many} served, no unload was requested, and{since} no broker owns {which}: {unowned['bundle']}{more}"


def differing_replicas(fields: Mapping[str, Any]) -> list[DifferingReplica]:
    """Brokers that hold other accepted states, by what those that are alive report."""
    rows = [row for row in fields.get("brokers", ()) if row["state"] not in ("lost", "left")]
    return replica_differences({row["broker"]: row.get("differs", ()) for row in rows})


def blocked_sentence(row: Mapping[str, Any]) -> str:
    """What blocks the event loop of a broker, if it was blocked within the last minute; else empty."""
    blocked = row.get("blocked")
    if blocked is None or blocked["ago_ms"] > BLOCKED_LATELY_MS:
        return ""
    times = "once" if blocked["times"] == 1 else f"{blocked['times']} times"
    hook = f", hook {blocked['hook']}" if blocked["hook"] else ""
    return (
        f"{row['broker']}'s event loop is blocked ({blocked['place']}{hook}): {times} since its start, the last time "
        f"{duration(blocked['ago_ms'])} ago"
    )


class FailingHook(NamedTuple):
    """A hook that failed lately, the bundle of the last time, and a sentence."""

    hook: str
    bundle: str
    sentence: str


def failing_hooks(row: Mapping[str, Any]) -> Iterator[FailingHook]:
    """Which hooks of a broker failed lately; one that declines bundles by `on_own` is reported by its declines."""
    for hook, failed in sorted((row.get("hooks_failed") or {}).items()):
        if hook == Hook.ON_OWN or failed["ago_ms"] > HOOK_FAILED_LATELY_MS:
            continue
        times = "once" if failed["times"] == 1 else f"{failed['times']} times since {moment(failed['since_ms'])}"
        ago = duration(failed["ago_ms"])
        sentence = f"{row['broker']}'s hook {hook} failed {times}, the last time {ago} ago: {failed['error']}"
        if hook == Hook.ON_SERVE:
            sentence += f"; {failed['bundle']} may be assigned to {row['broker']} and not be served"
        yield FailingHook(hook, failed["bundle"], sentence)


def newest_unplaced(fields: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """The broker that last found no broker for a bundle that a client asked for."""
    rows = [row for row in fields["brokers"] if row.get("unplaced") is not None]
    return min(rows, key=lambda row: row["unplaced"]["ago_ms"], default=None)


def unplaced_sentence(fields: Mapping[str, Any]) -> str:
    """For which bundles clients get no owner, as placement finds no broker, and why; empty without any."""
    newest = newest_unplaced(fields)
    if newest is None:
        return ""
    unplaced = newest["unplaced"]
    many = max(row["unplaced"]["bundles"] for row in fields["brokers"] if row.get("unplaced") is not None)
    more = "" if many == 1 else f" and {many - 1} more"
    return (
        f"{unplaced['bundle']}{more}: {unplaced['message']}; {newest['broker']} last looked for one "
        f"{duration(unplaced['ago_ms'])} ago"
    )


def _of_bundles(fields: Mapping[str, Any], limits: HealthLimits) -> Iterator[HealthProblem]:
    slow = slow_operations(fields, limits)
    if slow:
        yield HealthProblem(
            HealthReason.SLOW_OPERATION,
            f"{_many(slow)} in flight for longer than {duration(limits.in_flight_ms)}; {slow[0]['bundle']} for "
            f"{duration(slow[0]['age_ms'])}" + (f": {waits_for(slow[0])}" if waits_for(slow[0]) else ""),
        )
    oldest_ms = fields["oldest_debt_ms"]
    if fields["debts"] and (oldest_ms is None or oldest_ms >= limits.debt_ms):
        age = "" if oldest_ms is None else f", the oldest for {duration(oldest_ms)}"
        yield HealthProblem(HealthReason.AWAITING_REPAIR, f"keys awaiting repair: {len(fields['debts'])}{age}")


def slow_operations(fields: Mapping[str, Any], limits: HealthLimits) -> list[Mapping[str, Any]]:
    """Operations in flight for too long; those that wait for the repair of a lost broker are another problem."""
    return [
        row
        for row in fields["in_flight"]
        if (row["age_ms"] or 0) > limits.in_flight_ms and not row.get("waits_for_repair")
    ]


def _of_writers(fields: Mapping[str, Any]) -> Iterator[HealthProblem]:
    """Records that another process wrote than the one they name, and a second process with one broker id."""
    for sentence in fields.get("disowned", ()):
        yield HealthProblem(HealthReason.FORGED, sentence)
    if fields.get("doubled"):
        yield HealthProblem(HealthReason.DUPLICATE_ID, f"two processes use the broker id {_all_of(fields['doubled'])}")


def waits_for(operation: Mapping[str, Any]) -> str:
    """Whose hook a bundle in flight waits for, as a sentence; empty where the state does not say."""
    broker, hook = operation.get("waits_for_broker"), operation.get("waits_for_hook")
    if not broker or not hook:
        return ""
    return f"it waits for {broker} to {_DOES[hook]} it (hook {hook})"


def _many(rows: Sequence[object]) -> str:
    return "1 bundle is" if len(rows) == 1 else f"{len(rows)} bundles are"


def _in(fields: Mapping[str, Any], name: str, value: str) -> list[Mapping[str, Any]]:
    return [row for row in fields["brokers"] if row[name] == value]


def _all_of(names: Sequence[str]) -> str:
    """The names as in a sentence; the first ones, and how many more there are, if it is more than one."""
    most = len(names) if len(names) <= _NAMED + 1 else _NAMED
    shown, more = list(names[:most]), len(names) - most
    if more > 0:
        shown.append(f"{more} more")
    return shown[0] if len(shown) == 1 else f"{', '.join(shown[:-1])} and {shown[-1]}"


def _named(names: Sequence[str]) -> str:
    """The first names, and how many more there are, if it is more than one."""
    if len(names) <= _NAMED + 1:
        return "; ".join(names)
    return "; ".join(names[:_NAMED]) + f"; and {len(names) - _NAMED} more"


def unspread(fields: Mapping[str, Any]) -> str:
    """Brokers that take bundles and have none, while another has far more than its share, as a sentence; mostly empty.

    Those that are cordoned, or in trouble, should not be given any.
    """
    declining = {row["broker"] for row in fields.get("declines", ()) if row["age_ms"] <= DECLINED_LATELY_MS}
    takers = [
        row
        for row in fields["brokers"]
        if row["accepting"]
        and not row.get("cordoned")
        and row["broker"] not in declining
        and not blocked_sentence(row)
        and not any(failing_hooks(row))
    ]
    without = [row["broker"] for row in takers if not row["bundles"]]
    most = max(takers, key=lambda row: row["bundles"], default=None)
    if most is None or not without or most["bundles"] < _UNSPREAD_AT_LEAST * len(takers):
        return ""
    verb = "has" if len(without) == 1 else "have"
    return f"{_all_of(without)} {verb} no bundles, {most['broker']} has {most['bundles']}"
