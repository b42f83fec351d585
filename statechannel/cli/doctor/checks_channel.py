"""Checks of the channel itself: who is heard, who leads, what is owed, stuck, unserved, or cannot be read."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any, NamedTuple

from statechannel.cli.doctor.facts import DoctorFacts
from statechannel.cli.doctor.findings import DoctorCheck, DoctorFinding, Severity
from statechannel.cli.kit.output import duration
from statechannel.protocol.record import FORMAT

LAG_WARNING_MS = 5_000
JOINING_WARNING_MS = 60_000
CLOCKS_WARNING_MS = 5_000
_SHOWN = 5
_TOPIC_SHOWN = 20
_NOBODY = DoctorFinding(Severity.INFO, "no broker is heard", checked=False)


def unreadable(facts: DoctorFacts) -> Iterator[DoctorFinding]:
    """Whether topics, registry and log could be read at all."""
    for name, failed in facts.failed.items():
        if not failed.reported:
            # An auditor may look at everything of the channel, and need not see how Kafka's own brokers are set.
            severity = Severity.INFO if name == "nodes" else Severity.ERROR
            yield DoctorFinding(severity, failed.what, "What hangs on it was not checked.", failed.hint)


def registry(facts: DoctorFacts) -> Iterator[DoctorFinding]:
    """Brokers that are heard, lost, doubled, joining, or in safe mode."""
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
            f"no broker is heard{heard}",
            "Nobody serves, assigns or repairs.",
            "Start brokers: `statechannel broker run`, or your own that embeds the channel. See the logs of those that ended.",
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
            f"lost without a goodbye: {_some(names)}",
            "Bundles of a lost broker are given to others; until then nobody serves them.",
            "See their logs and machines. What became of their bundles: `statechannel bundles`, `statechannel audit --gaps`."
            if alive
            else "See their logs and machines.",
        )
    for broker, seen_ms in story.doubled.items():
        if at_ms - seen_ms < facts.settings.membership.expiry_s * 2_000:
            yield DoctorFinding(
                Severity.ERROR,
                f"two processes call themselves {broker}",
                "Only the one that came later counts; the other one stops as soon as it reads of it, if it can read.",
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
                "It has lost Kafka for a while: it goes on serving, and starts nothing.",
                f"If it stays so, look at the way from {broker} to Kafka.",
            )
        joined_ms = 0 if process is None else at_ms - process.first_ms
        if not member.caught_up and joined_ms > JOINING_WARNING_MS:
            yield DoctorFinding(
                Severity.WARNING,
                f"{broker} has been joining for {duration(joined_ms)}",
                "It owns and answers nothing before it has caught up: that takes a log without debt, and a clean heartbeat.",
                "Look at the debts below, and at whether anybody leads; `statechannel status`.",
            )
    if alive:
        yield DoctorFinding(Severity.OK, f"{len(alive)} brokers are heard: {_some(sorted(alive))}")


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
            "So it is meant to be while an upgrade goes on. New formats wait until every broker reads them.",
        )
    for partition, stop in _stopped(facts).items():
        behind = _cannot_read(facts, partition)
        yield DoctorFinding(
            Severity.CRITICAL,
            f"partition {partition} holds a record of format {stop['format']} at offset {stop['offset']}"
            + (f", which {_some(behind)} cannot read" if behind else ""),
            "Who cannot read it stops judging there, and goes on in safe mode with what it knew.",
            f"Upgrade {_some(behind) if behind else 'this program'} to a version that reads format {stop['format']}.",
        )
    if not alive and not _stopped(facts):
        yield _NOBODY


def _stopped(facts: DoctorFacts) -> dict[str, dict[str, Any]]:
    """By partition the record of a newer format at which this program stopped reading."""
    return dict(facts.status.get("stopped", {}))


def _cannot_read(facts: DoctorFacts, partition: str) -> list[str]:
    """Brokers that are heard and do not read the format that a partition holds."""
    wanted = _stopped(facts)[partition]["format"]
    alive = {} if facts.registry is None else facts.registry.members.alive
    return [name for name, member in sorted(alive.items()) if wanted not in (member.info.get("formats") or [FORMAT])]


def clocks(facts: DoctorFacts) -> Iterator[DoctorFinding]:
    """Clocks of the brokers beside the log's."""
    if facts.story is None or facts.registry is None:
        return
    if _nobody(facts):
        yield _NOBODY
    for broker in sorted(facts.registry.members.alive):
        process = facts.story.processes.get(broker)
        behind_ms = None if process is None else process.clock_behind_ms
        if behind_ms is not None and abs(behind_ms) > CLOCKS_WARNING_MS:
            yield DoctorFinding(
                Severity.WARNING,
                f"the clock of {broker} is {duration(abs(behind_ms))} {'behind' if behind_ms > 0 else 'ahead of'} Kafka's",
                "The channel is not harmed: it goes by the log's time. But the times in that broker's own logs, its load "
                "reports and the ends of overrides there are off.",
                f"Set the clock of {broker}'s machine by NTP.",
            )


