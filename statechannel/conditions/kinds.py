"""How each condition is found in the facts, with its sentence: of the channel, of brokers, of bundles. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from statechannel.clocks import duration, moment
from statechannel.conditions.facts import (
    BrokerFacts,
    ConditionLimits,
    DeclinedFacts,
    Detection,
    Facts,
    alive_of,
    is_restated,
)
from statechannel.engine.effects import Hook
from statechannel.engine.kafka_limits import LIMIT_HINTS, QUOTAS
from statechannel.engine.log_head import KEEP_RUNNING, RESTORE
from statechannel.engine.replica_differences import replica_differences
from statechannel.engine.troubles import UnplacedCause
from statechannel.printable import all_of, named
from statechannel.protocol.replica import Phase

BRIEF_MS: Final = 1_000
"""What lasts no longer is not said."""
BEHIND_S: Final = 5.0


def kafka_silent(facts: Facts, _: ConditionLimits) -> Iterator[Detection]:
    blind_ms = facts["blind_since_ms"]
    if blind_ms is not None:
        silent = f"since {moment(blind_ms)}, for {duration(max(0, facts['at_ms'] - blind_ms))}"
        yield Detection(f"Kafka has not answered {silent}; all below is from then", since_ms=blind_ms)


def newer_format(facts: Facts, _: ConditionLimits) -> Iterator[Detection]:
    for partition, stop in facts["stopped"].items():
        message = f"partition {partition} needs format {stop['format']} from offset {stop['offset']} on"
        yield Detection(message, brief="; use a newer version", facts=stop)


def partitions_differ(facts: Facts, _: ConditionLimits) -> Iterator[Detection]:
    counts: dict[int, list[str]] = {}
    for row in alive_of(facts):
        if row.get("partitions") is not None:
            counts.setdefault(row["partitions"], []).append(row["broker"])
    if len(counts) > 1:
        words = "; ".join(f"{number}: {named(brokers)}" for number, brokers in sorted(counts.items()))
        yield Detection(f"brokers read different numbers of the channel's partitions ({words})")


def head_lost(facts: Facts, _: ConditionLimits) -> Iterator[Detection]:
    """Records that were deleted from the head, and then those that brokers have read and the log does not have."""
    topics, name = facts["topics"], facts["channel"]
    is_served = any(row["phase"] == Phase.CAUGHT_UP for row in facts["brokers"])
    for partition, offset in topics["heads_lost"].items():
        if not is_restated(facts, int(partition), offset):
            brief = "; brokers restate it" if is_served else "; no broker knows what was deleted"
            yield Detection(
                head_lost_sentence(name, partition, offset),
                brief=f"{brief} (`statechannel doctor`)",
                next_step=head_lost_hint(name, is_served=is_served),
            )
    for partition, known in topics["positions_lost"].items():
        yield Detection(
            positions_lost_sentence(name, partition, known),
            brief=" (`statechannel doctor`)",
            next_step=KEEP_RUNNING if is_served else f"No broker knows what was lost: {RESTORE}",
        )


def head_lost_sentence(topic: str, partition: int | str, first_offset: int) -> str:
    """Why a first offset above 0 is a loss."""
    return f"{topic}-{partition} begins at offset {first_offset}: the log has lost its head, as compaction never moves its start"


def positions_lost_sentence(topic: str, partition: int | str, known: int) -> str:
    """Why the log lacks what brokers have read."""
    return (
        f"brokers have read {topic}-{partition} through offset {known}, which this log does not have: the topic was deleted and "
        "created again, or lost records at its end"
    )


def head_lost_hint(topic: str, *, is_served: bool | None = None) -> str:
    """What to do about a head that was deleted.

    Args:
        is_served: Whether a broker is caught up, and so knows what was deleted; None: that is unknown.
    """
    policy = (
        f"Set cleanup.policy of {topic} to compact, and find out who may change it or delete records "
        f"(`kafka-acls.sh --list --topic {topic}`)."
    )
    if is_served is None:
        return f"{KEEP_RUNNING} If none is alive: {RESTORE} {policy}"
    return f"{KEEP_RUNNING} {policy}" if is_served else f"No broker knows what was deleted: {RESTORE} {policy}"


def topic_differences(facts: Facts, _: ConditionLimits, *, is_hard: bool) -> Iterator[Detection]:
    for row in facts["topics"]["differences"]:
        if row["hard"] is is_hard:
            yield Detection(
                f"{row['topic']}: {row['setting']} is {row['actual']}, required {row['wanted']}",
                row["topic"],
                brief=" (`statechannel doctor` has the command)",
                facts=row,
                next_step=row["command"] or "Nothing has to be done.",
            )


def replicas_differ(facts: Facts, _: ConditionLimits) -> Iterator[Detection]:
    for item in replica_differences({row["broker"]: row.get("differs", ()) for row in alive_of(facts)}):
        yield Detection(item.sentence, item.broker, brief=" (`statechannel doctor` says what to do)")


def no_broker(facts: Facts, _: ConditionLimits) -> Iterator[Detection]:
    if not alive_of(facts):
        yield Detection("no broker is alive")


def no_leader(facts: Facts, _: ConditionLimits) -> Iterator[Detection]:
    if alive_of(facts) and facts["leader"] is None:
        without_ms = facts["no_leader_for_ms"]
        is_new = without_ms is None or without_ms < BRIEF_MS
        message = "no broker leads" if is_new else f"no broker has led for {duration(without_ms)}"
        yield Detection(message, facts={"for_ms": without_ms}, due_to="kafka-silent")


def repair_paused(facts: Facts, _: ConditionLimits) -> Iterator[Detection]:
    for row in facts["repair_paused"]:
        since = "" if row["lost_since_ms"] is None else f"; lost since {moment(row['lost_since_ms'])}"
        left = "" if row["left_ms"] is None else f"; it goes on by itself in {duration(row['left_ms'])}"
        message = f"{row['broker']} paused repair: {row['why']}{since}{left}"
        brief = "; if they are dead: `statechannel repair resume`"
        yield Detection(message, row["broker"], brief=brief, due_to="broker-lost")


def none_accepts(facts: Facts, _: ConditionLimits) -> Iterator[Detection]:
    alive = alive_of(facts)
    if alive and not any(row["accepting"] for row in alive):
        yield Detection("no broker accepts bundles", due_to="kafka-silent")


def forged(facts: Facts, _: ConditionLimits) -> Iterator[Detection]:
    for sentence in facts["disowned"]:
        yield Detection(sentence)


def duplicate_id(facts: Facts, _: ConditionLimits) -> Iterator[Detection]:
    if facts["doubled"]:
        yield Detection(f"two processes use the broker id {all_of(facts['doubled'])}")


def behind(facts: Facts, _: ConditionLimits) -> Iterator[Detection]:
    if facts["blind_since_ms"] is None and facts["behind_s"] > BEHIND_S:
        yield Detection(f"this process is {facts['behind_s']:.0f} s behind the end of the log")


def junk(facts: Facts, _: ConditionLimits) -> Iterator[Detection]:
    junk_now = facts["junk"]
    if junk_now is not None:
        kinds = ", ".join(f"{count:,} {verdict}" for verdict, count in junk_now.verdicts.items())
        records = f"{junk_now.records:,} records in {junk_now.window_s:.0f} s are none"
        yield Detection(f"junk on the channel: {records} ({kinds})")


def versions(facts: Facts, _: ConditionLimits) -> Iterator[Detection]:
    counts = Counter(row["software"] for row in alive_of(facts) if row.get("software") is not None)
    if len(counts) > 1:
        listed = ", ".join(f"{version} ({count})" for version, count in sorted(counts.items()))
        yield Detection(f"brokers of several versions: {listed}")


LATE_MS: Final = 5_000
"""A broker that is further behind the log is a condition."""
LATELY_MS: Final = 600_000
"""What a broker reports of hooks, declines and refused records is a condition for this time after the newest."""
BLOCKED_LATELY_MS: Final = 60_000
THROTTLED_LATELY_MS: Final = 30_000
_UNSPREAD_AT_LEAST: Final = 2
"""Bundles of one broker, in multiples of the number of brokers, from which a broker without any is worth a note."""
_OF_HOOKS: Final[Mapping[str, tuple[str, str]]] = {
    Hook.ON_SERVE: (
        "{bundle} is assigned to {broker}: lookups name it, and it may not serve it. Nothing calls the hook again.",
        "Fix the cause, then `statechannel unload {bundle}`: the next lookup assigns it again.",
    ),
    Hook.ON_RELEASE: (
        "A bundle that moves away waits for it until its deadline (`hooks.deadline_s`), and no broker serves it meanwhile.",
        "Move no bundles from {broker} until it is fixed, or restart it.",
    ),
    Hook.ON_MOVED: (
        "Nothing waits for it. Clients of {bundle} that are still connected were not redirected; a lookup names the owner.",
        "Fix the cause.",
    ),
    Hook.ON_SPLIT: (
        "The split was given up, and {broker} serves the parent on.",
        "Fix the cause, then split again: `statechannel split {bundle}`.",
    ),
    Hook.ON_SPLIT_DONE: (
        "The split is done, and its parts are served. What {broker} had stored of {bundle} may be left behind.",
        "Fix the cause, and delete what is left of {bundle}: no hook names it again.",
    ),
}
"""What the failure of a hook leads to, and what to do; `on_own` is reported by its declines."""
_OF_ANY_HOOK: Final = ("Nothing waits for it.", "Fix the cause.")
DRAIN_ENDS: Final = {
    "left-bundles": "has moved what it could",
    "timed-out": "timed out",
    "failed": "failed",
    "unanswered": "ended without an answer",
}
"""How a drain ended that did not empty its broker, by its state."""


def broker_lost(facts: Facts, _: ConditionLimits) -> Iterator[Detection]:
    rows, alive = [row for row in facts["brokers"] if row["state"] == "lost"], alive_of(facts)
    if rows:
        lost = [f"{row['broker']}, last heard {duration(row['heard_ago_ms'])} ago" for row in rows]
        is_alone = len(alive) == 1 < len(lost)
        left = f"; {alive[0]['broker']} alone is left, with {alive[0]['bundles']} bundles" if is_alone else ""
        message, first = f"lost without a goodbye, and not back: {named(lost)}{left}", rows[0]["broker"]
        since_ms = facts["at_ms"] - max(row["heard_ago_ms"] for row in rows)
        subject = first if len(rows) == 1 else None
        yield Detection(message, subject, since_ms, facts={"broker": first}, due_to="no-broker")


def broker_suspect(facts: Facts, limits: ConditionLimits) -> Iterator[Detection]:
    if facts["blind_since_ms"] is not None:
        return
    silent = [row for row in alive_of(facts) if row["heard_ago_ms"] >= limits.suspect_ms]
    if silent:
        words = [f"{row['broker']} for {duration(row['heard_ago_ms'])}" for row in silent]
        since_ms = facts["at_ms"] - max(row["heard_ago_ms"] for row in silent)
        yield Detection(f"silent, and counted as lost at {duration(limits.lost_ms)}: {named(words)}", since_ms=since_ms)


def safe_mode(facts: Facts, _: ConditionLimits) -> Iterator[Detection]:
    safe = [row["broker"] for row in facts["brokers"] if row["mode"] == "safe"]
    if safe:
        about = {"broker": safe[0], "brokers": safe}
        yield Detection(f"in safe mode, without Kafka: {named(safe)}", facts=about, due_to="kafka-silent")


def _lately(facts: Facts, trouble: str, within_ms: float) -> Iterator[tuple[BrokerFacts, Mapping[str, Any]]]:
    """The brokers that report a trouble which is not older than that, each with what it reports."""
    for row in facts["brokers"]:
        report = row.get(trouble)
        if report is not None and report["ago_ms"] <= within_ms:
            yield row, report


def loop_blocked(facts: Facts, _: ConditionLimits) -> Iterator[Detection]:
    for row, blocked in _lately(facts, "blocked", BLOCKED_LATELY_MS):
        times = "once" if blocked["times"] == 1 else f"{blocked['times']} times"
        hook = f", hook {blocked['hook']}" if blocked["hook"] else ""
        yield Detection(
            f"{row['broker']}'s event loop was blocked ({blocked['place']}{hook}): {times} since its start, the last time "
            f"{duration(blocked['ago_ms'])} ago",
            row["broker"],
            facts={"broker": row["broker"]},
        )


def failing_hooks(row: BrokerFacts) -> list[tuple[str, Mapping[str, Any]]]:
    """Which hooks of a broker failed lately; one that declines bundles by `on_own` is reported by its declines."""
    return [
        (hook, failed)
        for hook, failed in sorted((row.get("hooks_failed") or {}).items())
        if hook != Hook.ON_OWN and failed["ago_ms"] <= LATELY_MS
    ]


def hook_fails(facts: Facts, _: ConditionLimits) -> Iterator[Detection]:
    for row in facts["brokers"]:
        for hook, failed in failing_hooks(row):
            names = {"broker": row["broker"], "bundle": failed["bundle"]}
            times = "once" if failed["times"] == 1 else f"{failed['times']} times since {moment(failed['since_ms'])}"
            may_not = f"; {failed['bundle']} may be assigned to {row['broker']} and not be served"
            effect, todo = _OF_HOOKS.get(hook, _OF_ANY_HOOK)
            yield Detection(
                f"{row['broker']}'s hook {hook} failed {times}, the last time {duration(failed['ago_ms'])} ago: {failed['error']}"
                + (may_not if hook == Hook.ON_SERVE else ""),
                row["broker"],
                facts={"broker": row["broker"], "effect": effect.format(**names), "todo": todo.format(**names)},
            )


def kafka_refuses(facts: Facts, _: ConditionLimits) -> Iterator[Detection]:
    for row, refused in _lately(facts, "refused", LATELY_MS):
        times = "once" if refused["times"] == 1 else f"{refused['times']} times"
        hint = LIMIT_HINTS.get(refused["reason"], f"Look at the log of {row['broker']}.")
        message = f"Kafka refuses records of {row['broker']}: {refused['message']} ({times})"
        since_ms = refused["since_ms"]
        brief, step = f", since {moment(since_ms)}", hint[0].upper() + hint[1:]
        yield Detection(message, row["broker"], since_ms, brief, next_step=step)


def kafka_throttles(facts: Facts, _: ConditionLimits) -> Iterator[Detection]:
    for row, throttled in _lately(facts, "throttled", THROTTLED_LATELY_MS):
        kind, since_ms = throttled["kind"], throttled["since_ms"]
        times = f"{throttled['throttled_ms'] / 1_000:.1f} s of the last {throttled['window_ms'] / 1_000:.0f} s"
        message = f"Kafka throttles the {kind} {throttled['client']} of {row['broker']}: {times} ({QUOTAS[kind]})"
        yield Detection(message, row["broker"], since_ms, f", since {moment(since_ms)}")


def broker_late(facts: Facts, _: ConditionLimits) -> Iterator[Detection]:
    late = [row for row in facts["brokers"] if (row["lag_ms"] or 0) >= LATE_MS]
    if late:
        words = [f"{row['broker']} by {duration(row['lag_ms'])}" for row in late]
        yield Detection(f"behind the log: {named(words)}", facts={"broker": late[0]["broker"]})


def drain_blocked(facts: Facts, _: ConditionLimits) -> Iterator[Detection]:
    """Brokers that take part, have bundles, and shut down or were drained in vain."""
    for row in alive_of(facts):
        name, left, cordon = row["broker"], row["bundles"], facts["cordons"].get(row["broker"])
        if not left:
            continue
        stay = "1 bundle" if left == 1 else f"{left:,} bundles"
        if row["draining"] and row["unplaced"] is not None:
            yield Detection(
                f"{name} shuts down, and {stay} cannot go to another broker",
                name,
                next_step="Change the policy that keeps them here, or start another broker.",
            )
        end = None if cordon is None else DRAIN_ENDS.get(cordon["drain_state"] or "")
        if cordon is not None and end is not None:
            why = f": {cordon['drain_message']}" if cordon["drain_message"] else ""
            message = f"the drain of {name} {end}, and {stay} stayed there{why}"
            yield Detection(message, name, cordon["drain_ended_ms"], facts={"broker": name})


def unspread(facts: Facts, _: ConditionLimits) -> Iterator[Detection]:
    """Who takes bundles and has none, but for those that are cordoned or in trouble."""
    declining = {row["broker"] for row in facts.get("declines", ()) if row["age_ms"] <= LATELY_MS}
    blocked = {row["broker"] for row, _ in _lately(facts, "blocked", BLOCKED_LATELY_MS)}
    takers = [
        row
        for row in facts["brokers"]
        if row["accepting"]
        and not row.get("cordoned")
        and row["broker"] not in declining | blocked
        and not failing_hooks(row)
    ]
    without = [row["broker"] for row in takers if not row["bundles"]]
    most = max(takers, key=lambda row: row["bundles"], default=None)
    if most is not None and without and most["bundles"] >= _UNSPREAD_AT_LEAST * len(takers):
        verb = "has" if len(without) == 1 else "have"
        yield Detection(f"{all_of(without)} {verb} no bundles, {most['broker']} has {most['bundles']}")


FLAPS_WINDOW_MS: Final = 300_000
"""For how long changes of owner are counted."""
_DOES: Final = {Hook.ON_RELEASE: "release", Hook.ON_OWN: "take", Hook.ON_SPLIT: "split"}
_PLACE: Final[Mapping[str, str]] = {
    UnplacedCause.POLICIES: "Change the policy or end the cordon that is named: `statechannel policy list`, `statechannel policy "
    "delete KIND NAME`, `statechannel uncordon BROKER`; or start a broker that they allow.",
    UnplacedCause.LIMITS: "Start another broker, or raise the limit that is named (`statechannel settings list`).",
    UnplacedCause.FAILURE: "The log of the broker that is named has the cause (the event placement-failed), and "
    "`statechannel doctor` reports policies that cannot be read.",
}


def bundles_declined(facts: Facts, limits: ConditionLimits) -> Iterator[Detection]:
    """Those that every broker that takes bundles declined, or that have had no owner for long."""
    return _declined(facts, [row for row in facts["declined_bundles"] if _unserved(facts, row, limits)])


def declined_by_some(facts: Facts, limits: ConditionLimits) -> Iterator[Detection]:
    """Those that another broker may still take, once it is asked."""
    some = [row for row in facts["declined_bundles"] if not _unserved(facts, row, limits)]
    return _declined(facts, [row for row in some if facts["at_ms"] - row["since_ms"] > BRIEF_MS])


def _unserved(facts: Facts, row: DeclinedFacts, limits: ConditionLimits) -> bool:
    return not row["not_asked"] or facts["at_ms"] - row["since_ms"] > limits.unserved_ms


def _declined(facts: Facts, refused: Sequence[DeclinedFacts]) -> Iterator[Detection]:
    """How many have no owner, which brokers declined them, why, since when, and which were not asked yet."""
    if not refused:
        return
    lately = {row["broker"] for row in facts.get("declines", ()) if row["age_ms"] <= LATELY_MS}
    brokers = sorted({broker for row in refused for broker in row["by"]})
    reasons = dict.fromkeys(reason for row in refused for reason in row["by"].values() if reason)
    first = next(iter(reasons), "")
    others = f", and {len(reasons) - 1} other reasons" if len(reasons) > 1 else ""
    many = "1 bundle has" if len(refused) == 1 else f"{len(refused)} bundles have"
    decline = "declines" if len(brokers) == 1 else "decline"
    waiting = sorted({broker for row in refused for broker in row["not_asked"]})
    of_all = " about all of them" if set(waiting) & set(brokers) else ""
    not_asked = f"; not asked{of_all} yet: {all_of(waiting)} (the next lookup does)" if waiting else ""
    message = (
        f"{many} no owner since {moment(refused[0]['since_ms'])}: {all_of(brokers)} {decline} "
        f"{'it' if len(refused) == 1 else 'them'}{f' ({first}{others})' if first else ''}{not_asked}"
    )
    is_one, bundle = len(refused) == 1, refused[0]["bundle"]
    names = {
        "bundle": bundle,
        "asked": ", ".join(refused[0]["not_asked"]),
        "brokers": all_of(sorted({*lately, *brokers})),
        "others": "" if is_one else ", and so for each that `statechannel bundles --unowned` lists",
    }
    brief = f": {bundle}" if is_one else "; `statechannel bundles --unowned` lists them"
    yield Detection(message, bundle if is_one else None, refused[0]["since_ms"], brief, names)


def bundles_unplaced(facts: Facts, _: ConditionLimits) -> Iterator[Detection]:
    rows = [row for row in facts["brokers"] if row.get("unplaced") is not None]
    newest = min(rows, key=lambda row: row["unplaced"]["ago_ms"], default=None)
    if newest is not None:
        unplaced = newest["unplaced"]
        many = max(row["unplaced"]["bundles"] for row in rows)
        more = "" if many == 1 else f" and {many - 1} more"
        yield Detection(
            f"{unplaced['bundle']}{more}: {unplaced['message']}; {newest['broker']} last looked for one "
            f"{duration(unplaced['ago_ms'])} ago",
            unplaced["bundle"],
            unplaced["since_ms"],
            next_step=_PLACE[unplaced.get("cause", UnplacedCause.POLICIES)],
        )


def without_owner(facts: Facts, _: ConditionLimits) -> Iterator[Detection]:
    unowned = facts["without_owner"]
    if unowned is None or (unowned["since_ms"] is not None and facts["at_ms"] - unowned["since_ms"] <= BRIEF_MS):
        return
    others = unowned["bundles"] - 1
    since = "" if unowned["since_ms"] is None else f" since {moment(unowned['since_ms'])}"
    many, which = (f"{others + 1} bundles were", "them") if others else ("1 bundle was", "it")
    more = f" and {others} more (`statechannel bundles --unowned`)" if others else ""
    bundle, brief = unowned["bundle"], "; a lookup of each assigns it"
    message = f"{many} served, no unload was requested, and{since} no broker owns {which}: {bundle}{more}"
    yield Detection(message, bundle, unowned["since_ms"], brief, {"bundle": bundle})


def owner_unreachable(facts: Facts, _: ConditionLimits) -> Iterator[Detection]:
    unserved = facts["without_service"]
    if unserved is None:
        return
    is_one, is_paused = unserved["bundles"] == 1, bool(facts["repair_paused"])
    many, wait = ("1 bundle is", "it waits") if is_one else (f"{unserved['bundles']} bundles are", "they wait")
    since = "" if unserved["since_ms"] is None else f" since {moment(unserved['since_ms'])}"
    verb = "is" if len(unserved["brokers"]) == 1 else "are"
    is_of_lost = {row["broker"] for row in facts["brokers"] if row["state"] == "lost"}.issuperset(unserved["brokers"])
    unplaced = max((row["unplaced"]["bundles"] for row in facts["brokers"] if row.get("unplaced")), default=0)
    goes_on = ", and repair is paused" if is_paused else f": {wait} for repair"
    yield Detection(
        f"{many} without service{since}: {all_of(unserved['brokers'])} {verb} not alive{goes_on}",
        since_ms=unserved["since_ms"],
        facts={"is_paused": is_paused},
        due_to="broker-lost" if is_of_lost else "bundles-unplaced" if unplaced >= unserved["bundles"] else None,
        next_step="Start the lost brokers; or, if they are dead, `statechannel repair resume`." if is_paused else None,
    )


def slow_operation(facts: Facts, limits: ConditionLimits) -> Iterator[Detection]:
    """Those that wait for the repair of a lost broker are another condition."""
    slow = [
        row
        for row in facts["in_flight"]
        if (row["age_ms"] or 0) > limits.in_flight_ms and not row.get("waits_for_repair")
    ]
    if slow:
        first = slow[0]
        many = "1 bundle is" if len(slow) == 1 else f"{len(slow)} bundles are"
        broker, hook = first.get("waits_for_broker"), first.get("waits_for_hook")
        waits = f": it waits for {broker} to {_DOES[hook]} it (hook {hook})" if broker and hook else ""
        yield Detection(
            f"{many} in flight for longer than {duration(limits.in_flight_ms)}; {first['bundle']} for "
            f"{duration(first['age_ms'])}{waits}",
            first["bundle"],
            facts["at_ms"] - first["age_ms"],
            facts={
                "bundle": first["bundle"],
                "age_ms": first["age_ms"],
                "broker": broker or first.get("to") or first.get("from"),
                "of_hook": f" for its hook {hook}" if hook else "",
            },
        )


def awaiting_repair(facts: Facts, limits: ConditionLimits) -> Iterator[Detection]:
    oldest_ms = facts["oldest_debt_ms"]
    if facts["debts"] and (oldest_ms is None or oldest_ms >= limits.debt_ms):
        age = "" if oldest_ms is None else f", the oldest for {duration(oldest_ms)}"
        yield Detection(f"keys awaiting repair: {len(facts['debts'])}{age}", facts={"key": facts["debts"][0]["key"]})


def flapping(facts: Facts, _: ConditionLimits) -> Iterator[Detection]:
    if facts["flaps"]:
        worst = facts["flaps"][0]
        causes = [(worst.balancer, "by the balancer"), (worst.failure, "after failures")]
        who = " and ".join(f"{times} {how}" for times, how in causes if times)
        planned = f" ({worst.planned} planned moves are not counted)" if worst.planned else ""
        others = f"; {len(facts['flaps']) - 1} more change theirs as often" if len(facts["flaps"]) > 1 else ""
        of_failures = "Its timeline names what failed each time: the brokers lost, or their hooks."
        yield Detection(
            f"flapping: {worst.bundle} has changed its owner {worst.balancer + worst.failure} times in "
            f"{FLAPS_WINDOW_MS // 60_000} minutes, {who}{planned}{others}",
            worst.bundle,
            next_step=None if worst.balancer >= worst.failure else of_failures,
        )
