"""Fast path of a replay for plain moves of bundles, which are nearly all records.

It has no rules of its own: a record that passes is one that `codec`, `resolver` and `Debts` accept by
the same tables, and all others go through `View.read`. It saves the objects that
are only needed for a judgement, and so more than half of the time.

`take_plain_moves` is what the optional accelerator replaces by the same, written for a compiler.
"""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, Final, TypeVar

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
from statechannel.protocol.log import RecordRead
from statechannel.protocol.record import FORMAT
from statechannel.protocol.resolver import ROWS
from statechannel.protocol.states import State
from statechannel.protocol.unknown_fields import KNOWN, unknown_in
from statechannel.protocol.verdict import Verdict

if TYPE_CHECKING:
    from collections import Counter
    from collections.abc import Iterable, Sequence

    from statechannel.protocol.log import Topic
    from statechannel.protocol.overruling import Restated, StrictReader
    from statechannel.protocol.view import View

    Row = tuple[Topic, int, int, int, bytes | None, bytes | None]
    RowT = TypeVar("RowT", bound=Row)

_loads: Final = orjson.loads
_STATES: Final = BUNDLE_STATES_BY_NAME
_SPLITTING: Final = State.SPLITTING
_STALE: Final = Verdict.ASSERT_STALE
_ACCEPTED: Final = Verdict.ACCEPTED
_UNSUPPORTED: Final = Verdict.UNSUPPORTED_FORMAT
_PORTION: Final = 500
ANY_OFFSET: Final = -1
"""In place of a position: whatever offsets the records have."""


def read_many(
    view: View,
    records: Sequence[RowT],
    position: int,
    end: int,
    restated: Restated | None = None,
    others: list[RowT] | None = None,
) -> int:
    """Apply records from `position` as `View.read` would, while they have no gap and are below `end`.

    Args:
        records: In the form of `RecordRead`.
        restated: Called with every stale assert.
        others: Gets the applied records that are no plain moves.

    Returns:
        The next position: of the first record that was not applied. A record in a newer format is not, nor is the mark
        of a cold start.
    """
    rows, index = records if isinstance(records, list) else list(records), 0
    while True:
        before, index = index, take_plain_moves(view, rows, index, position, end)
        position += index - before
        if index == len(rows):
            return position
        _, _, offset, _, name, value = rows[index]
        # What follows a mark may have been judged by another view than this one.
        if offset != position or offset >= end or name == COLD_START_KEY:
            return position
        judgement = view.read(offset, name, value)
        if judgement.verdict is _UNSUPPORTED:
            return position
        if others is not None:
            others.append(rows[index])
        if restated is not None and judgement.verdict is _STALE:
            restated.read(offset, judgement)
        position += 1
        index += 1


def judge_many(reader: StrictReader, records: Iterable[Row], verdicts: Counter[Verdict]) -> tuple[int, int] | None:
    """Apply all records as `StrictReader.read` would, with or without gaps between them, and count the verdicts.

    Returns:
        Offset and format of a record in a newer format: no later record was applied. None if there was none.
    """
    source = iter(records)
    while rows := list(islice(source, _PORTION)):
        index = accepted = 0
        while True:
            before, index = index, take_plain_moves(reader.view, rows, index, ANY_OFFSET, 0)
            accepted += index - before
            if index == len(rows):
                break
            record = RecordRead._make(rows[index])
            judgement = reader.read(record)
            verdicts[judgement.verdict] += 1
            if judgement.verdict is _UNSUPPORTED:
                break
            index += 1
        if accepted:
            verdicts[_ACCEPTED] += accepted
        if index < len(rows):
            return record.offset, judgement.format
    return None


def _take_plain_moves(view: View, records: list[Row], first: int, position: int, end: int) -> int:
    """Apply records from index `first` on while they are plain moves.

    Args:
        position: Where the first has to be, and each further one behind the one before it; `ANY_OFFSET` where gaps do not count.
        end: Where to stop, unless gaps do not count.

    Returns:
        Index of the first record that was not applied.
    """
    held, open_debts, writers = view.keys.get, view.ledger.open, view.writers
    place, note, is_known = view.place, view.note, KNOWN.issuperset
    for index, (_, _, offset, _, name, value) in enumerate(islice(records, first, None), first):
        key = held(name)  # type: ignore[arg-type]  # nothing is held under None
        if key is None or value is None or key.lower < 0 or key in open_debts:
            return index
        if position >= 0:
            if offset != position or offset >= end:
                return index
            position += 1
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
            if not (
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
                return index
        except (KeyError, TypeError, ValueError):
            return index  # not a plain move: `View.read` finds the word for it
        place(key, state, version, from_, to)
        note(key, record_id, writer, raw.get("operation"), raw.get("flow"), offset)
        if not is_known(raw):
            key.more = unknown_in(raw)
        key.settled = view.applied = offset
    return len(records)


try:  # the optional package of the folder `accelerator`
    from statechannel_accelerator import take_plain_moves
except ImportError:
    take_plain_moves = _take_plain_moves
