"""Events of a member as structured, rate-limited log lines."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from statechannel.broker.observe.events import EVENTS, EventKind, Level
from statechannel.engine.config import OBSERVER
from statechannel.engine.context import Mode
from statechannel.logger import SafeLogger
from statechannel.operations.outcomes import plain
from statechannel.protocol.states import State
from statechannel.protocol.verdict import MEANING

if TYPE_CHECKING:
    from statechannel.engine.effects import Emit
    from statechannel.protocol.log import RecordRead
    from statechannel.protocol.record import Record
    from statechannel.protocol.view import Judgement

_log = SafeLogger("statechannel")
_WINDOW_S = 1.0
_EMPTY = ("", None)
_CHARACTERS = 1_000
_UNLISTED = EventKind("", Level.INFO, (), "")


class EventLog:
    """Logs events of the engine and the runtime.

    Args:
        least: Minimum level; events below are not formatted.
        per_second_max: Lines of one event per second; further ones are only counted (`flush`).
        counted: Called with the name of each event, except those of single records.
    """

    def __init__(
        self,
        broker: str,
        *,
        least: Level = Level.INFO,
        per_second_max: int = 200,
        counted: Callable[[str], None] | None = None,
    ) -> None:
        self._broker = broker
        self._by = {} if broker == OBSERVER else {"broker": broker}
        self._least = least
        self._max = per_second_max
        self._counted = counted
        self._windows: dict[str, tuple[float, int]] = {}
        self._left_out: Counter[str] = Counter()

    @property
    def tells_all(self) -> bool:
        return self._least <= Level.DEBUG

    def take(self, emit: Emit) -> None:
        name, facts = emit.event, emit.facts
        make = _RECORDS.get(name)
        if make is None:
            if self._counted is not None:
                self._counted(name)
            self._log_event(name, facts, otherwise=name == "mode.changed" and facts.get("mode") == Mode.NORMAL)
        else:
            elsewhere = not self._concerns(name, facts)
            if (Level.DEBUG if elsewhere else Level.INFO) >= self._least:
                self._log_event(name, facts, otherwise=elsewhere, make=make)

    def emit(self, name: str, *, exc_info: BaseException | None = None, **facts: Any) -> None:
        """Log an event of the runtime, with the traceback of an exception; from any thread."""
        if self._counted is not None:
            self._counted(name)
        self._log_event(name, facts, exc_info=exc_info)

    def _concerns(self, name: str, facts: Mapping[str, Any]) -> bool:
        if name != "record.accepted":
            return bool(facts.get("concerns"))
        record, me = facts["record"], self._broker
        return me in (record.to, record.from_, record.broker)

    def _log_event(
        self,
        name: str,
        facts: Mapping[str, Any],
        *,
        otherwise: bool = False,
        make: Callable[[Mapping[str, Any]], Mapping[str, Any]] | None = None,
        exc_info: BaseException | None = None,
    ) -> None:
        entry = EVENTS.get(name, _UNLISTED)
        level = entry.otherwise.level if otherwise and entry.otherwise is not None else entry.level
        if level < self._least or not _log.takes(level) or not self._may(name):
            return
        fields = facts if make is None else make(facts)
        shown = {field: _short(plain(value)) for field, value in fields.items() if value not in _EMPTY}
        _log.log(level, name, exc_info=exc_info, **self._by, **shown)

    def _may(self, name: str) -> bool:
        now_s = time.monotonic()
        began_s, count = self._windows.get(name, (float("-inf"), 0))
        if now_s - began_s >= _WINDOW_S:
            began_s, count = now_s, 0
        self._windows[name] = began_s, count + 1
        if count < self._max:
            return True
        self._left_out[name] += 1
        return False

    def flush(self) -> Mapping[str, int]:
        """Log the numbers of suppressed events since the last call, and return them."""
        left_out, self._left_out = self._left_out, Counter()
        for name, count in left_out.items():
            self.emit("events.suppressed", suppressed=name, count=count)
        return left_out


def _short(value: Any) -> Any:
    if isinstance(value, str) and len(value) > _CHARACTERS:
        return f"{value[:_CHARACTERS]}... ({len(value)} characters)"
    return value


def generation_of(record: Record) -> int | None:
    """The generation by which the owner serves after this record; None without one, or for a namespace."""
    if record.state is State.ASSIGNED:
        return record.version
    return record.version - 1 if record.state in (State.RELEASING, State.SPLITTING) else None


def _accepted(facts: Mapping[str, Any]) -> dict[str, Any]:
    record: Record = facts["record"]
    read: RecordRead = facts["read"]
    return {
        **_place(read),
        **_proposed(record),
        "generation": generation_of(record),
        "action": record.text("action"),
        "flow": record.text("flow"),
        "operation": record.text("operation"),
        "from": record.from_,
        "to": record.to,
        "forced": record.forced or None,
        "reason": record.text("reason"),
        "lost": _lost(record),
    }


def _rejected(facts: Mapping[str, Any]) -> dict[str, Any]:
    judgement: Judgement = facts["judgement"]
    record = judgement.record
    return {
        **_place(facts["read"]),
        **({} if record is None else {**_proposed(record), "operation": record.text("operation")}),
        "verdict": judgement.verdict,
        "why": judgement.why or MEANING[judgement.verdict],
        "winner": facts["winner"],
    }


def _unchanging(facts: Mapping[str, Any]) -> dict[str, Any]:
    judgement: Judgement = facts["judgement"]
    record = judgement.record
    by = {} if record is None else {"by": record.broker, "incarnation": record.incarnation}
    return {**_place(facts["read"]), "verdict": judgement.verdict, **by}


def _lost(record: Record) -> dict[str, Any] | None:
    lost = record.raw.get("lost")
    if not isinstance(lost, dict):
        return None
    known = {name: lost.get(name) for name in ("broker", "incarnation", "last_heard_ms")}
    return {name: _short(value) for name, value in known.items() if isinstance(value, str | int)}


def _place(read: RecordRead) -> dict[str, Any]:
    key = "" if read.key is None else read.key[:_CHARACTERS].decode(errors="replace")
    return {"partition": read.partition, "offset": read.offset, "bundle": key}


def _proposed(record: Record) -> dict[str, Any]:
    return {"state": record.state, "version": record.version, "by": record.broker, "incarnation": record.incarnation}


_RECORDS: dict[str, Callable[[Mapping[str, Any]], Mapping[str, Any]]] = {
    "record.accepted": _accepted,
    "record.rejected": _rejected,
    "record.unchanging": _unchanging,
}
