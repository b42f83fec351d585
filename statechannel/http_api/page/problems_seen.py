"""What is wrong now, the worst first: each with what it concerns, since when, and what to do next. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from enum import StrEnum
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from statechannel.audit.forged_records import FORGED_HINT
from statechannel.broker.observe.kafka_limits import (
    REFUSED_HINTS,
    THROTTLED_HINT,
    refused_sentence,
    throttled_sentence,
)
from statechannel.broker.observe.topic_conditions import head_lost_hint, head_lost_sentence
from statechannel.engine.replica_differences import REPLICA_DIFFERS_HINT, DifferingReplica
from statechannel.engine.troubles import UnplacedCause
from statechannel.http_api.page.moves_seen import MOVES_WINDOW_MS
from statechannel.protocol.replica import Phase

if TYPE_CHECKING:
    from statechannel.audit.forged_records import ForgedRecords
    from statechannel.http_api.documents import BrokerRow
    from statechannel.kafka.admin import Place
    from statechannel.kafka.topics import TopicSettingDifference

SLOW_LAG_S: Final = 5.0
_DRAIN_ENDS: Final = {
    "left-bundles": "has moved what it could",
    "timed-out": "timed out",
    "failed": "failed",
    "unanswered": "ended without an answer",
}
"""How a drain ended that did not empty its broker, by its state."""


class ProblemKind(StrEnum):
    """Kinds, the worst first."""

    KAFKA_AWAY = "kafka-away"
    HEAD_LOST = "head-lost"
    PARTITIONS_DIFFER = "partitions-differ"
    TOPIC_UNFIT = "topic-unfit"
    REPAIR_PAUSED = "repair-paused"
    REPLICA_DIFFERS = "replica-differs"
    FORGED = "forged"
    NO_LEADER = "no-leader"
    BROKER_LOST = "broker-lost"
    STUCK = "stuck"
    TOPIC_DIFFERS = "topic-differs"
    HOOK_FAILED = "hook-failed"
    REFUSED = "refused"
    THROTTLED = "throttled"
    UNPLACED = "unplaced"
    DRAIN_BLOCKED = "drain-blocked"
    JUNK = "junk"
    FLAPPING = "flapping"
    BLOCKED = "blocked"
    LAG = "lag"
    VERSIONS = "versions"


SEVERE: Final = frozenset(
    {
        ProblemKind.KAFKA_AWAY,
        ProblemKind.HEAD_LOST,
        ProblemKind.PARTITIONS_DIFFER,
        ProblemKind.TOPIC_UNFIT,
        ProblemKind.REPAIR_PAUSED,
        ProblemKind.REPLICA_DIFFERS,
        ProblemKind.FORGED,
        ProblemKind.NO_LEADER,
        ProblemKind.BROKER_LOST,
        ProblemKind.STUCK,
    }
)


class ProblemSeen(NamedTuple):
    """One of them.

    Attributes:
        subject: Broker or bundle.
        since_ms: None if that is unknown.
        hint: What to do next.
    """

    kind: ProblemKind
    subject: str | None
    message: str
    hint: str
    since_ms: int | None = None

    def fields(self) -> dict[str, Any]:
        """The keys of the page's document."""
        return {**self._asdict(), "kind": self.kind.value, "severe": self.kind in SEVERE}


class FlapSeen(NamedTuple):
    """A bundle that changes its owner again and again: the number of its moves within the window, by their cause."""

    bundle: str
    balancer: int
    failure: int
    planned: int


class JunkRate(NamedTuple):
    """Records that no correct process writes, lately.

    Attributes:
        records: In `window_s`.
        verdicts: By verdict, the most first.
    """

    records: int
    window_s: float
    verdicts: Mapping[str, int]


