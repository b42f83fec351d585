"""Checks of the channel: live brokers, leader, keys awaiting repair, stuck operations, unserved bundles, unreadable records."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from statechannel.audit.forged_records import FORGED_HINT
from statechannel.cli.doctor.checks import DoctorCheck, DoctorFacts, DoctorFinding, Severity
from statechannel.cli.kit.output import duration
from statechannel.cli.status.health import (
    LAG_WARNING_MS,
    HealthLimits,
    blocked_sentence,
    decline_sentence,
    failing_hooks,
    failing_takers,
    newest_unplaced,
    pause_sentence,
    slow_operations,
    term_text,
    unowned_sentence,
    unplaced_sentence,
    unserved_by_all,
    unserved_by_some,
    unspread,
    without_service_sentence,
)
from statechannel.engine.effects import Hook
from statechannel.engine.membership import Member
from statechannel.engine.placement import LONE_TRIES_PART
from statechannel.engine.troubles import UnplacedCause
from statechannel.protocol.record import FORMAT

JOINING_WARNING_MS = 60_000
CLOCKS_WARNING_MS = 5_000
DECLINES_WARNING_MS = 600_000
_SHOWN = 5
_OF_ANY_HOOK = ("Nothing waits for it.", "Fix the cause.")
_OF_HOOKS: Mapping[str, tuple[str, str]] = {
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
_NOBODY = DoctorFinding(Severity.INFO, "no broker is alive", checked=False)


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
    alive = seen.members.alive
    if not alive:
        last = seen.last_lost
        heard = (
            "" if last is None else f"; the last one was {last.broker}, {_ago(seen.read_at_ms - last.last_heard_ms)}"
        )
        yield DoctorFinding(
            Severity.CRITICAL if facts.status.get("bundles") else Severity.ERROR,
            f"no broker is alive{heard}",
            "No bundle is served, assigned or repaired.",
            "Start brokers: `statechannel broker run`, or your own that embeds the channel. See the logs of the stopped ones.",
        )
    at_ms = seen.read_at_ms
    lost = [
        process
        for process in seen.members.lost.values()
        if (process.broker, process.incarnation) not in seen.members.gone
    ]
    if lost:
        names = [f"{process.broker} (last heard {_ago(at_ms - process.last_heard_ms)})" for process in lost]
        yield DoctorFinding(
            Severity.WARNING,
            f"lost without a goodbye, and not back: {_some(names)}",
            "Bundles of a lost broker are reassigned, and until then no broker serves them; those that are left carry all."
            if alive
            else "Bundles of a lost broker wait until one is alive.",
            "Check their logs and machines, and start them again. One that is gone for good: `statechannel broker dismiss "
            f"{lost[0].broker}`; else it is shown for {duration(facts.settings.membership.lost_shown_s * 1_000)} (setting "
            "membership.lost_shown_s).",
        )
    for item in seen.dismissed:
        yield DoctorFinding(Severity.INFO, f"{item.sentence} ({_ago(at_ms - item.at_ms)}), after it had been lost")
    for broker in story.doubled_at(at_ms):
        yield DoctorFinding(
            Severity.ERROR,
            f"two processes use the broker id {broker}",
            "Only the later one counts; the other one stops as soon as it reads the later one's heartbeat.",
            "Find the second process and stop it; give it another id if it is another broker.",
        )
    outdated = {broker for partition in _stopped(facts) for broker in _cannot_read(facts, partition)}
    for broker, member in sorted(alive.items()):
        if broker in outdated:
            continue  # the finding about software says why it is in safe mode, or joins for ever
        mode, process = member.info.get("mode"), story.processes.get(broker)
        if mode in ("safe", "settling"):
            yield DoctorFinding(
                Severity.WARNING,
                f"{broker} is in {mode} mode",
                "It has lost its connection to Kafka: it goes on serving, and starts no new operation.",
                f"If this persists, check the network between {broker} and Kafka.",
            )
        joined_ms = 0 if process is None else at_ms - process.first_ms
        if not member.caught_up and joined_ms > JOINING_WARNING_MS:
            yield DoctorFinding(
                Severity.WARNING,
                f"{broker} has been joining for {duration(joined_ms)}",
                "It owns and answers nothing until it has caught up, which needs a clean heartbeat.",
                "Check the keys awaiting repair below, and that there is a leader: `statechannel status`.",
            )
    if alive:
        are_alive = "1 broker is alive" if len(alive) == 1 else f"{len(alive)} brokers are alive"
        yield DoctorFinding(Severity.OK, f"{are_alive}: {_some(sorted(alive))}")


def software(facts: DoctorFacts) -> Iterator[DoctorFinding]:
    """Versions of the brokers, and the formats that they read."""
    if facts.registry is None:
        return
    alive = facts.registry.members.alive
    count = Counter(str(member.info.get("software")) for member in alive.values())
    if len(count) > 1:
        versions = ", ".join(f"{version} ({many})" for version, many in sorted(count.items()))
        yield DoctorFinding(
            Severity.INFO,
            f"brokers of several versions: {versions}",
            "Expected during an upgrade. New formats are not written until every broker reads them.",
        )
    for partition, stop in _stopped(facts).items():
        behind = _cannot_read(facts, partition)
        yield DoctorFinding(
            Severity.CRITICAL,
            f"partition {partition} holds a record of format {stop['format']} at offset {stop['offset']}"
            + (f", which {_some(behind)} cannot read" if behind else ""),
            "A broker that cannot read it stops judging there, and goes on in safe mode with the states it has.",
            f"Upgrade {_some(behind) if behind else 'this program'} to a version that reads format {stop['format']}.",
        )
    if not alive and not _stopped(facts):
        yield _NOBODY


def _stopped(facts: DoctorFacts) -> dict[str, dict[str, Any]]:
    """The record of a newer format at which this program stopped reading, by partition."""
    return dict(facts.status.get("stopped", {}))


def _cannot_read(facts: DoctorFacts, partition: str) -> list[str]:
    """Live brokers that do not read the format of a partition."""
    wanted = _stopped(facts)[partition]["format"]
    return [
        name for name, member in sorted(_alive(facts).items()) if wanted not in (member.info.get("formats") or [FORMAT])
    ]


def clocks(facts: DoctorFacts) -> Iterator[DoctorFinding]:
    """Clocks of the brokers compared with the log's."""
    if facts.story is None:
        return
    if _nobody(facts):
        yield _NOBODY
    for broker in sorted(_alive(facts)):
        process = facts.story.processes.get(broker)
        behind_ms = None if process is None else process.clock_behind_ms
        if behind_ms is not None and abs(behind_ms) > CLOCKS_WARNING_MS:
            yield DoctorFinding(
                Severity.WARNING,
                f"the clock of {broker} is {duration(abs(behind_ms))} {'behind' if behind_ms > 0 else 'ahead of'} Kafka's",
                "The channel is not affected: it uses the log's time. But the times in that broker's own logs, its load "
                "reports and the ends of overrides there are wrong.",
                f"Synchronize the clock of {broker}'s machine by NTP.",
            )


