"""Checks of the channel: live brokers, leader, keys awaiting repair, stuck operations, unserved bundles, unreadable records."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, cast

from statechannel.cli.doctor.checks import (
    DoctorCheck,
    DoctorFacts,
    DoctorFinding,
    Severity,
    critical,
    info,
    ok,
    warning,
)
from statechannel.cli.status.figures import registry_facts
from statechannel.clocks import duration
from statechannel.conditions.facts import NO_TOPIC_FACTS, ConditionLimits, Facts, Occurrence, TopicFacts, is_restated
from statechannel.conditions.kinds import LATELY_MS
from statechannel.conditions.table import CONDITIONS, current, current_of, reasons_of
from statechannel.printable import term_text

JOINING_WARNING_MS = 60_000
CLOCKS_WARNING_MS = 5_000
_SHOWN = 5
_OF_OTHER_CHECKS = {
    "awaiting-repair", "broker-late", "broker-lost", "broker-suspect", "bundles-declined", "bundles-unplaced",
    "declined-by-some", "duplicate-id", "forged", "head-lost", "hook-fails", "kafka-refuses", "kafka-throttles",
    "loop-blocked", "newer-format", "no-broker", "no-leader", "owner-unreachable", "partitions-differ", "repair-paused",
    "replicas-differ", "safe-mode", "slow-operation", "topic-differs", "topic-unfit", "unspread", "versions",
    "without-owner",
}  # fmt: skip
"""Conditions that have a check of their own, which adds what only the doctor reads."""
_NOBODY = info("no broker is alive", checked=False)


def of_log(code: str, facts: DoctorFacts) -> list[Occurrence]:
    """The conditions of one kind, by what was read of the log and of Kafka."""
    return current_of(code, cast("Facts", facts.status), ConditionLimits.of(facts.settings))


def heard(code: str, facts: DoctorFacts) -> list[Occurrence]:
    """The conditions of one kind, by what the registry and Kafka say."""
    of_registry: Facts = (
        {} if facts.registry is None or facts.story is None else registry_facts(facts.registry, facts.story)
    )
    topics: TopicFacts = {
        **NO_TOPIC_FACTS,
        "heads_lost": {str(partition): first for partition, first in sorted(facts.first_offsets.items()) if first > 0},
        "positions_lost": {str(partition): known for partition, known in facts.positions_lost.items()},
    }
    partitions = facts.status.get("partitions", ())
    known: Facts = {
        "brokers": (),
        **of_registry,
        "channel": facts.settings.channel.name,
        "topics": topics,
        "partitions": partitions,
    }
    return current_of(code, known, ConditionLimits.of(facts.settings))


Read = Callable[[str, DoctorFacts], list[Occurrence]]


def listed(facts: DoctorFacts, read: Read, severity: Severity, *codes: str) -> Iterator[DoctorFinding]:
    """The conditions of these kinds."""
    return (DoctorFinding.of(severity, condition) for code in codes for condition in read(code, facts))


def view(code: str, severity: Severity, read: Read) -> Callable[[DoctorFacts], Iterator[DoctorFinding]]:
    """A check that lists the conditions of one kind."""
    return lambda facts: listed(facts, read, severity, code)


def others(facts: DoctorFacts) -> Iterator[DoctorFinding]:
    """The conditions without a check of their own."""
    kinds = (kind for kind in CONDITIONS if kind.code not in _OF_OTHER_CHECKS)
    conditions = current(cast("Facts", facts.status), ConditionLimits.of(facts.settings), kinds)
    worse = reasons_of(conditions)
    for condition in conditions:
        yield DoctorFinding.of(Severity.ERROR if condition in worse else Severity.WARNING, condition)


def unreadable(facts: DoctorFacts) -> Iterator[DoctorFinding]:
    """Whether topics, registry and log could be read."""
    for name, failed in facts.failed.items():
        if not failed.reported:
            # An auditor may look at everything of the channel, and need not see how Kafka's own brokers are set.
            severity = Severity.INFO if name == "nodes" else Severity.ERROR
            yield DoctorFinding(severity, failed.what, "Checks that need it were skipped.", failed.hint)


def registry(facts: DoctorFacts) -> Iterator[DoctorFinding]:
    """Brokers that are alive, lost, duplicated, joining, or in safe mode."""
    seen, story = facts.registry, facts.story
    if seen is None or story is None:
        return
    for nobody in heard("no-broker", facts):
        last = seen.last_lost
        ago = "" if last is None else f"; the last one was {last.broker}, {_ago(seen.read_at_ms - last.last_heard_ms)}"
        yield DoctorFinding.of(Severity.CRITICAL if facts.status.get("bundles") else Severity.ERROR, nobody, ago)
    at_ms = seen.read_at_ms
    outdated = {broker for partition in _stopped(facts) for broker in _cannot_read(facts, partition)}
    for code in ("broker-lost", "broker-suspect", "safe-mode"):
        for condition in heard(code, facts):
            if not outdated.issuperset(condition.facts.get("brokers", (None,))):
                yield DoctorFinding.of(Severity.WARNING, condition)
    for item in seen.dismissed:
        yield info(f"{item.sentence} ({_ago(at_ms - item.at_ms)}), after it had been lost")
    yield from listed(facts, heard, Severity.ERROR, "duplicate-id")
    for broker, member in sorted(facts.alive.items()):
        if broker in outdated:
            continue  # the finding about software says why it is in safe mode, or joins for ever
        mode, process = member.info.get("mode"), story.processes.get(broker)
        if mode == "settling":
            yield warning(
                f"{broker} is in settling mode",
                "It has read what it missed, and waits for heartbeats of the others.",
                f"If this persists, check the network between {broker} and Kafka.",
            )
        joined_ms = 0 if process is None else at_ms - process.first_ms
        if not member.caught_up and joined_ms > JOINING_WARNING_MS:
            yield warning(
                f"{broker} has been joining for {duration(joined_ms)}",
                "It owns and answers nothing until it has caught up, which needs a clean heartbeat.",
                "Check the keys awaiting repair below, and that there is a leader: `statechannel status`.",
            )
    alive = sorted(facts.alive)
    if alive:
        are_alive = "1 broker is alive" if len(alive) == 1 else f"{len(alive)} brokers are alive"
        yield ok(f"{are_alive}: {_some(alive)}")


def software(facts: DoctorFacts) -> Iterator[DoctorFinding]:
    """Versions of the brokers, and the formats that they read."""
    for condition in heard("versions", facts):
        yield DoctorFinding.of(Severity.INFO, condition)._replace(todo="")
    for partition, condition in zip(_stopped(facts), of_log("newer-format", facts), strict=True):
        behind = _cannot_read(facts, partition)
        yield DoctorFinding.of(Severity.CRITICAL, condition, f", which {_some(behind)} cannot read" if behind else "")
    if facts.nobody and not _stopped(facts):
        yield _NOBODY


def _stopped(facts: DoctorFacts) -> dict[str, dict[str, Any]]:
    """The record of a newer format at which this program stopped reading, by partition."""
    return dict(facts.status.get("stopped", {}))


def _cannot_read(facts: DoctorFacts, partition: str) -> list[str]:
    """Live brokers that do not read the format of a partition."""
    wanted = _stopped(facts)[partition]["format"]
    return [name for name, member in sorted(facts.alive.items()) if wanted not in member.formats]


def clocks(facts: DoctorFacts) -> Iterator[DoctorFinding]:
    """Clocks of the brokers compared with the log's."""
    if facts.story is None:
        return
    if facts.nobody:
        yield _NOBODY
    for broker in sorted(facts.alive):
        process = facts.story.processes.get(broker)
        behind_ms = None if process is None else process.clock_behind_ms
        if behind_ms is not None and abs(behind_ms) > CLOCKS_WARNING_MS:
            yield warning(
                f"the clock of {broker} is {duration(abs(behind_ms))} {'behind' if behind_ms > 0 else 'ahead of'} Kafka's",
                "The channel is not affected: it uses the log's time. But the times in that broker's own logs, its load "
                "reports and the ends of overrides there are wrong.",
                f"Synchronize the clock of {broker}'s machine by NTP.",
            )


