"""Records in the name of a process that it did not write: who is told, and that nobody serves by them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from statechannel.protocol import codec
from statechannel.protocol.bundle import parse_key
from statechannel.protocol.log import RecordRead, Topic
from statechannel.protocol.record import Record
from statechannel.sim.violation import Violation

if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any

    from statechannel.sim.process import SimProcess


class Forgeries:
    """What forgers have written, and which victims have read it."""

    def __init__(self) -> None:
        self._victims: dict[tuple[int, int], str] = {}
        self._contents: dict[tuple[bytes, bytes | None], str] = {}
        self._read: dict[str, set[tuple[int, int]]] = {}

    @staticmethod
    def own_record(process: SimProcess, entry: RecordRead) -> Record | None:
        """The entry of a log as a record of a process; None where it names another one, or cannot be decoded."""
        parts = None if entry.key is None else parse_key(entry.key)
        if parts is None or entry.value is None:
            return None
        record = codec.decode(entry.value, namespace=parts.is_namespace)
        if not isinstance(record, Record) or (record.broker, record.incarnation) != (
            process.broker,
            process.incarnation,
        ):
            return None
        return record

    def written(self, victim: SimProcess, key: bytes, value: bytes | None) -> None:
        """A forger is about to write in the name of this process."""
        self._contents[key, value] = victim.incarnation

    def appended(self, record: RecordRead) -> None:
        """A record is in the log; a forged one may be there more than once."""
        incarnation = self._contents.get((record.key or b"", record.value))
        if incarnation is not None:
            self._victims[record.partition, record.offset] = incarnation

    def is_forged(self, partition: int, offset: int) -> bool:
        """Whether a forger wrote this record."""
        return (partition, offset) in self._victims

    def stepped(self, process: SimProcess, records: Iterable[RecordRead]) -> None:
        """A process has taken in some records: it has counted each that bears its name and is not its own, and no other."""
        seen = self._read.setdefault(process.incarnation, set())
        for record in records:
            place = (record.partition, record.offset)
            if record.topic is Topic.CHANNEL and self._victims.get(place) == process.incarnation:
                seen.add(place)
        if process.engine.stopped is None and process.engine.provenance.forged != len(seen):
            raise Violation(
                "forged",
                f"{process.name} counts {process.engine.provenance.forged} forged records, and has read {len(seen)}",
            )

    def emitted(self, process: SimProcess, facts: dict[str, Any]) -> None:
        """A process tells of a forged record."""
        if self._victims.get((facts["partition"], facts["offset"])) != process.incarnation:
            raise Violation("forged", f"{process.name} calls the record at {facts['offset']} forged, and it is not")