class ClusterLook(NamedTuple):
    """What this process knows of the cluster beyond bundles.

    Attributes:
        at_ms: Wall clock.
        mode: How far it trusts its picture.
        away_since_ms: Since when Kafka has not answered; None while it does.
        lag_s: Age of the oldest partition's view.
        applied: Offset through which each partition was read.
        rejected: Number of rejected records of each verdict since the process began.
        differences: Of the topics that this process reads from what they must be, the hard ones first.
        heads_lost: First offset of each partition of the channel from whose head records were deleted.
        differs: With whom the replica of this process differs, as heartbeats have it.
        forged: By broker and incarnation, what a live member reports of records in its name.
    """

    at_ms: int
    broker: str
    mode: str
    away_since_ms: int | None
    lag_s: float
    applied: Mapping[int, int]
    leader: str | None
    term: int | None
    brokers: Sequence[BrokerRow]
    repair_paused: str | None
    repair_resumes_at_ms: int | None
    rejected: Mapping[str, int]
    differences: Sequence[TopicSettingDifference] = ()
    heads_lost: Mapping[Place, int] = MappingProxyType({})
    differs: Sequence[Mapping[str, Any]] = ()
    forged: Mapping[tuple[str, str], ForgedRecords] = MappingProxyType({})


def problems_of(
    look: ClusterLook,
    owned: Mapping[str, int],
    between: Sequence[Mapping[str, Any]],
    flaps: Sequence[FlapSeen],
    junk: JunkRate | None,
    differing: Sequence[DifferingReplica] = (),
    cordons: Mapping[str, Mapping[str, Any]] = MappingProxyType({}),
    forged: Mapping[tuple[str, str], ForgedRecords] = MappingProxyType({}),
) -> list[ProblemSeen]:
    """All of them.

    Args:
        owned: Bundles by owner.
        between: Rows of what is between two owners, the oldest first.
        flaps: Bundles that change their owner again and again, the worst first.
        junk: None while there is none worth naming.
        differing: Brokers whose accepted states differ from those of others.
        cordons: Rows of `/v1/cordons` by broker.
        forged: What members have reported of records in their names, also if they have ended.
    """
    seen = [
        *_of_cluster(look),
        *_of_topics(look),
        *_of_brokers(look, owned),
        *_of_drains(look, owned, cordons),
        *_of_bundles(look, between, flaps),
        *_of_junk(junk),
        *_of_versions(look),
        *_of_replicas(look, differing),
        *_of_writers(look, forged),
    ]
    order = list(ProblemKind)
    return sorted(seen, key=lambda problem: order.index(problem.kind))


def _of_cluster(look: ClusterLook) -> Iterator[ProblemSeen]:
    if look.away_since_ms is not None:
        yield ProblemSeen(
            ProblemKind.KAFKA_AWAY, None, "Kafka is away: brokers serve what they serve, and nothing is moved or repaired",
            "Look at Kafka's brokers and the network to them; nothing has to be done here when they are back.",
            look.away_since_ms,
        )  # fmt: skip
    elif look.lag_s > SLOW_LAG_S:
        yield ProblemSeen(
            ProblemKind.LAG, None, f"this process is {look.lag_s:.0f} s behind the end of the log",
            "Look at the load of this machine; another broker's page may be newer.",
        )  # fmt: skip
    if look.repair_paused is not None:
        lost = sum(row["state"] == "lost" for row in look.brokers)
        yield ProblemSeen(
            ProblemKind.REPAIR_PAUSED, None, f"mass loss: {lost} brokers were lost together, so the leader does not repair: "
            f"{look.repair_paused}",
            "Probably the network. If the brokers are really gone: `statechannel repair resume`.",
        )  # fmt: skip
    if look.leader is None and look.away_since_ms is None:
        yield ProblemSeen(
            ProblemKind.NO_LEADER, None, "no broker leads: nothing is balanced, and a deputy repairs",
            "It ends by itself within the election's time; if not, `statechannel doctor` says why no broker can lead.",
        )  # fmt: skip


def _of_topics(look: ClusterLook) -> Iterator[ProblemSeen]:
    for place, offset in look.heads_lost.items():
        hint = head_lost_hint(place[0], is_served=any(row["phase"] == Phase.CAUGHT_UP for row in look.brokers))
        yield ProblemSeen(ProblemKind.HEAD_LOST, None, head_lost_sentence(*place, offset), hint)
    for difference in look.differences:
        yield ProblemSeen(
            ProblemKind.TOPIC_UNFIT if difference.hard else ProblemKind.TOPIC_DIFFERS, None,
            f"{difference.topic}: {difference.setting} is {difference.actual}, required {difference.wanted}",
            difference.command or "Nothing has to be done.",
        )  # fmt: skip


