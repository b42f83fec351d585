"""Every event that a member tells, as data: its name, its level, its fields, and what it means.

`design/observability.md` is made from this table, and a test holds it against the code: nothing is told that is not
here, and nothing is here that is not told. Events of the balancer are explained in `design/decisions-topic.md`.
"""

from __future__ import annotations

from enum import IntEnum
from typing import NamedTuple


class Level(IntEnum):
    """How loud; the numbers are those of `logging`."""

    DEBUG = 10
    INFO = 20
    WARNING = 30
    ERROR = 40
    CRITICAL = 50


class Otherwise(NamedTuple):
    """Another level in some cases."""

    level: Level
    when: str


class EventKind(NamedTuple):
    """One kind of event.

    Attributes:
        fields: Besides `event`, `level`, `timestamp` and `broker` (who tells), which stand in every line. What is empty
            is left out.
        otherwise: Where the level depends on what happened.
    """

    name: str
    level: Level
    fields: tuple[str, ...]
    meaning: str
    otherwise: Otherwise | None = None


_D, _I, _W, _E, _C = Level.DEBUG, Level.INFO, Level.WARNING, Level.ERROR, Level.CRITICAL
_ELSEWHERE = Otherwise(_D, "it concerns other brokers only")
_RECORD = ("partition", "offset", "bundle", "state", "version")
_BY = ("by", "incarnation")
_ABOUT = ("due", "version", "operation", "offset")