def leader(facts: DoctorFacts) -> Iterator[DoctorFinding]:
    """Exactly one leader."""
    if facts.registry is None:
        return
    alive = facts.registry.members.alive
    leading = sorted(name for name, member in alive.items() if member.info.get("leading") is True)
    leadership = facts.status
    if not alive:
        yield DoctorFinding(Severity.INFO, "nobody is there to lead")
    elif not leading:
        without_ms = leadership.get("no_leader_for_ms")
        patience_ms = 2 * facts.settings.kafka.session_timeout_ms
        long = without_ms is None or without_ms > patience_ms
        for_long = "" if without_ms is None else f", for {duration(without_ms)}"
        yield DoctorFinding(
            Severity.ERROR if long else Severity.WARNING,
            f"nobody leads{for_long}",
            "Bundles go on being served and moved, but nobody assigns, repairs or balances. Debts are paid late.",
            "Look at whether brokers are caught up (`statechannel brokers`), and at their logs for the election's group."
            if long
            else "An election takes up to kafka.session_timeout_ms: look again.",
        )
    if len(leading) > 1:
        yield DoctorFinding(
            Severity.WARNING,
            f"{_some(leading)} all say that they lead",
            "It harms nothing (proposals are judged alike, whoever makes them), but should last a heartbeat only.",
            "Look again; if it stays so, one of them is cut off from the election's group: see its log.",
        )
    if len(leading) == 1:
        term, since_ms = leadership.get("term"), leadership.get("leading_for_ms")
        term_text = f", term {term}" if term is not None else ""
        since = f", for {duration(since_ms)}" if since_ms is not None else ""
        yield DoctorFinding(Severity.OK, f"{leading[0]} leads{term_text}{since}")


def forged(facts: DoctorFacts) -> Iterator[DoctorFinding]:
    """Records that bear the name of a broker which did not write them."""
    if facts.registry is None:
        return
    if _nobody(facts):
        yield _NOBODY
    for broker, member in sorted(facts.registry.members.alive.items()):
        seen = _forged_of(member.info.get("forged"))
        if seen is None:
            continue
        yield DoctorFinding(
            Severity.CRITICAL,
            f"{broker} has read {seen.records} {'record' if seen.records == 1 else 'records'} in its own name that it did not "
            f"write, the newest in the {seen.topic} at partition {seen.partition}, offset {seen.offset}",
            "Somebody else writes with its id and incarnation. The log decides, so what was accepted of them counts.",
            "Find out who may write to the topic (`kafka-acls.sh --list --topic NAME`) and take the right away; "
            "`statechannel audit origins` lists the changes that nobody asked for, without control records. The finding stays "
            f"until {broker} is started again.",
        )


class _Forged(NamedTuple):
    records: int
    topic: str
    partition: int
    offset: int