def _of_brokers(look: ClusterLook, owned: Mapping[str, int]) -> Iterator[ProblemSeen]:
    for row in look.brokers:
        name = row["broker"]
        if row["state"] == "lost":
            left = owned.get(name, 0)
            waits = f"{left:,} of its bundles wait for repair" if left else "its bundles have other owners"
            yield ProblemSeen(
                ProblemKind.BROKER_LOST, name, f"{name} is lost: its heartbeats have stopped; {waits}",
                "Look whether its process runs, and at its log; it rejoins when it is started again.",
                look.at_ms - row["heard_ago_ms"],
            )  # fmt: skip
            continue
        for hook, failed in row["hooks_failed"].items():
            yield ProblemSeen(
                ProblemKind.HOOK_FAILED, name,
                f"hook {hook} of {name} failed {failed['times']} times, last for {failed['bundle']}: {failed['error']}",
                f"Look at the log of {name}: the hook is code of the service that runs there.",
                look.at_ms - failed["ago_ms"],
            )  # fmt: skip
        refused, throttled = row["refused"], row["throttled"]
        if refused is not None and (sentence := refused_sentence(row)):
            hint = REFUSED_HINTS.get(refused["reason"], "Look at its log.")
            yield ProblemSeen(ProblemKind.REFUSED, name, sentence, hint, refused["since_ms"])
        if throttled is not None and (sentence := throttled_sentence(row)):
            yield ProblemSeen(ProblemKind.THROTTLED, name, sentence, THROTTLED_HINT, throttled["since_ms"])
        unplaced = row["unplaced"]
        if unplaced is not None:
            filtered = unplaced["cause"] == UnplacedCause.POLICIES
            yield ProblemSeen(
                ProblemKind.UNPLACED, name,
                f"{unplaced['bundles']} bundles get no broker, {unplaced['bundle']} among them: {unplaced['message']}",
                "Change the policy that leaves no broker." if filtered else "Start another broker.",
                unplaced["since_ms"],
            )  # fmt: skip
        blocked = row["blocked"]
        if blocked is not None and blocked["ago_ms"] < MOVES_WINDOW_MS:
            where = f" in hook {blocked['hook']}" if blocked["hook"] else ""
            yield ProblemSeen(
                ProblemKind.BLOCKED, name, f"the event loop of {name} was blocked for {blocked['seconds']:.1f} s{where}",
                f"Whatever blocks at {blocked['place']} belongs into a thread.", look.at_ms - blocked["ago_ms"],
            )  # fmt: skip
        if row["draining"] and owned.get(name, 0) and unplaced is not None:
            yield ProblemSeen(
                ProblemKind.DRAIN_BLOCKED, name, f"{name} shuts down, and {_bundles(owned[name])} cannot go to another broker",
                "Change the policy that keeps them here, or start another broker.",
            )  # fmt: skip


def _of_drains(
    look: ClusterLook, owned: Mapping[str, int], cordons: Mapping[str, Mapping[str, Any]]
) -> Iterator[ProblemSeen]:
    """Brokers that take part and whose drain has ended with bundles left."""
    for row in look.brokers:
        name = row["broker"]
        cordon, left = cordons.get(name), owned.get(name, 0)
        end = None if cordon is None else _DRAIN_ENDS.get(cordon["drain_state"] or "")
        if cordon is None or end is None or not left or row["state"] in ("lost", "left"):
            continue
        message = f": {cordon['drain_message']}" if cordon["drain_message"] else ""
        yield ProblemSeen(
            ProblemKind.DRAIN_BLOCKED, name, f"the drain of {name} {end}, and {_bundles(left)} stayed there{message}",
            f"Change the policy that keeps them there and drain {name} again, or uncordon it.", cordon["drain_ended_ms"],
        )  # fmt: skip


