"""Table of all events of a member: name, level, fields and meaning.

`design/observability.md` is generated from this table, and a test compares it with the code in both directions.
Events of the balancer are explained in `design/reference/decisions-topic.md`.
"""

from __future__ import annotations

from enum import IntEnum
from typing import NamedTuple


class Level(IntEnum):
    DEBUG = 10
    INFO = 20
    WARNING = 30
    ERROR = 40
    CRITICAL = 50


class Otherwise(NamedTuple):
    """A different level in some cases."""

    level: Level
    when: str


class EventKind(NamedTuple):
    """One kind of event.

    Attributes:
        fields: In addition to `event`, `level`, `timestamp` and `broker`, which are in every line. Empty fields
            are omitted.
        otherwise: Different level in some cases.
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
_OF_TOPIC = ("topic", "setting", "actual", "wanted", "hint")

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
        "A proposal was rejected: a lost race, or junk on a key of this broker",
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
        "A record has this broker's id and incarnation, but was written by another process: it is forged",
    ),
    EventKind("operation.began", _D, ("operation", "flow", "bundle", "offset"), "The first record of an operation"),
    EventKind("operation.ended", _I, ("operation", "flow", "bundle", "result", "offset"), "An operation ended"),
    EventKind(
        "hook.failed",
        _E,
        ("hook", "bundle", "generation", "error", "hint", *_ABOUT),
        "A hook raised (with the traceback), overran its deadline, or was not called in time; its documented effect follows",
    ),
    EventKind(
        "hook.late",
        _W,
        ("bundle", *_ABOUT),
        "The engine saw a hook's deadline pass before its end was reported, as after a blocked loop; a hook that is late by "
        "itself is `hook.failed`",
    ),
    # --- this replica
    EventKind(
        "replica.phase", _I, ("partition", "before", "phase", "why"), "The reader of a partition changed its phase"
    ),
    EventKind("replica.caught-up", _I, ("why",), "All partitions are judged: this broker may act"),
    EventKind(
        "replica.differs",
        _C,
        ("partition", "member", "offset", "equal_at", "keys", "their_keys"),
        "The accepted states of this broker and those of another one differ at one offset: one of them reads another log, or "
        "judges otherwise. Both go on; compare each with `statechannel audit verify`",
    ),
    EventKind("replica.agrees", _I, ("partition", "member", "offset"), "Both hold the same states again"),
    EventKind(
        "replica.counts-differ",
        _C,
        ("partition", "member", "partitions", "their_partitions"),
        "Another broker distributes the channel's keys over another number of partitions: stop it, and start it again",
    ),
    EventKind(
        "log.transaction",
        _W,
        ("partition", "first", "through", "count"),
        "Offsets of the channel without a record: a transactional producer writes to it, which brokers never do",
    ),
    EventKind(
        "log.shorter",
        _C,
        ("partition", "known", "position", "why"),
        "The log ends before offsets that brokers have read, or was truncated there, or is another one: this broker waits for "
        "one that knows the rest",
    ),
    EventKind(
        "log.restatement-awaited",
        _W,
        ("partition", "first", "known", "kept", "why", "hint"),
        "Records were deleted from the log: this broker joins when another one has restated them, or, where none has read more, "
        "goes on from the states that it kept (through the offset `kept`)",
    ),
    EventKind(
        "log.restating",
        _W,
        ("partition", "first", "keys"),
        "The log has lost its head: this broker asserts what it knows of it",
    ),
    EventKind(
        "log.restated", _I, ("partition", "first", "keys"), "What was lost is in the log again: brokers may join"
    ),
    EventKind("replica.stopped", _E, ("partition", "format", "why"), "A record of a newer format: upgrade this broker"),
    EventKind(
        "mode.changed",
        _W,
        ("before", "mode"),
        "This broker changed its mode, which says how far it trusts its view of the cluster",
        Otherwise(_I, "the mode is normal again"),
    ),
    EventKind(
        "format.changed",
        _I,
        ("before", "format"),
        "This broker changed the format that it writes: a newer one only while all live brokers read it",
    ),
    EventKind(
        "lease.ran-out", _W, ("silence_s",), "No own heartbeat was read back for a lease: this broker stops serving"
    ),
    EventKind(
        "membership.suspended",
        _W,
        ("silence_s", "mute_s"),
        "This broker cannot serve or accept bundles: it writes no heartbeats, so that its bundles are repaired",
    ),
    EventKind(
        "membership.resumed", _I, (), "It reads back its records of registry and channel again, and is a member again"
    ),
    EventKind(
        "lease.resumed", _I, ("serving",), "The log is available again: it serves the bundles that it still owns"
    ),
    # --- the cluster
    EventKind("member.joined", _I, ("member", "incarnation", "offset"), "A process registered"),
    EventKind("member.left", _I, ("member", "incarnation", "offset"), "A process sent a goodbye"),
    EventKind("member.lost", _W, ("member", "incarnation", "at_ms"), "A process is lost; its bundles are repaired"),
    EventKind(
        "registry.full",
        _E,
        ("members",),
        "There are more brokers than `limits.members_max`: further ones are ignored, and no broker is considered absent",
    ),
    EventKind("leader.elected", _I, ("term",), "This broker leads"),
    EventKind("leader.resigned", _I, (), "This broker does not lead any more"),
    EventKind("leader.withdrew", _W, ("why",), "This broker is unhealthy: it resigns, and does not stand for leader"),
    EventKind("leader.fit-again", _I, (), "It is healthy: it stands for leader again"),
    EventKind("deputy.began", _W, (), "No live leader: this broker repairs, pays debts and answers as deputy"),
    EventKind("deputy.ended", _I, (), "There is a live leader, or this broker cannot be deputy any more"),
    # --- duties
    EventKind(
        "duty.began",
        _I,
        ("duty", "partition", "why"),
        "This broker started to write heartbeats, or to pay debts (`debts`)",
    ),
    EventKind("duty.ended", _I, ("duty", "partition"), "The duty ended: another broker has it, or there are no debts"),
    EventKind("repair.began", _I, ("term",), "This broker started to look for orphans"),
    EventKind("repair.ended", _I, ("why",), "It stopped looking for orphans"),
    EventKind("repair.paused", _W, ("why",), "Too many brokers were lost at once: their bundles are not repaired yet"),
    EventKind("repair.resumed", _I, (), "Repair resumed, after the pause or by a command"),
    EventKind("purge.wrote", _I, ("partition", "keys"), "Unreferenced keys were purged from the log"),
    EventKind(
        "debt.alarm", _E, ("oldest_debt_s", "limit_s", "debts"), "A debt is open for too long: joins wait for it"
    ),
    EventKind("debt.alarm-over", _I, ("oldest_debt_s",), "The old debts are paid"),
    EventKind(
        "cold-start.began",
        _W,
        ("partition", "through"),
        "No broker was caught up: this broker accepts its view as the truth",
    ),
    EventKind("cold-start.abandoned", _W, ("partition",), "A caught-up broker was found after all"),
    EventKind(
        "cold-start.overruled",
        _E,
        ("partition", "bundle", "held", "asserted"),
        "A cold start has changed this key: its previous accepted state is void",
    ),
    EventKind("cold-start.ended", _I, ("partition", "through"), "The cold start is in the log"),
    # --- the process
    EventKind("shutdown.began", _I, ("serving", "budget_s"), "This broker hands over its bundles"),
    EventKind(
        "shutdown.undone", _I, ("serving",), "This broker was to be stopped, stays after all, and takes bundles again"
    ),
    EventKind(
        "stopped",
        _E,
        ("reason", "detail", "serving"),
        "This member has ended, with its reason; `critical` where its event loop was closed under it",
        Otherwise(_I, "it shut down gracefully, or was never up"),
    ),
    EventKind(
        "left-open",
        _E,
        ("serving", "detail"),
        "The program ends, and this member was not closed: its bundles have no owner until it counts as lost",
    ),
    EventKind(
        "kafka.awaited",
        _W,
        ("address", "seconds", "limit_s", "why"),
        "Kafka has not answered yet while this broker opens: it waits on, up to `kafka.command_timeout_s` for each call",
    ),
    EventKind(
        "predecessor.awaited",
        _W,
        ("incarnation", "seconds", "why", "hint"),
        "The former process of this broker said no goodbye: this one waits until that counts as lost, or is refused if it lives",
    ),
    EventKind(
        "kafka.away",
        _W,
        ("reason",),
        "Kafka does not answer the client of this broker; the reason is what its addresses do: `absent` (they refuse, or the "
        "host is unknown), `no-connection`, `no-answer` (suspended or hanging), `closed`, or `answers` (only other partitions)",
    ),
    EventKind("kafka.back", _I, ("away_s",), "Kafka answers again"),
    EventKind(
        "topic.unfit",
        _E,
        _OF_TOPIC,
        "A topic of the channel is not what it must be: a setting, the number of partitions, or it is missing. A guarantee of "
        "the protocol depends on it; this broker goes on. Once for each change",
    ),
    EventKind("topic.differs", _W, _OF_TOPIC, "The same, where no guarantee depends on it"),
    EventKind("topic.mended", _I, ("topic", "setting"), "The topic is as it must be again"),
    EventKind("topic.recreated", _W, ("topic",), "A side topic was deleted and created again: what it held is lost"),
    EventKind(
        "head-lost",
        _C,
        ("topic", "partition", "offset", "hint"),
        "Records were deleted from the head of the channel's log, which now begins at this offset; compaction never moves it",
    ),
    EventKind(
        "kafka.throttled",
        _W,
        ("client", "kind", "seconds", "limit_s", "why"),
        "Kafka delays requests of this client, as it exceeds a quota, one of two: for how many of the last seconds; once a "
        "minute",
    ),
    EventKind("kafka.unthrottled", _I, ("client", "kind"), "Kafka has not delayed its requests for ten seconds"),
    EventKind(
        "append.refused",
        _W,
        ("topic", "code", "why", "count"),
        "Kafka refuses records for this topic for good, by a limit, a right or a rule: to try again does not help; once a minute",
    ),
    EventKind("part-failed", _E, ("part", "error", "restart_in_s"), "A thread ended; it is restarted"),
    EventKind(
        "topic-reader-failed",
        _E,
        ("topic", "error", "restart_in_s"),
        "The reader of a side topic ended; it is restarted",
    ),
    EventKind("topic-reader-late", _W, ("topic", "seconds"), "The reader of a side topic did not end in time"),
    EventKind(
        "loop-blocked",
        _W,
        ("seconds", "hook", "bundle", "place"),
        "The event loop makes no progress: a hook, or other code, blocks it at this place; nothing is read or written meanwhile",
    ),
    EventKind(
        "loop-stuck",
        _C,
        ("seconds", "place", "stack"),
        "The event loop is stuck, at this place; `broker run` ends itself",
    ),
    EventKind("on-stuck-raised", _E, (), "The embedder's `on_stuck` raised"),
    EventKind(
        "invariant-violated", _C, ("error",), "A bug: this member ends, the lines `evidence` have the inputs before it"
    ),
    EventKind(
        "evidence",
        _E,
        ("place", "input"),
        "One of the last inputs before a violated invariant; 0 is the one that violated it",
    ),
    EventKind("closing-failed", _E, (), "A part could not be closed at the end"),
    EventKind("http-route-failed", _E, (), "A bug: a page of the endpoint could not be generated"),
    EventKind("http-connection-failed", _D, ("error",), "A client of the endpoint disconnected, or was cut off"),
    EventKind("events.suppressed", _W, ("suppressed", "count"), "More of one event per second than may be logged"),
    # --- hooks and requests
    EventKind(
        "late-hook-returned",
        _W,
        ("hook", "bundle", "generation", "took_s"),
        "A late hook that ran on after its cancellation has ended (with the traceback if it raised); queued hooks of its bundle "
        "start",
    ),
    EventKind(
        "hooks.no-on-split",
        _W,
        ("hooks", "why", "hint"),
        "At the start: the hooks stop at `on_release` only, which a split does not call for its parent",
    ),
    EventKind("extensions.missing", _W, ("extensions", "hint"), "Settings name extensions that do not run"),
    EventKind(
        "hooks.none", _W, ("hooks", "why", "hint"), "At the start: the class of the hooks overrides none of them"
    ),
    EventKind(
        "hooks-left",
        _W,
        ("running", "not_returned", "not_called", "bundles"),
        "At the end: hooks that did not return in time",
    ),
    EventKind("request-executing", _I, ("operation", "command", "by"), "A command arrived through the requests topic"),
    EventKind("request-failed", _E, ("operation",), "A bug in this broker prevented an answer"),
    EventKind("reply-refused", _E, ("operation", "error"), "The answer cannot be written as a reply"),
    EventKind("extension-request-failed", _E, ("extension", "ask", "operation"), "An extension raised"),
    EventKind("extension-answer-refused", _E, ("extension", "ask", "found"), "An extension returned an invalid answer"),
    EventKind(
        "extension-answer-untold", _E, ("extension", "operation"), "The answer of an extension could not be delivered"
    ),
    EventKind(
        "extension-not-closed", _E, ("extension", "limit_s"), "An extension failed to end, or did not end in time"
    ),
    EventKind("extension-status-failed", _E, ("extension",), "The status of an extension failed"),
)

EVENTS: dict[str, EventKind] = {kind.name: kind for kind in TABLE}

FIELDS: dict[str, str] = {
    "address": "bootstrap servers",
    "action": "action of the record, by its writer",
    "actual": "the value that the topic has",
    "ask": "command of the extension",
    "at_ms": "log time of its last heartbeat",
    "away_s": "seconds without an answer",
    "asserted": "the state after the cold start: a line of the digest; null if it does not exist",
    "before": "the phase or mode before",
    "budget_s": "seconds for the hand-over",
    "bundle": "key: a bundle, or a namespace",
    "bundles": "the first bundles whose hooks were not called",
    "by": "broker that wrote it",
    "client": "`client.id` of the Kafka client",
    "code": "Kafka's name of the error",
    "command": "the command",
    "count": "number of suppressed events, or of refused records since the start",
    "debts": "number of open debts",
    "detail": "a sentence with what to do next",
    "due": "the reaction that waited for the hook",
    "duty": "`heartbeats` or `debts`",
    "equal_at": "the last offset at which both were equal; -1 without one",
    "error": "what went wrong",
    "extension": "name of the extension",
    "flow": "kind of the operation: transfer, unload, split, ...",
    "forced": "a repair by the leader",
    "format": "format of the record",
    "found": "type of the answer",
    "from": "source of the move",
    "generation": "fencing token by which the owner serves",
    "held": "the previous accepted state: a line of the digest; null without one",
    "hint": "what to do next",
    "hook": "which hook",
    "extensions": "their names",
    "hooks": "class of the broker's hooks",
    "id": "id of the record",
    "incarnation": "id of the process, new at every start",
    "input": "the input of the engine",
    "first": "the first of the offsets; that of the log",
    "kept": "offset through which this broker holds the states from before; -1 without them",
    "keys": "number of keys",
    "known": "highest offset that was read",
    "kind": "`producer`, `consumer` or `admin`",
    "limit_s": "seconds after which an alarm is raised, or a call ends; or that were measured",
    "lost": "the lost owner, and when it was last heard",
    "member": "the broker concerned",
    "members": "number of live brokers",
    "mode": "`starting`, `normal`, `safe` or `settling`",
    "not_called": "hooks still queued behind others",
    "not_returned": "the first hooks that run on, with their bundles",
    "offset": "offset of the record, or of the bundle's last accepted one",
    "oldest_debt_s": "age of the oldest debt",
    "operation": "id of the operation: the same in all its records and in its trace",
    "part": "`reader`, `registry-reader` or `election`",
    "partition": "partition of the channel",
    "phase": "phase of the reader",
    "place": "the innermost calls, or a position before the last portion, negative",
    "reason": "a code, or the caller's reason",
    "restart_in_s": "seconds until the restart",
    "result": "transferred, owned, declined, superseded, ...",
    "running": "bundles whose hook runs",
    "seconds": "duration in seconds",
    "serving": "bundles served",
    "setting": "setting of the topic; `partitions`, or `topic` for the topic itself",
    "mute_s": "seconds since own records of the channel are not read back although another member could lead",
    "silence_s": "age of the view",
    "stack": "all calls of the loop's thread, the innermost first",
    "state": "state in the record",
    "suppressed": "the event",
    "term": "offset of the leadership claim",
    "through": "offset",
    "partitions": "number of partitions by which this broker distributes keys",
    "position": "next offset of this broker",
    "their_keys": "the other broker's number of keys",
    "their_partitions": "the other broker's number of partitions",
    "to": "destination",
    "took_s": "seconds since the request",
    "topic": "`channel` or `registry`, or the name of a topic",
    "verdict": "verdict (protocol.md)",
    "version": "version of the key",
    "wanted": "the value that it must have",
    "why": "a sentence",
    "winner": "id of the accepted record that came first",
}