def _forged_of(fields: object) -> _Forged | None:
    """What a member says of forged records, if it has the form that members write."""
    if not isinstance(fields, dict):
        return None
    records, topic, partition, offset = (fields.get(name) for name in _Forged._fields)
    if not isinstance(topic, str) or not all(
        type(number) is int and number >= 0 for number in (records, partition, offset)
    ):
        return None
    return _Forged(records, topic[:_TOPIC_SHOWN], partition, offset)  # type: ignore[arg-type]


def patience_alike(facts: DoctorFacts) -> Iterator[DoctorFinding]:
    """Whether brokers have the same patience as each other and as this command."""
    if facts.registry is None:
        return
    if _nobody(facts):
        yield _NOBODY
    brokers: dict[float, list[str]] = {}
    for name, member in sorted(facts.registry.members.alive.items()):
        expiry_s = member.info.get("expiry_s")
        if isinstance(expiry_s, int | float):
            brokers.setdefault(float(expiry_s), []).append(name)
    ours = facts.settings.membership.expiry_s
    if len(brokers) > 1:
        words = "; ".join(f"{expiry:g} s: {_some(names)}" for expiry, names in sorted(brokers.items()))
        yield DoctorFinding(
            Severity.WARNING,
            f"brokers differ in membership.expiry_s ({words})",
            "One calls another lost that a third one still counts on; repair begins by the leader's own patience.",
            "Give all brokers the same settings.",
        )
    elif brokers and ours not in brokers:
        yield DoctorFinding(
            Severity.INFO,
            f"membership.expiry_s is {ours:g} here, and {next(iter(brokers)):g} at the brokers",
            "Who is called lost here may not be lost for the brokers.",
            "Give commands the settings of the brokers (`--config`).",
        )


def lag(facts: DoctorFacts) -> Iterator[DoctorFinding]:
    """How far each broker is behind the log."""
    if _nobody(facts):
        yield _NOBODY
    limit_ms = facts.settings.repair.in_flight_limit_s * 1_000
    for broker in facts.status.get("brokers", ()):
        late_ms = broker.get("lag_ms")
        if late_ms is not None and late_ms >= LAG_WARNING_MS:
            yield DoctorFinding(
                Severity.ERROR if late_ms > limit_ms else Severity.WARNING,
                f"{broker['broker']} is {broker['lag_records']} records, {duration(late_ms)}, behind the log",
                "It answers lookups by what was, and reacts late to what names it.",
                f"Look at the processor, memory and network of {broker['broker']}.",
            )


def debts(facts: DoctorFacts) -> Iterator[DoctorFinding]:
    """Keys in debt, and for how long."""
    owed = facts.status.get("debts", ())
    if not owed:
        return
    settings = facts.settings
    lag_ms = settings.channel.min_compaction_lag_ms
    alarm_ms = lag_ms * settings.observe.debt_alarm_fraction
    oldest = facts.status.get("oldest_debt_ms")
    soon_ms = max(5_000, 5_000 * settings.leader.debt_age_s)
    what = f"{len(owed)} keys are in debt, {owed[0]['key']} the longest" + (
        ", since before the log was judged" if oldest is None else f", for {duration(oldest)}"
    )
    why = "While a key is in debt no heartbeat is clean, so no broker can join;"
    if oldest is not None and oldest >= lag_ms:
        severity, why = (
            Severity.CRITICAL,
            f"{why} and past the lag ({duration(lag_ms)}) the cleaner may take what counts.",
        )
    elif oldest is None or oldest >= alarm_ms:
        severity, why = (
            Severity.ERROR,
            f"{why} it is past the alarm, {duration(alarm_ms)} of a lag of {duration(lag_ms)}.",
        )
    elif oldest >= soon_ms:
        severity, why = Severity.WARNING, f"{why} the leader pays after {settings.leader.debt_age_s:g} s if it can."
    else:
        yield DoctorFinding(Severity.OK, f"{what}: to be paid in a moment")
        return
    yield DoctorFinding(
        severity, what, why, "See that somebody leads and is caught up; `statechannel audit --history KEY` tells."
    )


