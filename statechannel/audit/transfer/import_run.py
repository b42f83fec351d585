"""Execution of an import: records already in the target, and those still to be written. Pure.

`Importer` receives every record of the target, including its own, and judges them as every broker will: its writes count
when they are read back. It has no other state, so a killed import resumes from the target's content.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, NamedTuple

from statechannel.audit.errors import ImportRefusedError
from statechannel.audit.transfer.import_plan import ImportPlan, PlannedNamespace
from statechannel.protocol import codec
from statechannel.protocol.bundle import bundle_key, children_of, parse_key, partition_of
from statechannel.protocol.keys import KeyState
from statechannel.protocol.log import RecordRead
from statechannel.protocol.record import FORMAT, Kind
from statechannel.protocol.states import State
from statechannel.protocol.verdict import Verdict
from statechannel.protocol.view import Judgement, View

BROKER = "statechannel-import"
FLOW = "import"
_TRIES = 3
_ANEW = (
    "Import into a new channel: another --channel; or stop its brokers, delete its topics and run `statechannel init`."
)


class ImportWrite(NamedTuple):
    """A record to be appended."""

    partition: int
    key: bytes
    value: bytes


class ImportStage(StrEnum):
    """Progress of an import."""

    SURVEY = "survey"  # the target is read as it is
    MARKS = "marks"
    RECORDS = "records"
    END_MARKS = "end-marks"
    DONE = "done"


class ImportMark(NamedTuple):
    """Content of an `!import` record."""

    operation: str
    finished: bool


@dataclass(slots=True)
class Counts:
    """Counts of an import.

    Attributes:
        written: Records of this run that were accepted.
        present: Records of the plan that the target had already, when this run began.
        gone_on: Bundles and namespaces changed by others since; they are not touched.
    """

    written: int = 0
    present: int = 0
    gone_on: int = 0


@dataclass(slots=True)
class _Partition:
    """State of a partition of the target.

    Attributes:
        gap: Records before the first one of a bundle or namespace are missing: heartbeats, or the mark of a finished import.
        unexplained: A record without a mark before it; only a later mark of a finished import explains it.
        compacted: Records of bundles or namespaces are missing.
        other: The newest mark, if it is of another import.
    """

    view: View
    mark: ImportMark | None = None
    holds_keys: bool = False
    gap: bool = False
    unexplained: RecordRead | None = None
    compacted: bool = False
    other: ImportMark | None = None


class Importer:
    """Executes a plan: each record is written after the previous one was read back.

    Args:
        partitions: Those of the target's topic.
        about: Source of the import, as text in every record.
        facts: Additional facts in the marks.
    """

    def __init__(
        self,
        plan: ImportPlan,
        partitions: int,
        *,
        incarnation: str,
        new_id: Callable[[], str],
        about: str,
        facts: dict[str, Any],
        now_ms: Callable[[], int],
    ) -> None:
        self.plan = plan
        self.counts = Counts()
        self.stage = ImportStage.SURVEY
        self._by = {"broker": BROKER, "incarnation": incarnation}
        self._new_id = new_id
        self._about = about
        self._facts = facts
        self._now_ms = now_ms
        self._parts = [_Partition(View(number, partitions)) for number in range(partitions)]
        self._planned = {namespace.name: namespace for namespace in plan.namespaces}
        self._todo: list[deque[str]] = [deque() for _ in range(partitions)]
        self._on_their_way: dict[str, str] = {}
        self._tries: dict[str, int] = {}

    @property
    def views(self) -> list[View]:
        return [part.view for part in self._parts]

    def position(self, partition: int) -> int:
        return self._parts[partition].view.applied + 1

    # --- reading ----------------------------------------------------------------------------------------------------

    def take(self, record: RecordRead) -> None:
        """Apply the next record of a partition.

        Raises:
            ImportRefusedError: The target is not empty, or another process writes to it.
        """
        part = self._parts[record.partition]
        if record.offset != part.view.applied + 1:
            part.gap = True
            part.compacted |= part.holds_keys
        if record.key is not None and record.key.startswith(b"!"):
            self._control(part, record)
            return
        part.holds_keys = True
        if self.stage is ImportStage.SURVEY and part.mark is None:
            part.unexplained = part.unexplained or record
            if not part.gap and part.other is None:
                self._not_empty(record)
        if part.unexplained is not None or part.compacted:
            part.view.applied = record.offset
            return
        judgement = part.view.read(record.offset, record.key, record.value)
        if judgement.verdict is Verdict.UNSUPPORTED_FORMAT:
            raise ImportRefusedError(
                f"offset {record.offset} of partition {record.partition} of the target is written in format "
                f"{judgement.format}",
                hint=_ANEW,
            )
        if self.stage is not ImportStage.SURVEY:
            self._read_back(record, judgement)

    def _control(self, part: _Partition, record: RecordRead) -> None:
        part.view.applied = record.offset
        if record.key == codec.IMPORT_KEY:
            mark = decode_mark(record.value)
            if mark is None:
                return
            if mark.operation == self.plan.operation:
                part.mark = mark
                return
            part.other = mark
            if self.stage is not ImportStage.SURVEY:
                self._other_import(mark)
        elif record.key == codec.HEARTBEAT_KEY and self.stage is not ImportStage.SURVEY:
            heartbeat = codec.decode_heartbeat(record.value)
            if heartbeat is not None:
                raise ImportRefusedError(
                    f"broker {heartbeat.broker} joined this channel during the import (heartbeat at offset "
                    f"{record.offset} of partition {record.partition})",
                    hint="Stop every broker of this channel, and run the same command again: it resumes.",
                )

    def _not_empty(self, record: RecordRead) -> None:
        name = "without a key" if record.key is None else f"of {record.key.decode(errors='replace')}"
        raise ImportRefusedError(
            f"the channel is not empty: offset {record.offset} of partition {record.partition} holds a record {name}",
            hint=_ANEW,
        )

    def _other_import(self, mark: ImportMark) -> None:
        state = "was imported" if mark.finished else "is being imported"
        raise ImportRefusedError(
            f"another file, or the same with other options, {state} into this channel: {mark.operation} "
            f"(this one would be {self.plan.operation})",
            hint=f"To resume that one, run its original command. {_ANEW}",
        )

    # --- surveyed ---------------------------------------------------------------------------------------------------

    def surveyed(self) -> None:
        """End of the target: determine the remaining work.

        Raises:
            ImportRefusedError: The target holds another import, or was compacted since.
        """
        if all(part.mark is not None and part.mark.finished and part.other is None for part in self._parts):
            self.counts.present = self.plan.records
            self.stage = ImportStage.DONE
            return
        for number, part in enumerate(self._parts):
            if part.other is not None:
                self._other_import(part.other)
            if part.unexplained is not None:
                self._not_empty(part.unexplained)
            if part.compacted:
                raise ImportRefusedError(
                    f"partition {number} of the channel was compacted since this import began: its records cannot "
                    f"be identified any more",
                    hint=_ANEW,
                )
        for planned in self.plan.namespaces:
            self._check_namespace(planned)
            self.counts.present += planned.records - sum(1 for _ in self._all_missing(planned))
        self.stage = ImportStage.MARKS

    def _check_namespace(self, planned: PlannedNamespace) -> None:
        key = self._key(planned.name)
        if key is not None and (key.operation != self.plan.operation and key.version <= planned.version):
            raise ImportRefusedError(
                f"{planned.name} was created by another process while this import was interrupted, at version {key.version}: "
                f"its generations may be lower than those that storage has seen",
                hint=_ANEW,
            )

    def marks(self, partition: int) -> ImportWrite | None:
        """The mark that a partition still needs at this stage."""
        mark = self._parts[partition].mark
        finished = self.stage is ImportStage.END_MARKS
        if mark is not None and (mark.finished or not finished):
            return None
        fields = {
            "import": self.plan.operation,
            "state": "finished" if finished else "begun",
            "partitions": len(self._parts),
            "by": self._by,
            **self._facts,
            "written_at_ms": self._now_ms(),
        }
        return ImportWrite(partition, codec.IMPORT_KEY, codec.encode(fields))

    def go_on(self) -> None:
        if self.stage is ImportStage.MARKS:
            self.stage = ImportStage.RECORDS
            for planned in self.plan.namespaces:
                self._queue(planned)
        elif self.stage is ImportStage.RECORDS:
            self.stage = ImportStage.END_MARKS
        elif self.stage is ImportStage.END_MARKS:
            self.stage = ImportStage.DONE

    # --- writing ----------------------------------------------------------------------------------------------------

    def writes(self, partition: int, window: int) -> Iterator[ImportWrite]:
        """Records of a partition that may be written now, with at most `window` not yet read back."""
        todo = self._todo[partition]
        while todo and len(self._on_their_way) < window:
            name = todo.popleft()
            fields = self._wanted(name)
            if fields is None:
                continue
            tries = self._tries[name] = self._tries.get(name, 0) + 1
            if tries > _TRIES:
                raise ImportRefusedError(
                    f"the record of {name} was rejected {_TRIES} times: another process writes to this channel",
                    hint="Stop every broker of this channel and every other import, and run the same command again.",
                )
            record_id = self._new_id()
            self._on_their_way[name] = record_id
            yield ImportWrite(partition, name.encode(), self._encode(partition, record_id, fields))

    def is_written(self, partition: int) -> bool:
        """Whether all records of the plan in a partition were read back."""
        return not self._todo[partition] and not self._on_their_way

    def _encode(self, partition: int, record_id: str, fields: dict[str, Any]) -> bytes:
        return codec.encode(
            {
                "format": FORMAT,
                "kind": Kind.PROPOSAL,
                "id": record_id,
                "covers": self._parts[partition].view.applied,
                "by": self._by,
                **fields,
                "flow": FLOW,
                "operation": self.plan.operation,
                "reason": self._about,
                "written_at_ms": self._now_ms(),
            }
        )

    def _read_back(self, record: RecordRead, judgement: Judgement) -> None:
        read, key = judgement.record, judgement.key
        if read is None or key is None or read.incarnation != self._by["incarnation"]:
            return
        name = key.name
        if self._on_their_way.get(name) != read.id:
            return  # a second copy
        del self._on_their_way[name]
        if judgement.verdict is Verdict.ACCEPTED:
            self.counts.written += 1
            self._tries.pop(name, None)
        if key.is_namespace:
            self._check_namespace(self._planned[name])
            self._queue(self._planned[name])
        else:
            self._todo[record.partition].append(name)  # if it was rejected it is looked at again, else it is done

    def _queue(self, planned: PlannedNamespace) -> None:
        todo = self._todo[partition_of(planned.name, len(self._parts))]
        todo.extend(self._missing(planned))

    # --- what is missing --------------------------------------------------------------------------------------------

    def _key(self, name: str) -> KeyState | None:
        parts = parse_key(name.encode())
        namespace = name if parts is None else parts.namespace
        return self._parts[partition_of(namespace, len(self._parts))].view.get(name)

    def _missing(self, planned: PlannedNamespace) -> Iterator[str]:
        key = self._key(planned.name)
        if key is None or (planned.deleted and self._wanted(planned.name) is not None):
            yield planned.name
        elif not planned.deleted:
            for bundle, _ in _forced(planned):
                if self._wanted(bundle) is not None:
                    yield bundle

    def _all_missing(self, planned: PlannedNamespace) -> Iterator[str]:
        """The missing records of a namespace, by name."""
        key = self._key(planned.name)
        if key is not None:
            yield from self._missing(planned)
            return
        yield planned.name
        yield from [planned.name] * planned.deleted
        yield from (bundle for bundle, _ in _forced(planned))

    def _wanted(self, name: str) -> dict[str, Any] | None:
        """Fields of the next record of a key; None: it is complete, or others have changed it."""
        key = self._key(name)
        planned = self._planned.get(name)
        if planned is None:
            return None if key is None else self._forced(key)
        if key is None:
            return {
                "version": planned.version,
                "base": None,
                "state": State.ACTIVE,
                "children": children_of(planned.bounds),
                "action": "create",
            }
        if planned.deleted and key.state is State.ACTIVE and key.operation == self.plan.operation:
            highest = key.version if key.ring is None else key.ring.highest
            return {"version": highest + 1, "base": key.accepted_id, "state": State.DELETED, "action": "delete"}
        return None

    def _forced(self, key: KeyState) -> dict[str, Any] | None:
        planned = self._planned[key.namespace]
        # Records of reactions copy the operation; only untouched bundles are still derived.
        untouched = key.derived and key.state is State.UNASSIGNED and key.operation == self.plan.operation
        owner = planned.owners[bisect_left(planned.bounds, key.lower)]
        if not untouched or key.version != planned.version or owner is None:
            return None
        return {
            "version": key.version + 1,
            "base": key.accepted_id,
            "state": State.ASSIGNING,
            "from": None,
            "to": owner,
            "forced": True,
            "action": "own",
        }

    def gone_on(self) -> int:
        """Keys of the plan that others have changed since: bundles that were split, moved, or deleted."""
        return sum(self._went_on(planned) for planned in self.plan.namespaces)

    def _went_on(self, planned: PlannedNamespace) -> int:
        key = self._key(planned.name)
        if key is None or key.operation != self.plan.operation:
            return 1
        bundles = (self._key(bundle) for bundle, _ in _forced(planned)) if not planned.deleted else ()
        return sum(bundle is None or bundle.operation != self.plan.operation for bundle in bundles)


def _forced(planned: PlannedNamespace) -> Iterator[tuple[str, str]]:
    """Bundles that are forced to a broker, with the broker."""
    bounds = planned.bounds
    for index, owner in enumerate(planned.owners):
        if owner is not None:
            yield bundle_key(planned.name, bounds[index], bounds[index + 1]), owner


def decode_mark(value: bytes | None) -> ImportMark | None:
    """Content of an `!import` record; None for other records."""
    loaded = codec.decode_import(value)
    return None if loaded is None else ImportMark(loaded["import"], loaded.get("state") == "finished")