def leader(facts: DoctorFacts) -> Iterator[DoctorFinding]:
    """Exactly one leader."""
    leading = sorted(name for name, member in facts.alive.items() if member.info.get("leading") is True)
    if facts.nobody:
        yield info("no broker is alive to lead")
    for condition in heard("no-leader", facts):
        without_ms = condition.facts["for_ms"]
        long = without_ms is None or without_ms > 2 * facts.settings.kafka.session_timeout_ms
        yield DoctorFinding.of(Severity.ERROR if long else Severity.WARNING, condition)
    if len(leading) > 1:
        yield warning(
            f"several brokers claim leadership: {_some(leading)}",
            "Harmless (proposals of all of them are judged alike), but it should last no longer than a heartbeat.",
            "Check again; if it persists, one of them is cut off from the election's group: see its log.",
        )
    if len(leading) == 1:
        term, since_ms = facts.status.get("term"), facts.status.get("leading_for_ms")
        since = f", for {duration(since_ms)}" if since_ms is not None else ""
        yield ok(f"{leading[0]} leads{since}{term_text(term)}")


def forged(facts: DoctorFacts) -> Iterator[DoctorFinding]:
    """Records under the name of a broker that did not write them, by those who read them, also if ended."""
    conditions = heard("forged", facts)
    if facts.nobody and not conditions:
        yield _NOBODY
    for condition in conditions:
        yield DoctorFinding.of(Severity.CRITICAL, condition)._replace(
            todo=f"{condition.next_step} The finding ends after an hour."
        )