def in_flight(facts: DoctorFacts) -> Iterator[DoctorFinding]:
    """States between two owners that last too long."""
    limit_ms = facts.settings.repair.in_flight_limit_s * 1_000
    slow_ms = facts.settings.hooks.deadline_s * 1_000
    late = [operation for operation in facts.status.get("in_flight", ()) if (operation["age_ms"] or 0) > slow_ms]
    if not late:
        return
    oldest = late[0]
    stuck = oldest["age_ms"] > limit_ms + 2_000 * facts.settings.repair.interval_s
    yield DoctorFinding(
        Severity.ERROR if stuck else Severity.WARNING,
        f"{len(late)} bundles are on their way for longer than {duration(slow_ms)}; {oldest['bundle']} is {oldest['state']} "
        f"({oldest['from'] or '-'} to {oldest['to'] or '-'}) for {duration(oldest['age_ms'])}",
        "Nobody serves them meanwhile, and lookups wait."
        + (f" The leader repairs after {duration(limit_ms)}, and did not." if stuck else ""),
        f"See the log of {oldest['to'] or oldest['from']} for its hooks, and whether somebody leads; "
        f"`statechannel audit --history {oldest['bundle']}`.",
    )


def orphans(facts: DoctorFacts) -> Iterator[DoctorFinding]:
    """Bundles whose owner is not heard, and repair."""
    status = facts.status
    paused = status.get("repair_paused", ())
    for broker in paused:
        yield DoctorFinding(
            Severity.ERROR if status.get("orphans") else Severity.WARNING,
            f"{broker['broker']} has paused repair: {broker['why']}",
            "Bundles of brokers that are lost stay where they are.",
            "See whether these brokers are dead or only cut off. If dead: `statechannel repair resume`.",
        )
    many, nobody = status.get("orphans", 0), _nobody(facts)
    if nobody and not many:
        yield _NOBODY
    if many:
        yield DoctorFinding(
            Severity.CRITICAL if nobody else Severity.ERROR if paused else Severity.WARNING,
            f"{many} bundles have an owner that is not heard",
            "Nobody serves them." if nobody else "Lookups of them wait until the leader has given them to others.",
            "Start brokers." if nobody else "Look again in some seconds; if they stay: is there a leader?",
        )


def log(facts: DoctorFacts) -> Iterator[DoctorFinding]:
    """Whether what the log tells can be relied on."""
    status = facts.status
    if status.get("tentative"):
        yield DoctorFinding(
            Severity.WARNING,
            "the log was cleaned, and no heartbeat vouches for what is left",
            "Who owns what is only assumed; a broker that starts alone takes it for the truth (cold start).",
            "Start a broker, or see why those that run write no clean heartbeat (debts, no leader).",
        )
        return
    many, assigned, waiting = (status.get(name, 0) for name in ("bundles", "assigned", "unassigned"))
    moving = many - assigned - waiting
    on_their_way = f", {moving} on their way" if moving > 0 else ""
    yield DoctorFinding(
        Severity.OK, f"the log is sound: {many} bundles, {assigned} assigned, {waiting} not{on_their_way}"
    )


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
        "software", "all brokers are of one version, and read the log's format", software, needs=("kafka", "registry")
    ),
    DoctorCheck("brokers-clocks", "brokers' clocks agree with Kafka's", clocks, needs=("kafka", "registry")),
    DoctorCheck("brokers-patience", "brokers are equally patient", patience_alike, needs=("kafka", "registry")),
    DoctorCheck("leader", "exactly one leader", leader, needs=("kafka", "registry")),
    DoctorCheck("forged", "nobody writes in a broker's name", forged, needs=("kafka", "registry")),
    DoctorCheck("lag", "no broker is behind the log", lag, needs=("kafka", "registry", "log")),
    DoctorCheck("debts", "no debts", debts, needs=("kafka", "log")),
    DoctorCheck("in-flight", "nothing is on its way for too long", in_flight, needs=("kafka", "log")),
    DoctorCheck("orphans", "every owner is heard, and repair goes on", orphans, needs=("kafka", "registry", "log")),
    DoctorCheck("log", "the log can be relied on", log, needs=("kafka", "log")),
)
