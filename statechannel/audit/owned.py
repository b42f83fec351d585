"""Who serves what, and since when. Pure functions over what an audit observes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from statechannel.core.inputs import RecordRead
from statechannel.core.part import PartitionAudit
from statechannel.core.record import Record
from statechannel.core.states import State
from statechannel.core.verdict import Verdict
from statechannel.core.view import Judgement, View


class _Since(NamedTuple):
    generation: int
    offset: int
    timestamp_ms: int


class Owners:
    """Notes with which record the generation of each owner began.

    Feed it an audit's observations in log order, what a joining reader takes, and the view that it ends with.
    """

    def __init__(self) -> None:
        self._since: dict[bytes, _Since] = {}
        self._held: dict[bytes, tuple[int, int]] = {}

    def observe(self, record: RecordRead, judgement: Judgement) -> None:
        """Take in one judged record."""
        key = judgement.key
        if judgement.verdict is not Verdict.ACCEPTED or key is None or key.is_namespace or record.key is None:
            return
        if key.state is State.ASSIGNED:
            self._since[record.key] = _Since(key.version, record.offset, record.timestamp_ms)
        elif key.state is State.DELETED:
            self._since.pop(record.key, None)
            for child in key.children or ():
                name = f"{key.namespace}/{child}".encode()
                self._since[name] = _Since(key.version + 1, record.offset, record.timestamp_ms)

    def taken(self, record: RecordRead, decoded: Record) -> None:  # noqa: ARG002
        """Take in a record that a joining reader holds for its key."""
        if record.key is not None:
            self._held[record.key] = (record.offset, record.timestamp_ms)

    def joined(self, view: View, *, sure: bool) -> None:  # noqa: ARG002 - a guess is marked as one by the answer
        """A joining reader has come to its view: of what it holds, proposals tell when a generation began, asserts do not."""
        times = dict(self._held.values())
        for key in view.existing():
            if key.state is State.ASSIGNED and key.writer is not None and key.offset in times:
                self._since[key.key] = _Since(key.version, key.offset, times[key.offset])
        self._held.clear()

    def found(self, part: PartitionAudit) -> Iterator[dict[str, Any]]:
        """Every bundle of the part that is served, as the JSON output has it; since when is null where the log does not tell."""
        for key in part.view.live():
            generation = key.generation
            if generation is None:
                continue
            since = self._since.get(key.key)
            known = since is not None and since.generation == generation
            yield {
                "bundle": key.name,
                "partition": part.view.partition,
                "owner": key.owner,
                "generation": generation,
                "state": None if key.state is None else key.state.value,
                "since_offset": since.offset if known and since is not None else None,
                "since_ms": since.timestamp_ms if known and since is not None else None,
            }