def leader(facts: DoctorFacts) -> Iterator[DoctorFinding]:
    """Exactly one leader."""
    if facts.registry is None:
        return
    alive = facts.registry.members.alive
    leading = sorted(name for name, member in alive.items() if member.info.get("leading") is True)
    leadership = facts.status
    if not alive:
        yield DoctorFinding(Severity.INFO, "no broker is alive to lead")
    elif not leading:
        without_ms = leadership.get("no_leader_for_ms")
        patience_ms = 2 * facts.settings.kafka.session_timeout_ms
        long = without_ms is None or without_ms > patience_ms
        for_long = "" if without_ms is None else f", for {duration(without_ms)}"
        yield DoctorFinding(
            Severity.ERROR if long else Severity.WARNING,
            f"no leader{for_long}",
            "Bundles are still served and moved, but not assigned, repaired or balanced. Keys wait for their repair.",
            "Check that brokers are caught up (`statechannel brokers`), and their logs for the election's group."
            if long
            else "An election takes up to kafka.session_timeout_ms: check again.",
        )
    if len(leading) > 1:
        yield DoctorFinding(
            Severity.WARNING,
            f"several brokers claim leadership: {_some(leading)}",
            "Harmless (proposals of all of them are judged alike), but it should last no longer than a heartbeat.",
            "Check again; if it persists, one of them is cut off from the election's group: see its log.",
        )
    if len(leading) == 1:
        term, since_ms = leadership.get("term"), leadership.get("leading_for_ms")
        since = f", for {duration(since_ms)}" if since_ms is not None else ""
        yield DoctorFinding(Severity.OK, f"{leading[0]} leads{since}{term_text(term)}")


