"""Fast path of a replay for plain moves of bundles, which are nearly all records.

It has no rules of its own: a record that passes is one that `codec`, `resolver` and `Debts` accept by
the same tables, and all others go through `View.read`. It saves the objects that
are only needed for a judgement, and so more than half of the time.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import orjson

from statechannel.protocol.codec import (
    BRACE,
    BUNDLE_STATES_BY_NAME,
    COLD_START_KEY,
    ID,
    MAX_DEPTH,
    MAX_INT,
    MAX_VALUE_SIZE_BYTES,
    NAMES,
    SQUARE,
)
from statechannel.protocol.record import FORMAT
from statechannel.protocol.resolver import ROWS
from statechannel.protocol.states import State
from statechannel.protocol.verdict import Verdict

if TYPE_CHECKING:
    from collections import Counter
    from collections.abc import Iterable

    from statechannel.protocol.log import Topic
    from statechannel.protocol.overruling import Restated
    from statechannel.protocol.view import View

    Row = tuple[Topic, int, int, int, bytes | None, bytes | None]

_loads = orjson.loads
_STATES = BUNDLE_STATES_BY_NAME
_SPLITTING = State.SPLITTING
_STALE = Verdict.ASSERT_STALE
_ACCEPTED, _UNSUPPORTED = Verdict.ACCEPTED, Verdict.UNSUPPORTED_FORMAT


class _Taken(NamedTuple):
    """Progress of a bulk reader.

    Attributes:
        position: The next offset to read.
        accepted: Number of plain moves among the applied records.
        newer_format: That of the record at which it stopped; 0 if it did not stop for one.
    """

    position: int
    accepted: int
    newer_format: int


def read_many(view: View, records: Iterable[Row], position: int, end: int, restated: Restated | None = None) -> int:
    """Apply records from `position` as `View.read` would, while they have no gap and are below `end`.

    Args:
        records: In the form of `RecordRead`.
        restated: Called with every stale assert.

    Returns:
        The next position: of the first record that was not applied. A record in a newer format is not, nor is the mark
        of a cold start.
    """
    return _read(view, records, position, end, None, restated).position


def judge_many(view: View, records: Iterable[Row], verdicts: Counter[Verdict]) -> tuple[int, int] | None:
    """Apply all records as `View.read` would, with or without gaps between them, and count the verdicts.

    Returns:
        Offset and format of a record in a newer format: no later record was applied. None if there was none.
    """
    taken = _read(view, records, 0, 0, verdicts)
    if taken.accepted:
        verdicts[_ACCEPTED] += taken.accepted
    return (taken.position, taken.newer_format) if taken.newer_format else None


def _read(
    view: View,
    records: Iterable[Row],
    position: int,
    end: int,
    verdicts: Counter[Verdict] | None,
    restated: Restated | None = None,
) -> _Taken:
    accepted = 0
    read, held, open_debts, writers = view.read, view.keys.get, view.ledger.open, view.writers
    place, note = view.place, view.note
    for _, _, offset, _, name, value in records:
        if verdicts is None and (offset != position or offset >= end):
            break
        key = held(name)  # type: ignore[arg-type]  # nothing is held under None
        if key is not None and value is not None and key.lower >= 0 and key not in open_debts:
            try:
                raw = _loads(value)
                by, record_id, covers, version = raw["by"], raw["id"], raw["covers"], raw["version"]
                from_, to = raw["from"], raw["to"]
                if from_ is not None:
                    from_ = NAMES[from_]
                if to is not None:
                    to = NAMES[to]
                writer = writers[by["incarnation"]]
                state = _STATES[raw["state"]]
                is_met, from_fits, to_fits, has_children = ROWS[key.state][state]  # type: ignore[index]
                tail = value[MAX_DEPTH:]
                if (
                    version == key.version + 1
                    and raw["base"] == (key.accepted_id if key.derived else key.record_id) != record_id
                    and (is_met is None or is_met(key))
                    and from_fits(from_, from_, key)
                    and to_fits(to, from_, key)
                    and by["broker"] == writer.broker
                    and raw["format"] is FORMAT
                    and raw["kind"] == "proposal"
                    and type(version) is int
                    and version <= MAX_INT
                    and type(covers) is int
                    and key.settled <= covers <= MAX_INT
                    and ID(record_id) is not None
                    and "forced" not in raw
                    and not has_children
                    and state is not _SPLITTING
                    and BRACE not in tail
                    and SQUARE not in tail
                    and len(value) <= MAX_VALUE_SIZE_BYTES
                ):
                    place(key, state, version, from_, to)
                    note(key, record_id, writer, raw, offset)
                    key.settled = view.applied = offset
                    position = offset + 1
                    accepted += 1
                    continue
            except (KeyError, TypeError, ValueError):
                pass  # not a plain move: `View.read` finds the word for it
        if verdicts is None and name == COLD_START_KEY:
            break  # what follows may have been judged by another view than this one
        judgement = read(offset, name, value)
        verdict = judgement.verdict
        if verdicts is not None:
            verdicts[verdict] += 1
        if verdict is _UNSUPPORTED:
            return _Taken(offset, accepted, judgement.format)
        if restated is not None and verdict is _STALE:
            restated.read(offset, judgement)
        position = offset + 1
    return _Taken(position, accepted, 0)
