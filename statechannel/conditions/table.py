"""The table of conditions: everything that can be wrong with a channel, in the order in which views list it. Pure.

To add one, write a function from facts to what was found, a row here and a line in design/cli.md: `status`, the page and `doctor`
have it by that, `/readyz` where `statechannel/broker/observe/health.py` names its code.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from functools import partial
from typing import Final

from statechannel.conditions import kinds
from statechannel.conditions.facts import (
    ChannelHealth,
    Condition,
    ConditionLimits,
    ConditionSeverity,
    Facts,
    Occurrence,
)

_UNKNOWN, _DOWN, _DEGRADED = ConditionSeverity.UNKNOWN, ConditionSeverity.DOWN, ConditionSeverity.DEGRADED
_WARNING, _NOTE = ConditionSeverity.WARNING, ConditionSeverity.NOTE
_ASK_WRITERS: Final = (
    "Find out who may write to the topic (`kafka-acls.sh --list --topic NAME`) and remove the right; "
    "`statechannel audit origins` lists changes without an origin."
)

DRAIN_BLOCKED: Final = Condition("drain-blocked", _WARNING, kinds.drain_blocked, ("brokers", "cordons"),
    "No bundle is assigned to it, and nothing moves away those that it has.",
    "Change the policy that keeps them there and `statechannel drain {broker}` again, or `statechannel uncordon {broker}`.",
)  # fmt: skip
CONDITIONS: Final = (
    Condition("kafka-silent", _UNKNOWN, kinds.kafka_silent, ("blind_since_ms", "at_ms"),
        "Brokers serve what they serve, and nothing is moved or repaired.",
        "Look at Kafka's brokers and the network to them; nothing has to be done here when they are back."),
    Condition("newer-format", _UNKNOWN, kinds.newer_format, ("stopped",),
        "A broker that cannot read it stops judging there, and goes on in safe mode with the states it has.",
        "Use a version that reads format {format}."),
    Condition("no-broker", _DOWN, kinds.no_broker, ("brokers",),
        "No bundle is served, assigned or repaired.",
        "Start brokers: `statechannel broker run`, or your own that embeds the channel. See the logs of the stopped ones."),
    Condition("bundles-declined", _DOWN, kinds.bundles_declined, ("declined_bundles", "at_ms"),
        "Their clients get no owner. A lookup asks the brokers again, after twice as long each time, at most after "
        "`repair.decline_memory_s`.",
        "Fix what fails at {brokers} (the event hook.failed in the log has the traceback), then `statechannel lookup "
        "{bundle}`{others}."),
    Condition("bundles-unplaced", _DOWN, kinds.bundles_unplaced, ("brokers",), "Their clients get no owner.", ""),
    Condition("repair-paused", _DOWN, kinds.repair_paused, ("repair_paused",), "Bundles of lost brokers are not reassigned.",
        "Check whether these brokers are dead or only cut off. If dead: `statechannel repair resume`."),
    Condition("partitions-differ", _DEGRADED, kinds.partitions_differ, ("brokers",),
        "They look for a bundle in different partitions: two of them may serve it.",
        "Stop those that read more: the number of a channel is that with which it began."),
    Condition("head-lost", _DEGRADED, kinds.head_lost, ("topics", "channel", "brokers"),
        "A broker that starts waits until one that knows what was deleted has restated it.",
        kinds.head_lost_hint("TOPIC")),
    Condition("topic-unfit", _DEGRADED, partial(kinds.topic_differences, is_hard=True), ("topics",),
        "What the protocol rests on is not given.",
        "`statechannel doctor` has the command that mends it. Run it before a broker is restarted: that would refuse to start."),
    Condition("replicas-differ", _DEGRADED, kinds.replicas_differ, ("brokers",),
        "Two of them may serve one bundle, or each expects the other to serve it.",
        "Stop no broker before it is known which is right: `statechannel audit verify` compares each with the log. Then restart "
        "the one that differs from it: it reads the log again."),
    Condition("declined-by-some", _DEGRADED, kinds.declined_by_some, ("declined_bundles", "at_ms"),
        "Nobody has asked the other brokers yet: the next lookup of each bundle does.",
        "`statechannel lookup {bundle}` asks {asked}{others}; fix what fails at {brokers}."),
    Condition("without-owner", _DEGRADED, kinds.without_owner, ("without_owner", "at_ms"),
        "No broker serves them until the leader assigns what a shutdown left, or a client looks them up.",
        "`statechannel lookup {bundle}` assigns it; if no broker takes it, see what is said of brokers, declines and placement."),
    Condition("broker-lost", _DEGRADED, kinds.broker_lost, ("brokers", "at_ms"),
        "Bundles of a lost broker are reassigned, and until then no broker serves them; those that are left carry all.",
        "Check their logs and machines, and start them again. One that is gone for good: `statechannel broker dismiss "
        "{broker}`."),
    Condition("broker-suspect", _DEGRADED, kinds.broker_suspect, ("brokers", "blind_since_ms", "at_ms"),
        "Nobody knows whether it serves its bundles. They are reassigned once it is lost.",
        "Wait until it is heard or lost; look at its process and at the network meanwhile."),
    Condition("owner-unreachable", _DEGRADED, kinds.owner_unreachable, ("brokers", "without_service", "repair_paused"),
        "Their lookups wait until the leader has reassigned them.",
        "Check again in some seconds; if they stay, check that there is a leader."),
    Condition("no-leader", _DEGRADED, kinds.no_leader, ("brokers", "leader", "no_leader_for_ms"),
        "Bundles are still served and moved, and brokers assign what is looked up, but nothing is repaired or balanced.",
        "An election takes up to kafka.session_timeout_ms. If it lasts longer: check that brokers are caught up (`statechannel "
        "brokers`), and their logs for the election's group."),
    Condition("safe-mode", _DEGRADED, kinds.safe_mode, ("brokers",),
        "It has lost its connection to Kafka: it goes on serving, and starts no new operation.",
        "If this persists, check the network between {broker} and Kafka."),
    Condition("hook-fails", _DEGRADED, kinds.hook_fails, ("brokers",), "{effect}",
        "The event hook.failed in the log of {broker} has the traceback. {todo}"),
    Condition("kafka-refuses", _DEGRADED, kinds.kafka_refuses, ("brokers",),
        "What they were to do is rejected, and to try again does not help.",
        "`statechannel doctor` names the limit, the right or the rule, and what to change."),
    Condition("kafka-throttles", _DEGRADED, kinds.kafka_throttles, ("brokers",),
        "Its heartbeats and records are late: others may take it for lost, and repair its bundles.",
        "Raise the quota of its user or client id, or exempt it (`kafka-configs.sh --entity-type users|clients`); it counts at "
        "once. To the network nothing is wrong."),
    Condition("none-accepts", _DEGRADED, kinds.none_accepts, ("brokers",),
        "Bundles without an owner get none.",
        "Start another broker, or end the drains and cordons: `statechannel uncordon BROKER`."),
    Condition("broker-late", _DEGRADED, kinds.broker_late, ("brokers",),
        "It answers lookups from old states, and reacts late to its own assignments.",
        "Check processor, memory and network of {broker}."),
    Condition("slow-operation", _DEGRADED, kinds.slow_operation, ("in_flight", "at_ms"),
        "No broker serves them meanwhile, and lookups wait.",
        "Check the log of {broker}{of_hook}, and that there is a leader; `statechannel audit history {bundle}`."),
    Condition("loop-blocked", _DEGRADED, kinds.loop_blocked, ("brokers",),
        "Nothing of the channel runs in it meanwhile: its heartbeats, answers and moves are late.",
        "Find the blocking call at that place in the program of {broker}, and run it in a thread. Until then move its bundles: "
        "`statechannel transfer`."),
    Condition("awaiting-repair", _DEGRADED, kinds.awaiting_repair, ("debts", "oldest_debt_ms"),
        "While a key awaits repair, no heartbeat is clean and no broker can join.",
        "Check that there is a caught-up leader; `statechannel audit history {key}` shows the records."),
    Condition("forged", _DEGRADED, kinds.forged, ("disowned",),
        "Another process writes with its id and incarnation. The log decides, so accepted ones count.", _ASK_WRITERS),
    Condition("duplicate-id", _DEGRADED, kinds.duplicate_id, ("doubled",),
        "Only the later one counts; the other one stops as soon as it reads the later one's heartbeat.",
        "Find the second process and stop it; give it another id if it is another broker."),
    Condition("topic-differs", _WARNING, partial(kinds.topic_differences, is_hard=False), ("topics",), "", ""),
    DRAIN_BLOCKED,
    Condition("junk", _WARNING, kinds.junk, ("junk",),
        "They are read and ignored.",
        "`statechannel audit rejected` names who writes them; take that client's right to write away."),
    Condition("flapping", _WARNING, kinds.flapping, ("flaps",), "Its clients are redirected each time.",
        "Its timeline has the reason of each move; an override pins it."),
    Condition("view-late", _WARNING, kinds.behind, ("behind_s", "blind_since_ms"), "What it shows is old.",
        "Look at the load of this machine; another broker's page may be newer."),
    Condition("versions", _WARNING, kinds.versions, ("brokers",),
        "Expected during an upgrade. New formats are not written until every broker reads them.",
        "Expected while an upgrade is under way; else finish it."),
    Condition("unspread", _NOTE, kinds.unspread, ("brokers",), "",
        "The balancer spreads them by load. Without it: `statechannel transfer BUNDLE --dest BROKER`."),
)  # fmt: skip
"""In the order of harm: by severity, the most important first. `status` lists what makes a verdict, the page also warnings."""


def current(facts: Facts, limits: ConditionLimits, conditions: Iterable[Condition] = CONDITIONS) -> list[Occurrence]:
    """All that hold, in the order of the table, but what is due to another one after that."""
    occurrences = [
        Occurrence.of(kind, detected)
        for kind in conditions
        if all(need in facts for need in kind.needs)
        for detected in kind.detect(facts, limits)
    ]
    causes = {item.code: item.due_to for item in occurrences}
    groups: dict[str, list[Occurrence]] = {}
    for item in occurrences:
        cause = item.code
        while (before := causes[cause]) in causes:
            cause = before
        groups.setdefault(cause, []).append(replace(item, due_to=None if item.code == cause else cause))
    return [item for group in groups.values() for item in sorted(group, key=lambda item: item.due_to is not None)]


def current_of(code: str, facts: Facts, limits: ConditionLimits) -> list[Occurrence]:
    """Those of one kind."""
    return current(facts, limits, (kind for kind in CONDITIONS if kind.code == code))


def reasons_of(occurrences: Iterable[Occurrence]) -> list[Occurrence]:
    """Those that make the verdict worse than healthy."""
    return [item for item in occurrences if item.severity.verdict is not ChannelHealth.HEALTHY]


def verdict_of(occurrences: Iterable[Occurrence]) -> ChannelHealth:
    """The worst of them as a verdict on the channel."""
    severities = {item.severity for item in occurrences}
    return next((severity for severity in ConditionSeverity if severity in severities), _NOTE).verdict
