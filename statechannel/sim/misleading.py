"""Where the log may mislead a lenient reader that nobody vouches to: what a cold start may get wrong (protocol.md section 5)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from statechannel.protocol import codec
from statechannel.protocol.record import Kind, Record
from statechannel.protocol.verdict import Verdict

if TYPE_CHECKING:
    from statechannel.protocol.keys import KeyState
    from statechannel.protocol.log import RecordRead
    from statechannel.sim.log import SimLog
    from statechannel.sim.truth import Truth

_HARMLESS = (Verdict.ACCEPTED, Verdict.ASSERT_EQUAL, Verdict.CONTROL, Verdict.WRONG_PARTITION, Verdict.PURGED)


def misleading(log: SimLog, truth: Truth, through: int) -> set[bytes]:
    """Namespaces with a rejected record that the lenient rule (R4) takes, or with an accepted one that was cleaned away."""
    found = set()
    for offset in range(min(through + 1, truth.end)):
        if truth.verdicts[offset] not in _HARMLESS and _misleads(log, truth, log.entries[offset]):
            found.add((log.entries[offset].key or b"").split(b"/0x")[0])
    return found


def _misleads(log: SimLog, truth: Truth, entry: RecordRead) -> bool:
    key = truth.view.keys.get(entry.key or b"")
    if key is None or key.state is None:
        return entry.key is not None and b"/0x" not in entry.key
    kept = log.next(key.offset)
    if kept is None or kept.offset != key.offset or entry.value is None:
        return True
    record = codec.decode(entry.value, namespace=key.is_namespace)
    if not isinstance(record, Record):
        return False
    if entry.offset < key.offset:
        return record.version >= key.version  # the accepted one comes later, but need not cover this one
    return _taken(record, key)


def _taken(record: Record, key: KeyState) -> bool:
    if key.derived:
        return record.version >= key.version
    return record.version > key.version - (record.kind is Kind.ASSERT) or record.covers >= key.offset
