"""Digest and dump of a running replica's accepted states at an offset, for auditors.

The states are copied on the loop's thread in short steps, and the rest works on the copy, in any thread. A server mounts it
like this (`GET /digest`, `GET /dump`; design/audit.md has the documents):

    digests = ReplicaDigests(host.engine)
    copy = await digests.copy()            # on the engine's loop; from elsewhere by asyncio.run_coroutine_threadsafe
    digest_document(copy)                  # the body of /digest, as JSON
    dump_lines(copy)                       # the lines of /dump: a JSON header, then one line a key

`digest_document` and `dump_lines` take up to a second or two of processor time for a million keys: call them in a thread.
"""

from __future__ import annotations

import asyncio
import heapq
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from typing import TYPE_CHECKING, Any

import orjson

from statechannel.clocks import now_ms
from statechannel.errors import StateChannelError
from statechannel.protocol.replica import Phase
from statechannel.protocol.view_copy import ViewChangedError, ViewCopier, ViewCopy

if TYPE_CHECKING:
    from statechannel.engine.engine import Engine
    from statechannel.protocol.replica import Replica

DIGEST_FORMAT = 1
_SAFE = frozenset({Phase.CAUGHT_UP, Phase.STOPPED})


class CopyTimeoutError(StateChannelError):
    """The states could not be copied in the time allowed."""

    retryable = True


@dataclass(frozen=True, slots=True)
class PartitionCopy:
    """One partition of a replica.

    Attributes:
        applied: Offset through which it has applied the partition.
        states: None if this replica does not know the accepted states: it is joining, or its topic is broken.
    """

    partition: int
    applied: int
    phase: str
    why: str
    states: ViewCopy | None

    def lines(self) -> Iterator[bytes]:
        return _merged([] if self.states is None else self.states.pieces)


@dataclass(frozen=True, slots=True)
class ReplicaCopy:
    """Immutable copy of a replica, each partition as of its own offset.

    Attributes:
        at_ms: End of the copying, by the wall clock of this machine.
    """

    broker: str
    incarnation: str
    software: str
    at_ms: int
    partitions: Sequence[PartitionCopy]

    @property
    def complete(self) -> bool:
        return all(part.states is not None for part in self.partitions)


async def copy_replicas(engine: Engine, *, timeout_s: float = 30.0) -> ReplicaCopy:
    """Copy the accepted states of every partition. On the loop of the engine, which is released after each short step.

    Raises:
        CopyTimeoutError: They change too fast, or the loop is too busy.
    """
    until_s = time.monotonic() + timeout_s
    parts = [await _copy_partition(engine, replica, until_s) for replica in engine.replicas]
    return ReplicaCopy(engine.identity.broker, engine.identity.incarnation, engine.identity.software, now_ms(), parts)


async def _copy_partition(engine: Engine, replica: Replica, until_s: float) -> PartitionCopy:
    while _known(engine, replica):
        view = replica.view
        copier = ViewCopier(view)
        while replica.view is view and _known(engine, replica):
            try:
                states = copier.step()
            except ViewChangedError as error:
                raise _late(replica) from error
            if states is not None:
                return PartitionCopy(replica.partition, replica.applied, replica.phase, replica.why, states)
            if time.monotonic() > until_s:
                raise _late(replica)
            await asyncio.sleep(0)
    why = replica.why if replica.phase not in _SAFE else "a cold start puts its history in doubt"
    return PartitionCopy(replica.partition, replica.applied, replica.phase, why or "nothing was read yet", None)


def _late(replica: Replica) -> CopyTimeoutError:
    return CopyTimeoutError(
        f"the accepted states of partition {replica.partition} were not copied in time",
        hint="This broker is busy: try again later.",
    )


def _known(engine: Engine, replica: Replica) -> bool:
    """Whether this view equals the log: if a newer format has stopped the reader, up to there."""
    if replica.phase is Phase.STOPPED:
        return replica.view.applied == replica.applied
    return engine.context.judges(replica.partition)


class ReplicaDigests:
    """Provides copies: one is made at a time, and callers that arrive meanwhile share the next one.

    Args:
        min_interval_s: A copy that is not older than this is reused, so that frequent requests cost little.
    """

    def __init__(self, engine: Engine, *, min_interval_s: float = 0.5, timeout_s: float = 30.0) -> None:
        self._engine = engine
        self._min_interval_s = min_interval_s
        self._timeout_s = timeout_s
        self._lock = asyncio.Lock()
        self._newest: ReplicaCopy | None = None

    async def copy(self) -> ReplicaCopy:
        """A copy, as of now or a moment ago. On the loop of the engine.

        Raises:
            CopyTimeoutError: See `copy_replicas`.
        """
        async with self._lock:
            if self._newest is None:
                self._newest = await copy_replicas(self._engine, timeout_s=self._timeout_s)
                asyncio.get_running_loop().call_later(self._min_interval_s, self._forget)
            return self._newest

    def _forget(self) -> None:
        self._newest = None


@dataclass(slots=True)
class _Sum:
    total: Any = field(default_factory=sha256)
    keys: int = 0

    def through(self, lines: Iterable[bytes]) -> Iterator[bytes]:
        for line in lines:
            self.total.update(line)
            self.keys += 1
            yield line


def digest_document(copy: ReplicaCopy) -> dict[str, Any]:
    """Document of `GET /digest`. `digest` is that of all partitions; null if this replica does not know all states."""
    sums = [_Sum() for _ in copy.partitions]
    whole = _Sum()
    merged = heapq.merge(*(sum_.through(part.lines()) for sum_, part in zip(sums, copy.partitions, strict=True)))
    for _ in whole.through(merged):
        pass
    return {
        "replica": DIGEST_FORMAT,
        "broker": copy.broker,
        "incarnation": copy.incarnation,
        "software": copy.software,
        "at_ms": copy.at_ms,
        "digest": whole.total.hexdigest() if copy.complete else None,
        "partitions": {
            str(part.partition): {
                "applied": part.applied,
                "digest": None if part.states is None else sum_.total.hexdigest(),
                "keys": None if part.states is None else sum_.keys,
                "phase": part.phase,
                "why": part.why,
            }
            for sum_, part in zip(sums, copy.partitions, strict=True)
        },
    }


def dump_lines(copy: ReplicaCopy) -> Iterator[str]:
    """Lines of `GET /dump`: the document of the digest, then the digest's own lines, by key.

    If all states are known, the SHA-256 of the lines after the first is the digest in it.
    """
    yield orjson.dumps(digest_document(copy)).decode() + "\n"
    for line in heapq.merge(*(part.lines() for part in copy.partitions)):
        yield line.decode()


def _merged(pieces: Sequence[Sequence[bytes]]) -> Iterator[bytes]:
    """Sorted lines of pieces; small sorts and one lazy merge, so that other threads are not blocked for long."""
    # A line begins with the key in quotes, and a quote is below every letter that a key has: lines sort as keys do.
    return heapq.merge(*(sorted(piece) for piece in pieces))
