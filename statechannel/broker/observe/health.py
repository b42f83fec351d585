"""What a broker's endpoint answers: is it alive, may it be given work, how does it stand, what does its replica hold."""

from __future__ import annotations

import asyncio
import threading
import time
from http import HTTPStatus
from typing import TYPE_CHECKING, NamedTuple

import orjson
from prometheus_client import generate_latest
from prometheus_client.exposition import CONTENT_TYPE_LATEST

from statechannel.broker.observe.endpoint import JSON, TEXT, HttpAnswer
from statechannel.broker.observe.replica_digest import ReplicaCopy, ReplicaDigests, digest_document, dump_lines
from statechannel.engine.presence import Mode
from statechannel.errors import StateChannelError
from statechannel.protocol.replica import Phase

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from statechannel.broker.host import Host
    from statechannel.broker.observe.endpoint import Route


class HealthCheck(NamedTuple):
    """One thing that is looked at."""

    name: str
    ok: bool
    why: str


HEAVY_MAX = 2


class TooManyCopiesError(StateChannelError):
    """More want the states than may at the same time."""


class LoopBusyError(StateChannelError):
    """The loop did not come to it in time."""


def alive(host: Host) -> list[HealthCheck]:
    """Whether this process still does anything: if not, nobody but its supervisor can help. From any thread."""
    silent_s = max(0.0, time.monotonic() - host.last_progress_s)
    limit_s = host.options.watchdog_s
    stopped = host.stopped
    closing = stopped is not None
    return [
        HealthCheck(
            "loop",
            closing or silent_s <= limit_s,
            f"looked at its inputs {silent_s:.1f} s ago, {limit_s:g} s are allowed",
        ),
        HealthCheck("member", stopped is None, "runs" if stopped is None else f"{stopped.reason}: {stopped.detail}"),
    ]


def ready(host: Host) -> list[HealthCheck]:
    """Whether this broker may be given bundles and lookups. From any thread."""
    engine = host.engine
    behind = [replica for replica in engine.replicas if replica.phase is not Phase.CAUGHT_UP]
    why = "; ".join(
        f"partition {replica.partition} is {replica.phase}: {replica.why or 'nothing was read yet'}"
        for replica in behind
    )
    if not behind and not engine.caught_up:
        why = "a cold start puts the history in doubt"
    mode = engine.mode
    return [
        *alive(host),
        HealthCheck("caught-up", engine.caught_up, why or "every partition is judged"),
        HealthCheck(
            "registered", engine.registered, "in the registry" if engine.registered else "its id is not its own yet"
        ),
        HealthCheck("mode", mode is Mode.NORMAL, f"{mode}: {_MODES[mode]}"),
        _hooks(host),
        HealthCheck("staying", not engine.draining, "hands its bundles over" if engine.draining else "takes bundles"),
    ]


def _hooks(host: Host) -> HealthCheck:
    """A broker none of whose hooks can be called may not be given bundles; what it serves already, it serves on."""
    counts = host.hooks
    why = f"{counts.late} of {counts.threads} threads" if counts.threads is not None else f"{counts.late}"
    return HealthCheck("hooks", not counts.exhausted, f"{why} run hooks that are past their deadlines")


_MODES = {
    Mode.STARTING: "not heard in the registry yet",
    Mode.NORMAL: "the log is read and written",
    Mode.SAFE: "the log is away, or written by a newer version: what is served is served on, nothing is begun",
    Mode.SETTLING: "the log is back, the others are not all heard yet",
}


def _answer(host: Host, checks: Sequence[HealthCheck]) -> HttpAnswer:
    failed = [check for check in checks if not check.ok]
    document = {
        "status": "unavailable" if failed else "ok",
        "broker": host.engine.identity.broker,
        "incarnation": host.engine.identity.incarnation,
        "reasons": [f"{check.name}: {check.why}" for check in failed],
        "checks": {check.name: {"ok": check.ok, "why": check.why} for check in checks},
    }
    return HttpAnswer.json(document, HTTPStatus.SERVICE_UNAVAILABLE if failed else HTTPStatus.OK)


def routes(host: Host, loop: asyncio.AbstractEventLoop, *, timeout_s: float) -> Mapping[str, Route]:
    """The pages of a member.

    Args:
        loop: The loop of the host.
        timeout_s: For a copy of the replica's states.
    """
    digests = ReplicaDigests(host.engine, timeout_s=timeout_s)

    def copied() -> ReplicaCopy:
        """A copy is made in the loop, in short steps; all else works on it in the thread of whoever asks."""
        asked = asyncio.run_coroutine_threadsafe(digests.copy(), loop)
        try:
            return asked.result(timeout_s)
        except TimeoutError as error:
            asked.cancel()
            raise LoopBusyError(
                f"the loop did not copy the states within {timeout_s:g} s", hint="Ask again; look at /healthz."
            ) from error

    # Both take processor time that the loop wants too: few at once, and the others are told so.
    room = threading.BoundedSemaphore(HEAVY_MAX)

    def heavy(parts: Callable[[ReplicaCopy], Iterable[bytes]]) -> Iterator[bytes]:
        if not room.acquire(blocking=False):
            raise TooManyCopiesError(
                f"{HEAVY_MAX} copies of the states are being told already", hint="Ask again in a moment."
            )
        try:
            copy = copied()
            yield b""  # so that whoever starts this generator hears of a refusal before anything is sent
            yield from parts(copy)
        finally:
            room.release()

    def digest() -> HttpAnswer:
        body = b"".join(heavy(lambda copy: (orjson.dumps(digest_document(copy), option=orjson.OPT_APPEND_NEWLINE),)))
        return HttpAnswer(HTTPStatus.OK, JSON, body)

    def dump() -> HttpAnswer:
        lines = heavy(lambda copy: (line.encode() for line in dump_lines(copy)))
        next(lines)
        return HttpAnswer(HTTPStatus.OK, TEXT, lines)

    return {
        "/metrics": lambda: HttpAnswer(HTTPStatus.OK, CONTENT_TYPE_LATEST, generate_latest(host.metrics.registry)),
        "/healthz": lambda: _answer(host, alive(host)),
        "/readyz": lambda: _answer(host, ready(host)),
        "/digest": digest,
        "/dump": dump,
    }