TABLE: tuple[EventKind, ...] = (
    # --- bundles
    EventKind(
        "record.accepted",
        _I,
        (*_RECORD, "generation", "action", "flow", "operation", "from", "to", *_BY, "forced", "reason", "lost"),
        "The state of a bundle or namespace changed",
        _ELSEWHERE,
    ),
    EventKind(
        "record.rejected",
        _I,
        (*_RECORD, "verdict", "why", "operation", *_BY, "winner"),
        "A proposal came to nothing: a lost race, or junk on a key of this broker",
        _ELSEWHERE,
    ),
    EventKind(
        "record.unchanging",
        _D,
        ("partition", "offset", "bundle", "verdict", *_BY),
        "Any other record: heartbeats, asserts, duplicates, purges",
    ),
    EventKind(
        "record.forged",
        _C,
        ("topic", "partition", "offset", "bundle", "state", "version", "id"),
        "A record bears this broker's id and incarnation, and this broker did not write it: somebody else writes in its name",
    ),
    EventKind("operation.began", _D, ("operation", "flow", "bundle", "offset"), "The first record of an operation"),
    EventKind(
        "operation.ended", _I, ("operation", "flow", "bundle", "result", "offset"), "An operation came to its end"
    ),
    EventKind(
        "hook.failed",
        _W,
        ("bundle", "error", *_ABOUT),
        "A hook raised or was given up; the documented way out is taken",
    ),
    EventKind("hook.late", _W, ("bundle", *_ABOUT), "A hook did not return within its deadline, nor did its time-out"),
    # --- this replica
    EventKind(
        "replica.phase", _I, ("partition", "before", "phase", "why"), "The reader of a partition came further or back"
    ),
    EventKind("replica.caught-up", _I, ("why",), "All partitions are judged: this broker may act"),
    EventKind("replica.stopped", _E, ("partition", "format", "why"), "A record of a newer format: upgrade this broker"),
    EventKind(
        "mode.changed",
        _W,
        ("before", "mode"),
        "How far this broker trusts its picture of the cluster",
        Otherwise(_I, "the mode is normal again"),
    ),
    EventKind(
        "format.changed",
        _I,
        ("before", "format"),
        "This broker writes another format from now on: a newer one only while all that are heard read it",
    ),
    EventKind("lease.ran-out", _W, ("silence_s",), "This broker did not hear itself for a lease: it serves nothing"),
    EventKind(
        "membership.suspended",
        _W,
        ("silence_s", "mute_s"),
        "This broker serves nothing and cannot take anything up: it writes no heartbeats, so that the others repair",
    ),
    EventKind(
        "membership.resumed", _I, (), "It hears itself in the registry and in the channel again, and is a member again"
    ),
    EventKind("lease.resumed", _I, ("serving",), "The log is back: what is still its own is taken up again"),
    # --- the cluster
    EventKind("member.joined", _I, ("member", "incarnation", "offset"), "A process registered"),
    EventKind("member.left", _I, ("member", "incarnation", "offset"), "A process said goodbye"),
    EventKind(
        "member.lost",
        _W,
        ("member", "incarnation", "at_ms"),
        "A process is not heard any more; its bundles are repaired",
    ),
    EventKind(
        "registry.full",
        _E,
        ("members",),
        "More brokers are heard than may be (`limits.members_max`): newcomers are not taken in, and nobody is called absent",
    ),
    EventKind("leader.elected", _I, ("term",), "This broker leads"),
    EventKind("leader.resigned", _I, (), "This broker leads no more"),
    EventKind(
        "leader.withdrew", _W, ("why",), "This broker is sick: it gives the leader's seat up, and stands no more"
    ),
    EventKind("leader.fit-again", _I, (), "It is well: it stands for leader again"),
    EventKind("deputy.began", _W, (), "No leader is heard: this broker repairs, pays and answers in its place"),
    EventKind("deputy.ended", _I, (), "A leader is heard, or this broker cannot go on in its place"),
    # --- duties
    EventKind(
        "duty.began",
        _I,
        ("duty", "partition", "why"),
        "This broker began to write heartbeats, or to pay debts (`debts`)",
    ),
    EventKind("duty.ended", _I, ("duty", "partition"), "It ended: somebody else does it, or nothing is owed"),
    EventKind("repair.began", _I, ("term",), "This broker looks for orphans from now on"),
    EventKind("repair.ended", _I, ("why",), "It does not any more"),
    EventKind("repair.paused", _W, ("why",), "Too many brokers vanished at once: their bundles wait"),
    EventKind("repair.resumed", _I, (), "Repair goes on, by itself or because it was told to"),
    EventKind("purge.wrote", _I, ("partition", "keys"), "Keys that nothing refers to were taken out of the log"),
    EventKind(
        "debt.alarm", _E, ("oldest_debt_s", "limit_s", "debts"), "A debt is open for far too long: joins wait for it"
    ),
    EventKind("debt.alarm-over", _I, ("oldest_debt_s",), "The old debts are paid"),
    EventKind(
        "cold-start.began",
        _W,
        ("partition", "through"),
        "Nobody was caught up: this broker takes what it read for true",
    ),
    EventKind("cold-start.abandoned", _W, ("partition",), "A caught-up broker was heard after all"),
    EventKind(
        "cold-start.overruled",
        _E,
        ("partition", "bundle", "held", "asserted"),
        "A cold start has changed this key: what was accepted before it does not count any more",
    ),
    EventKind("cold-start.ended", _I, ("partition", "through"), "The cold start is in the log"),
    # --- the process
    EventKind("shutdown.began", _I, ("serving", "budget_s"), "This broker hands its bundles over"),
    EventKind(
        "stopped",
        _E,
        ("reason", "detail"),
        "This member has ended; reasons are in cli.md",
        Otherwise(_I, "it left in order, or was never up"),
    ),
    EventKind("kafka.away", _W, (), "Kafka does not answer the client of this broker"),
    EventKind("kafka.back", _I, ("away_s",), "It answers again"),
    EventKind(
        "part-failed", _E, ("part", "error", "restart_in_s"), "A thread at the loop's side ended; it is started again"
    ),
    EventKind("loop-stuck", _C, ("seconds", "stack"), "The loop stands still, here; `broker run` ends itself"),
    EventKind("on-stuck-raised", _E, (), "What the embedder wants done then failed"),
    EventKind("invariant-violated", _C, ("error",), "A bug: this member ends, the lines `evidence` say what led to it"),
    EventKind(
        "evidence", _E, ("place", "input"), "One of the last inputs before a violated invariant, 0 the next after them"
    ),
    EventKind("closing-failed", _E, (), "Something could not be closed at the end"),
    EventKind("http-route-failed", _E, (), "A bug: a page of the endpoint could not be made"),
    EventKind("http-connection-failed", _D, ("error",), "A client of the endpoint went away, or was cut off"),
    EventKind("events.suppressed", _W, ("suppressed", "count"), "More of one event than may be said in a second"),
    # --- hooks and requests
    EventKind("hook-raised", _E, ("hook", "bundle"), "With the traceback, for whoever wrote the hook"),
    EventKind("hook-failed", _W, ("bundle", "generation", "error"), "A hook raised, or overran its deadline"),
    EventKind(
        "late-hook-returned",
        _W,
        ("hook", "bundle", "generation", "took_s"),
        "One that had overrun its deadline has ended; what waited behind it begins",
    ),
    EventKind("hooks-left", _W, ("running", "not_called", "bundles"), "At the end: hooks that did not return in time"),
    EventKind("request-executing", _I, ("operation", "command", "by"), "A command came through the requests topic"),
    EventKind("request-failed", _E, ("operation",), "A bug in this broker kept it from an answer"),
    EventKind("reply-refused", _E, ("operation", "error"), "The answer cannot be written as a reply"),
    EventKind("extension-request-failed", _E, ("extension", "ask", "operation"), "An extension raised"),
    EventKind(
        "extension-answer-refused", _E, ("extension", "ask", "found"), "An extension answered with something else"
    ),
    EventKind("extension-answer-untold", _E, ("extension", "operation"), "Its answer could not be handed on"),
    EventKind("extension-not-closed", _E, ("extension",), "An extension did not end"),
    EventKind("extension-status-failed", _E, ("extension",), "An extension could not say how it stands"),
)