def forged(facts: DoctorFacts) -> Iterator[DoctorFinding]:
    """Records under the name of a broker that did not write them, by those who read them, also if ended."""
    if facts.registry is None or facts.story is None:
        return
    reports = facts.story.forged_at(facts.registry.read_at_ms)
    if _nobody(facts) and not reports:
        yield _NOBODY
    for broker, seen in reports:
        yield DoctorFinding(
            Severity.CRITICAL,
            seen.sentence(broker),
            "Another process writes with its id and incarnation. The log decides, so accepted ones count.",
            f"{FORGED_HINT} The finding ends an hour after the newest of them.",
        )


def patience_alike(facts: DoctorFacts) -> Iterator[DoctorFinding]:
    """Whether all brokers and this command have the same expiry."""
    if _nobody(facts):
        yield _NOBODY
    brokers: dict[float, list[str]] = {}
    for name, member in sorted(_alive(facts).items()):
        expiry_s = member.info.get("expiry_s")
        if isinstance(expiry_s, int | float):
            brokers.setdefault(float(expiry_s), []).append(name)
    ours = facts.settings.membership.expiry_s
    if len(brokers) > 1:
        words = "; ".join(f"{expiry:g} s: {_some(names)}" for expiry, names in sorted(brokers.items()))
        yield DoctorFinding(
            Severity.WARNING,
            f"brokers differ in membership.expiry_s ({words})",
            "They disagree on which brokers are lost; repair starts by the leader's own expiry.",
            "Give all brokers the same settings.",
        )
    elif brokers and ours not in brokers:
        yield DoctorFinding(
            Severity.INFO,
            f"membership.expiry_s is {ours:g} here, and {next(iter(brokers)):g} at the brokers",
            "A broker that is shown as lost here may not be lost for the brokers.",
            "Use the settings of the brokers for commands (`--config`).",
        )


def lag(facts: DoctorFacts) -> Iterator[DoctorFinding]:
    """Lag of each broker behind the log."""
    if _nobody(facts):
        yield _NOBODY
    limit_ms = facts.settings.repair.in_flight_limit_s * 1_000
    for broker in facts.status.get("brokers", ()):
        blocked = blocked_sentence(broker)
        if blocked:
            yield DoctorFinding(
                Severity.WARNING,
                blocked,
                "Nothing of the channel runs in it meanwhile: its heartbeats, answers and moves are late.",
                f"Find the blocking call at that place in the program of {broker['broker']}, and run it in a thread. Until then "
                "move its bundles: `statechannel transfer`.",
            )
        for failing in failing_hooks(broker):
            effect, todo = _OF_HOOKS.get(failing.hook, _OF_ANY_HOOK)
            names = {"broker": broker["broker"], "bundle": failing.bundle}
            yield DoctorFinding(
                Severity.WARNING,
                failing.sentence,
                effect.format(**names),
                f"The event hook.failed in the log of {broker['broker']} has the traceback. {todo.format(**names)}",
            )
        late_ms = broker.get("lag_ms")
        if late_ms is not None and late_ms >= LAG_WARNING_MS:
            yield DoctorFinding(
                Severity.ERROR if late_ms > limit_ms else Severity.WARNING,
                f"{broker['broker']} is {broker['lag_records']} records, {duration(late_ms)}, behind the log",
                "It answers lookups from old states, and reacts late to its own assignments.",
                f"Check processor, memory and network of {broker['broker']}.",
            )


def debts(facts: DoctorFacts) -> Iterator[DoctorFinding]:
    """Keys awaiting repair, with the duration."""
    owed = facts.status.get("debts", ())
    if not owed:
        return
    settings = facts.settings
    lag_ms = settings.channel.min_compaction_lag_ms
    alarm_ms = lag_ms * settings.observe.debt_alarm_fraction
    oldest = facts.status.get("oldest_debt_ms")
    soon_ms = max(5_000, 5_000 * settings.leader.debt_age_s)
    await_repair = "1 key awaits" if len(owed) == 1 else f"{len(owed)} keys await"
    what = f"{await_repair} repair, {owed[0]['key']} the longest" + (
        ", since before the first judged record" if oldest is None else f", for {duration(oldest)}"
    )
    why = "While a key awaits repair, no heartbeat is clean and no broker can join;"
    if oldest is not None and oldest >= lag_ms:
        severity, why = (
            Severity.CRITICAL,
            f"{why} and past the lag ({duration(lag_ms)}) the cleaner may remove accepted records.",
        )
    elif oldest is None or oldest >= alarm_ms:
        severity, why = (
            Severity.ERROR,
            f"{why} it has waited longer than the alarm, {duration(alarm_ms)} of a lag of {duration(lag_ms)}.",
        )
    elif oldest >= soon_ms:
        severity, why = (
            Severity.WARNING,
            f"{why} the leader repairs it after {settings.leader.debt_age_s:g} s if it can.",
        )
    else:
        yield DoctorFinding(Severity.OK, f"{what}: will be repaired shortly")
        return
    yield DoctorFinding(
        severity,
        what,
        why,
        "Check that there is a caught-up leader; `statechannel audit history KEY` shows the records.",
    )