def patience_alike(facts: DoctorFacts) -> Iterator[DoctorFinding]:
    """Whether all brokers and this command have the same expiry."""
    if facts.nobody:
        yield _NOBODY
    brokers: dict[float, list[str]] = {}
    for name, member in sorted(facts.alive.items()):
        expiry_s = member.info.get("expiry_s")
        if isinstance(expiry_s, int | float):
            brokers.setdefault(float(expiry_s), []).append(name)
    ours = facts.settings.membership.expiry_s
    if len(brokers) > 1:
        words = "; ".join(f"{expiry:g} s: {_some(names)}" for expiry, names in sorted(brokers.items()))
        yield warning(
            f"brokers differ in membership.expiry_s ({words})",
            "They disagree on which brokers are lost; repair starts by the leader's own expiry.",
            "Give all brokers the same settings.",
        )
    elif brokers and ours not in brokers:
        yield info(
            f"membership.expiry_s is {ours:g} here, and {next(iter(brokers)):g} at the brokers",
            "A broker that is shown as lost here may not be lost for the brokers.",
            "Use the settings of the brokers for commands (`--config`).",
        )


def lag(facts: DoctorFacts) -> Iterator[DoctorFinding]:
    """Lag of each broker behind the log."""
    if facts.nobody:
        yield _NOBODY
    limit_ms = facts.settings.repair.in_flight_limit_s * 1_000
    yield from listed(facts, of_log, Severity.WARNING, "loop-blocked", "hook-fails")
    for condition in of_log("broker-late", facts):
        late = [row["lag_ms"] or 0 for row in facts.status["brokers"]]
        yield DoctorFinding.of(Severity.ERROR if max(late) > limit_ms else Severity.WARNING, condition)


def debts(facts: DoctorFacts) -> Iterator[DoctorFinding]:
    """Keys awaiting repair, with the duration."""
    owed = facts.status.get("debts", ())
    if not owed:
        return
    lag_ms = facts.settings.channel.min_compaction_lag_ms
    alarm_ms = lag_ms * facts.settings.observe.debt_alarm_fraction
    oldest_ms = facts.status.get("oldest_debt_ms")
    conditions = of_log("awaiting-repair", facts)
    if not conditions:
        yield ok(f"keys awaiting repair: {len(owed)}; they will be repaired shortly")
    for condition in conditions:
        if oldest_ms is not None and oldest_ms >= lag_ms:
            severity, more = (
                Severity.CRITICAL,
                f" Past the lag ({duration(lag_ms)}) the cleaner may remove accepted records.",
            )
        elif oldest_ms is None or oldest_ms >= alarm_ms:
            severity, more = Severity.ERROR, f" The alarm is at {duration(alarm_ms)} of a lag of {duration(lag_ms)}."
        else:
            severity, more = Severity.WARNING, " The leader repairs it if it can."
        yield DoctorFinding.of(severity, condition)._replace(why=condition.consequence + more)