EVENTS: dict[str, EventKind] = {kind.name: kind for kind in TABLE}

FIELDS: dict[str, str] = {
    "action": "what the record does, as its writer says",
    "ask": "what the extension was asked",
    "at_ms": "log time of its last heartbeat",
    "away_s": "seconds without an answer",
    "asserted": "what the cold start makes of it: a line of the digest; null where it does not exist",
    "before": "the phase or mode before",
    "budget_s": "seconds for the hand-over",
    "bundle": "key: a bundle, or a namespace",
    "bundles": "the first of those whose hooks were not called",
    "by": "broker that wrote it",
    "command": "the command",
    "count": "how many were not said",
    "debts": "debts that are open",
    "detail": "a sentence with what to do next",
    "due": "the reaction that waited for the hook",
    "duty": "`heartbeats` or `debts`",
    "error": "what went wrong",
    "extension": "name of the extension",
    "flow": "what the operation is: transfer, unload, split, ...",
    "forced": "a repair by the leader",
    "format": "format of the record",
    "found": "type of what came",
    "from": "source of the move",
    "generation": "fencing token by which the owner serves",
    "held": "what was accepted before: a line of the digest; null where nothing was",
    "hook": "which hook",
    "id": "id of the record",
    "incarnation": "the process, new for every start",
    "input": "as the engine got it",
    "keys": "how many",
    "limit_s": "seconds after which it is an alarm",
    "lost": "whose bundle it was, and when that process was last heard",
    "member": "the broker that it is about",
    "members": "brokers that are heard",
    "mode": "`starting`, `normal`, `safe` or `settling`",
    "not_called": "hooks that still waited for one before them",
    "offset": "place in the log; of the record, or of the last that was accepted on the bundle",
    "oldest_debt_s": "age of the oldest debt",
    "operation": "id of the operation: the same in all its records and in its trace",
    "part": "`reader`, `registry-reader` or `election`",
    "partition": "partition of the channel",
    "phase": "how far the reader is",
    "place": "negative: so many before the last portion",
    "reason": "a word, or what the caller gave as reason",
    "restart_in_s": "seconds until it is started again",
    "result": "transferred, owned, declined, superseded, ...",
    "running": "bundles whose hook runs",
    "seconds": "how long",
    "serving": "bundles served",
    "mute_s": "seconds since own records of the channel are not read back although another member could lead",
    "silence_s": "age of the picture",
    "stack": "where the loop's thread is",
    "state": "state that the record asks for",
    "suppressed": "the event",
    "term": "offset of the claim to lead",
    "through": "offset",
    "to": "destination",
    "took_s": "seconds since it was asked for",
    "topic": "`channel` or `registry`",
    "verdict": "why it was rejected, or what it is (protocol.md)",
    "version": "version of the key",
    "why": "a sentence",
    "winner": "id of the accepted record that stood in its way",
}