def in_flight(facts: DoctorFacts) -> Iterator[DoctorFinding]:
    """Hand-overs that last too long."""
    limit_ms = facts.settings.repair.in_flight_limit_s * 1_000
    limits = HealthLimits.of(facts.settings)
    slow_ms = limits.in_flight_ms
    late = slow_operations(facts.status, limits) if facts.status else []
    if not late:
        return
    oldest = late[0]
    broker, hook = oldest["waits_for_broker"] or oldest["to"] or oldest["from"], oldest["waits_for_hook"]
    stuck = oldest["age_ms"] > limit_ms + 2_000 * facts.settings.repair.interval_s
    yield DoctorFinding(
        Severity.ERROR if stuck else Severity.WARNING,
        f"{len(late)} bundles are in flight for longer than {duration(slow_ms)}; {oldest['bundle']} is {oldest['state']} "
        f"({oldest['from'] or '-'} to {oldest['to'] or '-'}) for {duration(oldest['age_ms'])}",
        "No broker serves them meanwhile, and lookups wait."
        + (f" The leader should have repaired them after {duration(limit_ms)}." if stuck else ""),
        f"Check the log of {broker} for its hook{f' {hook}' if hook else 's'}, and that there is a leader; "
        f"`statechannel audit history {oldest['bundle']}`.",
    )


def orphans(facts: DoctorFacts) -> Iterator[DoctorFinding]:
    """Bundles whose owner is lost, and repair."""
    status = facts.status
    paused = status.get("repair_paused", ())
    for broker in paused:
        yield DoctorFinding(
            Severity.ERROR if status.get("without_service") else Severity.WARNING,
            f"{broker['broker']} has paused repair: {pause_sentence(broker)}",
            "Bundles of lost brokers are not reassigned.",
            "Check whether these brokers are dead or only cut off. If dead: `statechannel repair resume`.",
        )
    unserved, nobody = without_service_sentence(status) if status else "", _nobody(facts)
    if nobody and not unserved:
        yield _NOBODY
    if unserved:
        yield DoctorFinding(
            Severity.CRITICAL if nobody else Severity.ERROR if paused else Severity.WARNING,
            unserved,
            "No broker serves them." if nobody else "Their lookups wait until the leader has reassigned them.",
            "Start brokers."
            if nobody
            else "Start the lost brokers; or, if they are dead, `statechannel repair resume`."
            if paused
            else "Check again in some seconds; if they stay, check that there is a leader.",
        )


def without_owner(facts: DoctorFacts) -> Iterator[DoctorFinding]:
    """Bundles that were served and have no owner, though no unload was requested."""
    sentence, nobody = unowned_sentence(facts.status) if facts.status else "", _nobody(facts)
    if sentence:
        yield DoctorFinding(
            Severity.CRITICAL if nobody else Severity.WARNING,
            sentence,
            "No broker serves them until the leader assigns what a shutdown left, or a client looks them up.",
            "Start brokers."
            if nobody
            else f"`statechannel lookup {facts.status['without_owner']['bundle']}` assigns it; if no broker takes it, see the "
            "findings about brokers, declines and placement.",
        )