def in_flight(facts: DoctorFacts) -> Iterator[DoctorFinding]:
    """Hand-overs that last too long."""
    repair = facts.settings.repair
    for condition in of_log("slow-operation", facts):
        stuck = condition.facts["age_ms"] > 1_000 * repair.in_flight_limit_s + 2_000 * repair.interval_s
        late = f" The leader should have repaired them after {repair.in_flight_limit_s:g} s." if stuck else ""
        severity = Severity.ERROR if stuck else Severity.WARNING
        yield DoctorFinding.of(severity, condition)._replace(why=condition.consequence + late)


def orphans(facts: DoctorFacts) -> Iterator[DoctorFinding]:
    """Bundles whose owner is lost, and repair."""
    is_unserved = bool(facts.status.get("without_service"))
    yield from listed(facts, of_log, Severity.ERROR if is_unserved else Severity.WARNING, "repair-paused")
    if facts.nobody and not is_unserved:
        yield _NOBODY
    for condition in of_log("owner-unreachable", facts):
        yield _unserved(facts, condition, Severity.ERROR if condition.facts["is_paused"] else Severity.WARNING)


def without_owner(facts: DoctorFacts) -> Iterator[DoctorFinding]:
    """Bundles that were served and have no owner, though no unload was requested."""
    for condition in of_log("without-owner", facts):
        yield _unserved(facts, condition, Severity.WARNING)


def _unserved(facts: DoctorFacts, condition: Occurrence, severity: Severity) -> DoctorFinding:
    """Bundles that no broker serves: of this severity while there are brokers."""
    if facts.nobody:
        return critical(condition.message, "No broker serves them.", "Start brokers.")
    return DoctorFinding.of(severity, condition)


def declines(facts: DoctorFacts) -> Iterator[DoctorFinding]:
    """Bundles that no broker takes, and brokers that declined some lately, mostly since a hook fails."""
    memory_s = facts.settings.repair.decline_memory_s
    for code, severity in (("bundles-declined", Severity.CRITICAL), ("declined-by-some", Severity.WARNING)):
        for condition in of_log(code, facts):
            yield DoctorFinding.of(severity, condition, condition.brief)
    for row in facts.status.get("declines", ()):
        if not row["waiting"] and row["age_ms"] > LATELY_MS:
            continue
        yield warning(
            f"{row['broker']} declined {row['bundle']} {_ago(row['age_ms'])}"
            f"{': ' + row['reason'] if row['reason'] else ''} ({row['times']} times in all)",
            f"It is asked again after {memory_s:g} s, sooner where no other broker may take it; others are asked meanwhile.",
            f"The event hook.failed in the log of {row['broker']} has the traceback; `statechannel why {row['bundle']}`.",
        )


def head(facts: DoctorFacts) -> Iterator[DoctorFinding]:
    """Whether the channel's log still has its first records, or brokers have restated what was deleted."""
    channel = facts.channel
    for partition, first_offset in sorted(facts.first_offsets.items()):
        if channel is not None and first_offset > 0 and is_restated(facts.status, partition, first_offset):
            yield info(
                f"{channel.name}-{partition} begins at offset {first_offset}: what was deleted was restated or given up since"
            )
    yield from listed(facts, heard, Severity.CRITICAL, "head-lost")


def partitions(facts: DoctorFacts) -> Iterator[DoctorFinding]:
    """Whether all brokers read the same number of partitions, and whether Kafka has more."""
    channel, differ = facts.channel, list(listed(facts, heard, Severity.CRITICAL, "partitions-differ"))
    yield from differ
    if channel is not None and not differ and channel.partitions > len(facts.first_offsets):
        yield info(
            f"{channel.name} has {channel.partitions} partitions, of which the channel uses {len(facts.first_offsets)}: the "
            "others are unused"
        )