def _of_bundles(
    look: ClusterLook, between: Sequence[Mapping[str, Any]], flaps: Sequence[FlapSeen]
) -> Iterator[ProblemSeen]:
    late = [row for row in between if row["due_ms"] is not None and look.at_ms > row["due_ms"]]
    for who, rows in _by_actor(late).items():
        first = rows[0]
        hook = f", hook {first['hook']}" if first["hook"] else ""
        yield ProblemSeen(
            ProblemKind.STUCK, who, f"{_bundles(len(rows))} stuck: {who}{hook} must act and is late; first {first['bundle']}",
            f"Look at the log of {who}; the leader repairs what stays so.", first["since_ms"],
        )  # fmt: skip
    if flaps:
        worst = flaps[0]
        causes = [(worst.balancer, "by the balancer"), (worst.failure, "after failures")]
        who = " and ".join(f"{times} {how}" for times, how in causes if times)
        planned = f" ({worst.planned} planned moves are not counted)" if worst.planned else ""
        others = f"; {len(flaps) - 1} more change theirs as often" if len(flaps) > 1 else ""
        yield ProblemSeen(
            ProblemKind.FLAPPING, worst.bundle,
            f"flapping: {worst.bundle} has changed its owner {worst.balancer + worst.failure} times in "
            f"{MOVES_WINDOW_MS // 60_000} minutes, {who}{planned}{others}",
            "Its timeline has the reason of each move; an override pins it."
            if worst.balancer >= worst.failure else "Its timeline names what failed each time: the brokers lost, or their hooks.",
        )  # fmt: skip


def _bundles(number: int) -> str:
    return "1 bundle" if number == 1 else f"{number:,} bundles"


def _by_actor(rows: Sequence[Mapping[str, Any]]) -> dict[str, list[Mapping[str, Any]]]:
    by: dict[str, list[Mapping[str, Any]]] = {}
    for row in rows:
        by.setdefault(row["who"] or "the leader", []).append(row)
    return by


def _of_junk(junk: JunkRate | None) -> Iterator[ProblemSeen]:
    if junk is not None:
        kinds = ", ".join(f"{count:,} {verdict}" for verdict, count in junk.verdicts.items())
        yield ProblemSeen(
            ProblemKind.JUNK, None, f"junk on the channel: {junk.records:,} records in {junk.window_s:.0f} s are none ({kinds})",
            "`statechannel audit rejected` names who writes them; take that client's right to write away.",
        )  # fmt: skip


def _of_versions(look: ClusterLook) -> Iterator[ProblemSeen]:
    versions = Counter(row["software"] for row in look.brokers if row["software"] is not None)
    if len(versions) > 1:
        listed = ", ".join(f"{count} with {version}" for version, count in sorted(versions.items()))
        yield ProblemSeen(
            ProblemKind.VERSIONS, None, f"brokers run different versions: {listed}",
            "Expected while an upgrade is under way; else finish it.",
        )  # fmt: skip


def _of_replicas(look: ClusterLook, differing: Sequence[DifferingReplica]) -> Iterator[ProblemSeen]:
    for difference in differing:
        message = f"{difference.sentence}: one of them may serve, or refuse, what it should not"
        yield ProblemSeen(ProblemKind.REPLICA_DIFFERS, difference.broker, message, REPLICA_DIFFERS_HINT)
    counts = Counter(row["partitions"] for row in look.brokers if row["partitions"] is not None)
    if len(counts) > 1:
        listed = ", ".join(f"{number} ({_brokers(many)})" for number, many in sorted(counts.items()))
        yield ProblemSeen(
            ProblemKind.PARTITIONS_DIFFER, None, f"brokers distribute keys over different numbers of partitions: {listed}",
            "Two of them may serve one bundle. `statechannel doctor` names them: stop those that read more.",
        )  # fmt: skip


def _of_writers(look: ClusterLook, forged: Mapping[tuple[str, str], ForgedRecords]) -> Iterator[ProblemSeen]:
    for (broker, _), seen in sorted(forged.items()):
        if seen.is_shown(look.at_ms):
            yield ProblemSeen(ProblemKind.FORGED, broker, seen.sentence(broker), FORGED_HINT, seen.timestamp_ms)


def _brokers(number: int) -> str:
    return "1 broker" if number == 1 else f"{number:,} brokers"
