"""How things are told in scenario files: one line each."""

from typing import Any

import orjson

from statechannel.audit.gaps import Gap
from statechannel.engine.commands import (
    BoundTo,
    Done,
    NotFound,
    Outcome,
    Owned,
    Rejected,
    Started,
    Undetermined,
    Unknown,
    Unowned,
)
from statechannel.engine.effects import CallHook, Emit
from statechannel.protocol.keys import KeyState

_SHOWN_MAX = 60
# Operations that nobody named have ids of the engine's own, which tell a reader nothing.
_ULID_LENGTH = 26
EPOCH_MS = 1_700_000_000_000


def record_line(where: str, key: bytes, value: bytes | None, verdict: str) -> str:
    """`offset key version state from->to (action by writer) verdict`."""
    name = key.decode(errors="replace")
    return f"{where:>3} {name} {_value(name, value)}: {verdict}"


def _value(name: str, value: bytes | None) -> str:
    if value is None:
        return "null"
    try:
        record = orjson.loads(value)
    except orjson.JSONDecodeError:
        record = None
    if not isinstance(record, dict):
        text = value.decode(errors="replace")
        return f"`{text[:_SHOWN_MAX]}`"
    kind = record.get("kind")
    if kind == "heartbeat":
        return f"clean_to={record.get('clean_to')} by {_writer(record)}"
    if name.startswith("!"):
        return " ".join(f"{field}={content}" for field, content in record.items())
    if kind not in ("proposal", "assert"):
        return f"`{value.decode(errors='replace')[:_SHOWN_MAX]}`"
    parts = ["assert"] if kind == "assert" else []
    parts.append(f"v{record.get('version')} {record.get('state')}")
    if "from" in record or "to" in record:
        parts.append(_brokers(record.get("from"), record.get("to")))
    if record.get("children"):
        parts.append(f"{{{' '.join(_short(child) for child in record['children'])}}}")
    parts.append(f"({_aside(record)})")
    return " ".join(part for part in parts if part)


def _brokers(from_: object, to: object) -> str:
    return f"{from_ or ''}->{to or ''}" if from_ or to else ""


def _short(child: str) -> str:
    return child.replace("0x", "")


def _writer(record: dict[str, Any]) -> str:
    by = record.get("by")
    if not isinstance(by, dict):
        return "?"
    incarnation = str(by.get("incarnation"))
    return str(by.get("broker")) if incarnation.endswith("-1") else incarnation.replace("-", "#")


def _aside(record: dict[str, Any]) -> str:
    words = [str(record["action"])] if "action" in record else []
    if record.get("forced"):
        words.append("forced")
    words.append(f"by {_writer(record)}")
    if record.get("format") != 1:
        words.append(f"format {record.get('format')}")
    lost = record.get("lost")
    if isinstance(lost, dict):
        heard_ms = lost.get("last_heard_ms")
        heard = "never" if heard_ms is None else f"{(heard_ms - EPOCH_MS) / 1000:.1f}"
        words.append(f"lost {lost.get('incarnation')} last heard {heard}")
    operation = record.get("operation")
    if isinstance(operation, str) and len(operation) < _ULID_LENGTH:
        words.append(f"op {operation}")
    return ", ".join(words)


def hook(effect: CallHook) -> str:
    """A call of the embedding broker."""
    peer = f" peer={effect.peer}" if effect.peer is not None else ""
    return f"{effect.hook} {effect.bundle} generation={effect.generation}{peer}"


def answer(outcome: Outcome) -> str:
    """What a caller is told."""
    match outcome:
        case Owned():
            stale = "" if outcome.stale_age_s is None else f", STALE for {outcome.stale_age_s:.1f} s"
            urls = " ".join(outcome.urls.values())
            return (
                f"owned by {outcome.broker} at {urls or '?'}, generation {outcome.generation}, {outcome.bundle}{stale}"
            )
        case Unowned():
            return f"unowned, {outcome.bundle}"
        case BoundTo():
            return f"bound to {outcome.broker} at {' '.join(outcome.urls.values())}"
        case NotFound():
            return f"not found: {outcome.message}"
        case Undetermined():
            return f"undetermined ({outcome.reason}): {outcome.message}"
        case Started():
            return f"started {outcome.operation} on {outcome.bundle} at offset {outcome.offset}"
        case Done():
            facts = "".join(f" {name}={value}" for name, value in outcome.facts.items())
            return f"done: {outcome.result}{facts}"
        case Rejected():
            return f"rejected ({outcome.reason}): {outcome.message}"
        case Unknown():
            return f"unknown: {outcome.message}"


_TOLD = {
    "format.changed",
    "cold-start.began",
    "cold-start.ended",
    "hook.late",
    "leader.elected",
    "leader.resigned",
    "lease.ran-out",
    "member.lost",
    "mode.changed",
    "repair.paused",
    "repair.resumed",
    "replica.caught-up",
    "replica.phase",
    "replica.stopped",
    "shutdown.began",
    "shutdown.undone",
}
_FACTS_LEFT_OUT = {"at_ms", "broker", "error", "offset", "operation", "version"}


def event(effect: Emit) -> str:
    """An event worth telling, or an empty string."""
    if effect.event not in _TOLD:
        return ""
    facts = effect.facts
    if effect.event == "replica.phase":
        phase = str(facts["phase"])
        return f"{phase}: {facts['why']}" if phase in ("waiting", "start-over") else ""
    if effect.event == "replica.caught-up":
        return "" if str(facts["why"]).startswith("no gaps") else f"is caught up: {facts['why']}"
    if effect.event == "mode.changed":
        return f"is in mode {facts['mode']}"
    if effect.event == "leader.elected":
        return "leads"
    if effect.event == "member.lost":
        return f"has lost {facts['incarnation']}"
    told = " ".join(f"{name}={_plain(value)}" for name, value in facts.items() if name not in _FACTS_LEFT_OUT)
    return f"{effect.event} {told}".rstrip()


def _plain(value: object) -> str:
    return f"{value:.1f}" if isinstance(value, float) else str(value)


def state_line(key: KeyState) -> str:
    """One accepted state."""
    return f"{key.name} v{key.version} {key.state} {_brokers(key.from_, key.to)}".rstrip()


def audit_line(answer: dict[str, Any]) -> str:
    """How the log was read, what was judged, and how it stands."""
    words = [f"read {answer['read']}" + (", tentatively" if answer.get("tentative") else "")]
    words += [f"{count} {verdict}" for verdict, count in sorted(answer["rejected"].items())]
    words += [f"debt on {debt['key']}" for debt in answer["debts"]]
    words += [f"{broker} owns {count}" for broker, count in sorted(answer["owners"].items())]
    words += [f"stopped at {stop['offset']} by format {stop['format']}" for stop in answer.get("stopped", {}).values()]
    return f"audit: {answer['accepted']} accepted, " + ", ".join(words)


def gap_line(gap: Gap) -> str:
    """Who served before and after, between which offsets, and why nobody did."""
    doubt = "" if gap.certain else ", perhaps"
    return (
        f"gap on {gap.bundle}: {gap.before or '-'} {gap.start_offset} to {gap.after or '-'} "
        f"{'-' if gap.end_offset is None else gap.end_offset} ({gap.cause}{doubt}: {gap.why})"
    )