def log(facts: DoctorFacts) -> Iterator[DoctorFinding]:
    """Whether the log is complete."""
    status = facts.status
    if heard("head-lost", facts):
        yield info("the log has lost records", checked=False)
        return
    if facts.misplaced:
        yield warning(
            f"{facts.misplaced} records lie in partitions in which their namespaces do not belong (wrong-partition)",
            "They do not count. The program that wrote them used another number of partitions.",
            "`statechannel audit rejected` lists them with their writers.",
        )
    if status.get("tentative"):
        yield warning(
            "the log was compacted, and no heartbeat vouches for the remaining records",
            "Owners are tentative; a broker that starts alone accepts them as the truth (cold start).",
            "Start a broker, or find out why the running ones write no clean heartbeat (keys awaiting repair, no leader).",
        )
        return
    many, assigned, waiting = (status.get(name, 0) for name in ("bundles", "assigned", "unassigned"))
    moving = many - assigned - waiting
    on_their_way = f", {moving} in flight" if moving > 0 else ""
    yield ok(f"the log is complete: {many} bundles, {assigned} assigned, {waiting} not{on_their_way}")


def _ago(length_ms: float) -> str:
    return f"{duration(max(0, length_ms))} ago"


def _some(names: list[str]) -> str:
    shown = ", ".join(names[:_SHOWN])
    return shown if len(names) <= _SHOWN else f"{shown} and {len(names) - _SHOWN} more"


CHECKS = (
    DoctorCheck("head", "the log has its first records", head, needs=("kafka", "topics", "head")),
    DoctorCheck(
        "partitions", "all brokers read the same partitions", partitions, needs=("kafka", "topics", "head", "registry")
    ),
    DoctorCheck(
        "brokers-states",
        "brokers hold the same accepted states",
        view("replicas-differ", Severity.CRITICAL, heard),
        needs=("kafka", "registry"),
    ),
    DoctorCheck("log", "the log is complete", log, needs=("kafka", "log")),
    DoctorCheck("readable", "topics, registry and log can be read", unreadable, needs=("kafka",)),
    DoctorCheck("brokers", "brokers in the registry", registry, needs=("kafka", "registry")),
    DoctorCheck(
        "software",
        "all brokers have the same version, and read the log's format",
        software,
        needs=("kafka", "registry"),
    ),
    DoctorCheck("brokers-clocks", "brokers' clocks agree with Kafka's", clocks, needs=("kafka", "registry")),
    DoctorCheck("brokers-patience", "brokers have the same expiry", patience_alike, needs=("kafka", "registry")),
    DoctorCheck("leader", "exactly one leader", leader, needs=("kafka", "registry")),
    DoctorCheck(
        "forged",
        "no broker of the last hour has read a record in its name that it did not write",
        forged,
        needs=("kafka", "registry"),
    ),
    DoctorCheck(
        "lag", "no broker is behind the log, blocked, or has hooks that fail", lag, needs=("kafka", "registry", "log")
    ),
    DoctorCheck("debts", "no key awaits repair", debts, needs=("kafka", "log"), title="awaiting-repair"),
    DoctorCheck("in-flight", "no hand-over takes too long", in_flight, needs=("kafka", "log")),
    DoctorCheck("declines", "no broker declines bundles", declines, needs=("kafka", "log")),
    DoctorCheck(
        "unplaced",
        "placement finds a broker for every bundle asked for",
        view("bundles-unplaced", Severity.CRITICAL, of_log),
        needs=("kafka", "log"),
    ),
    DoctorCheck("orphans", "every owner is alive, and repair is active", orphans, needs=("kafka", "registry", "log")),
    DoctorCheck("conditions", "no other condition of `status` holds", others, needs=("kafka", "log")),
    DoctorCheck("without-owner", "no bundle has lost its owner", without_owner, needs=("kafka", "log")),
    DoctorCheck(
        "spread",
        "no broker is without bundles while another has many",
        view("unspread", Severity.INFO, of_log),
        needs=("kafka", "log"),
    ),
)
