"""A joining reader: rules R4 and R5, and the join of section 5 as the audit describes it."""

from __future__ import annotations

from dataclasses import dataclass, field

from tests.twin import wire
from tests.twin.judge import Judge, State, derived, has_children, split_covers
from tests.twin.wire import Line


@dataclass
class Lenient:
    """Holds for each key the record that rule R4 took last: its offset and what it says."""

    partition: int
    partitions: int
    held: dict[str, tuple[int, State]] = field(default_factory=dict)
    last: dict[str, int] = field(default_factory=dict)
    stopped: tuple[int, int] | None = None

    def read(self, line: Line) -> None:
        """Take or skip one record."""
        if self.stopped:
            return
        key = wire.read_key(line.key)
        if key.kind == "control":
            return
        newer = wire.newer_format(line.value)
        if newer is not None:
            self.stopped = (line.offset, newer)
            return
        if key.kind == "unknown" or wire.home(key.namespace, self.partitions) != self.partition:
            return
        self.last[key.text] = line.offset
        if line.value is None:
            self.held.pop(key.text, None)
            return
        record = wire.decode(line.key, line.value)
        if record is None:
            return
        if (key.kind, record.state) == ("bundle", "Deleted") and not split_covers(key, record):
            return
        if record.state == "Active" and not wire.covers_exactly(record.children or (), wire.RING):
            return
        if key.text in self.held:
            at, before = self.held[key.text]
            higher = record.version > before.version
            if record.kind == "assert":
                higher = record.version >= before.version
            if not higher and record.covers < at:
                return
        state_id = record.id if record.kind == "proposal" else record.refers
        self.held[key.text] = (
            line.offset,
            State(record.version, record.state, record.source, record.to, state_id, record.children),
        )

    def states(self) -> dict[str, State]:
        """Walk every tree (rule R5)."""
        found: dict[str, State] = {}
        todo: list[tuple[str, State | None]] = [(key, None) for key in self.held if key.count("/") == 1]
        while todo:
            key, state = todo.pop()
            own = self.held[key][1] if key in self.held else None
            if own is not None and own.state == "Absent":
                own = None
            if own is not None and (state is None or own.version >= state.version):
                state = own
            if state is None:
                continue
            found[key] = state
            if has_children(key, state):
                namespace = "/".join(key.split("/")[:2])
                for child in state.children or ():
                    child_key = f"{namespace}/{child}"
                    todo.append((child_key, derived(state, child_key)))
        return found


@dataclass
class PartitionRead:
    """What one partition came to, however it was read."""

    states: dict[str, State]
    judge: Judge | None
    tentative: bool
    stopped: tuple[int, int] | None


def read_strictly(lines: list[Line], partition: int, partitions: int) -> PartitionRead:
    """Judge a partition from its first record."""
    judge = Judge(partition, partitions)
    for line in lines:
        judge.read(line)
    return PartitionRead(judge.states(), judge, False, judge.stopped)


def best_clean_to(lines: list[Line]) -> int | None:
    """Return the highest `clean_to` that a heartbeat before any newer format gives."""
    best: int | None = None
    for line in lines:
        if line.key is not None and line.key.startswith(b"!"):
            record = wire.decode(line.key, line.value)
            if record is None or record.kind != "heartbeat":
                continue
            if 0 <= record.clean_to < line.offset:
                best = record.clean_to if best is None else max(best, record.clean_to)
        elif wire.newer_format(line.value) is not None:
            break
    return best


def read_joining(lines: list[Line], partition: int, partitions: int, exported_at_ms: int, lag_ms: int) -> PartitionRead:
    """Join a partition that has gaps: leniently to the best `clean_to`, strictly from there."""
    lenient = Lenient(partition, partitions)
    clean_to = best_clean_to(lines)
    if clean_to is None or _too_old(lines, clean_to, exported_at_ms, lag_ms):
        for line in lines:
            lenient.read(line)
        return PartitionRead(lenient.states(), None, True, lenient.stopped)
    for line in lines:
        if line.offset <= clean_to:
            lenient.read(line)
    judge = Judge(partition, partitions, lenient.states(), dict(lenient.last))
    judge.stopped = lenient.stopped
    for line in lines:
        if line.offset > clean_to:
            judge.read(line)
    return PartitionRead(judge.states(), judge, False, judge.stopped)


def _too_old(lines: list[Line], clean_to: int, exported_at_ms: int, lag_ms: int) -> bool:
    """Whether the cleaner may have been at work above `clean_to`."""
    for line in lines:
        if line.offset > clean_to and exported_at_ms - line.timestamp_ms >= lag_ms:
            return True
        control = line.key is not None and line.key.startswith(b"!")
        if not control and wire.newer_format(line.value) is not None:
            break
    return False