def declines(facts: DoctorFacts) -> Iterator[DoctorFinding]:
    """Bundles that no broker takes, and brokers that declined some lately, mostly since a hook fails."""
    refused = unserved_by_all(facts.status, HealthLimits.of(facts.settings))
    memory_s = facts.settings.repair.decline_memory_s
    if refused:
        bundle, brokers = refused[0]["bundle"], failing_takers(facts.status, refused)
        yield DoctorFinding(
            Severity.CRITICAL,
            f"{decline_sentence(refused)}: {_some([row['bundle'] for row in refused])}",
            f"Their clients get no owner. A lookup asks the brokers again: after {memory_s / LONE_TRIES_PART:g} s, then after "
            f"twice as long each time, {memory_s:g} s at most.",
            f"Fix what fails at {_some(brokers)} (the event hook.failed in the log has the traceback), then `statechannel lookup "
            f"{bundle}`{_and_the_others(refused)}.",
        )
    by_some = unserved_by_some(facts.status, HealthLimits.of(facts.settings))
    if by_some:
        yield DoctorFinding(
            Severity.WARNING,
            f"{decline_sentence(by_some)}: {_some([row['bundle'] for row in by_some])}",
            "Nobody has asked the other brokers yet: the next lookup of each bundle does.",
            f"`statechannel lookup {by_some[0]['bundle']}` asks {_some(by_some[0]['not_asked'])}{_and_the_others(by_some)}; "
            f"fix what fails at {_some(failing_takers(facts.status, by_some))}.",
        )
    for row in facts.status.get("declines", ()):
        if not row["waiting"] and row["age_ms"] > DECLINES_WARNING_MS:
            continue
        yield DoctorFinding(
            Severity.WARNING,
            f"{row['broker']} declined {row['bundle']} {_ago(row['age_ms'])}"
            f"{': ' + row['reason'] if row['reason'] else ''} ({row['times']} times in all)",
            f"It is asked again after {memory_s:g} s, sooner where no other broker may take it; others are asked meanwhile.",
            f"The event hook.failed in the log of {row['broker']} has the traceback; `statechannel why {row['bundle']}`.",
        )


def _and_the_others(rows: Sequence[Mapping[str, Any]]) -> str:
    return ", and so for each that `statechannel bundles --unowned` lists" if len(rows) > 1 else ""


_UNPLACED_TODO: Mapping[str, str] = {
    UnplacedCause.POLICIES: "Change the policy or end the cordon that is named: `statechannel policy list`, `statechannel policy "
    "delete KIND NAME`, `statechannel uncordon BROKER`; or start a broker that they allow.",
    UnplacedCause.LIMITS: "Start another broker, or raise the limit that is named (`statechannel settings list`).",
    UnplacedCause.FAILURE: "The log of the broker that is named has the cause (the event placement-failed), and this "
    "command reports policies that cannot be read.",
}


def unplaced(facts: DoctorFacts) -> Iterator[DoctorFinding]:
    """Bundles that clients ask for and that placement finds no broker for; declined ones are reported by `declines`."""
    newest = newest_unplaced(facts.status) if facts.status.get("brokers") else None
    if newest is not None:
        yield DoctorFinding(
            Severity.CRITICAL,
            unplaced_sentence(facts.status),
            "Their clients get no owner.",
            _UNPLACED_TODO[newest["unplaced"]["cause"]],
        )


def spread(facts: DoctorFacts) -> Iterator[DoctorFinding]:
    """Brokers without bundles beside one that has many, as after a restart of all."""
    uneven = unspread(facts.status) if facts.status.get("brokers") else ""
    if uneven:
        yield DoctorFinding(
            Severity.INFO,
            uneven,
            "",
            "The balancer spreads them by load. Without it: `statechannel transfer BUNDLE --dest BROKER`.",
        )


def _alive(facts: DoctorFacts) -> Mapping[str, Member]:
    return {} if facts.registry is None else facts.registry.members.alive


def _nobody(facts: DoctorFacts) -> bool:
    return facts.registry is not None and not facts.registry.members.alive


def _ago(length_ms: float) -> str:
    return f"{duration(max(0, length_ms))} ago"


def _some(names: list[str]) -> str:
    shown = ", ".join(names[:_SHOWN])
    return shown if len(names) <= _SHOWN else f"{shown} and {len(names) - _SHOWN} more"


CHECKS = (
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
    DoctorCheck("unplaced", "placement finds a broker for every bundle asked for", unplaced, needs=("kafka", "log")),
    DoctorCheck("orphans", "every owner is alive, and repair is active", orphans, needs=("kafka", "registry", "log")),
    DoctorCheck("without-owner", "no bundle has lost its owner", without_owner, needs=("kafka", "log")),
    DoctorCheck("spread", "no broker is without bundles while another has many", spread, needs=("kafka", "log")),
)
