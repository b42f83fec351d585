"""Pages of a broker's endpoint: liveness, readiness, status, and the digest of its replica."""

from __future__ import annotations

import asyncio
import threading
import time
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, NamedTuple

import orjson
from prometheus_client import generate_latest
from prometheus_client.exposition import CONTENT_TYPE_LATEST

from statechannel.broker.observe.endpoint import JSON, TEXT, HttpAnswer
from statechannel.broker.observe.replica_digest import ReplicaCopy, ReplicaDigests, digest_document, dump_lines
from statechannel.clocks import now_ms
from statechannel.conditions.facts import NO_LIMITS, alive_row, stopped_in
from statechannel.conditions.table import CONDITIONS, current
from statechannel.engine.context import Mode
from statechannel.errors import StateChannelError
from statechannel.protocol.replica import Phase

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from statechannel.broker.host import Host
    from statechannel.broker.observe.endpoint import Route
    from statechannel.conditions.facts import Facts, Occurrence


class HealthCheck(NamedTuple):
    name: str
    ok: bool
    why: str


HEAVY_MAX = 2


class TooManyCopiesError(StateChannelError):
    """Too many concurrent requests for the states."""

    retryable = True


class LoopBusyError(StateChannelError):
    """The loop did not respond in time."""

    retryable = True


def alive(host: Host) -> list[HealthCheck]:
    """Liveness of this process: if it fails, the supervisor must restart it. From any thread."""
    silent_s = max(0.0, time.monotonic() - host.last_progress_s)
    limit_s = host.settings.runtime.watchdog_s
    stopped = host.stopped
    closing = stopped is not None
    return [
        HealthCheck("loop", closing or silent_s <= limit_s, f"last progress {silent_s:.1f} s ago, limit {limit_s:g} s"),
        HealthCheck("member", stopped is None, "runs" if stopped is None else f"{stopped.reason}: {stopped.detail}"),
    ]


def ready(host: Host) -> list[HealthCheck]:
    """Readiness of this broker for bundles and lookups. From any thread."""
    engine = host.engine
    behind = [replica for replica in engine.replicas if replica.phase is not Phase.CAUGHT_UP]
    why = "; ".join(
        f"partition {replica.partition} is {replica.phase}: {replica.why or 'nothing was read yet'}"
        for replica in behind
    )
    if not behind and not engine.caught_up:
        why = "a cold start puts the history in doubt"
    mode = engine.mode
    of_topics = [item.message for item in known_conditions(host) if item.code in _OF_TOPICS]
    return [
        *alive(host),
        HealthCheck("caught-up", engine.caught_up, why or "every partition is judged"),
        HealthCheck(
            "registered",
            engine.context.registered,
            "in the registry" if engine.context.registered else "not registered yet",
        ),
        HealthCheck("mode", mode is Mode.NORMAL, f"{mode}: {_MODES[mode]}"),
        _hooks(host),
        HealthCheck("topics", True, "; ".join(of_topics) or "as they must be"),
        HealthCheck("staying", not engine.draining, "hands over its bundles" if engine.draining else "accepts bundles"),
    ]


def _hooks(host: Host) -> HealthCheck:
    """Fails if no hook can be called: such a broker gets no bundles; those that it serves are not affected."""
    counts = host.hooks
    why = f"{counts.late} of {counts.threads} threads" if counts.threads is not None else f"{counts.late}"
    return HealthCheck("hooks", not counts.exhausted, f"{why} run hooks that are past their deadlines")


_OF_TOPICS = ("head-lost", "topic-unfit", "topic-differs")
OWN = (
    "kafka-silent", "newer-format", *_OF_TOPICS, "safe-mode", "loop-blocked", "hook-fails", "kafka-refuses", "kafka-throttles",
)  # fmt: skip


def known_conditions(host: Host) -> list[Occurrence]:
    """What is wrong with this broker and its topics, as far as it knows by itself. From any thread."""
    engine, at_ms, stopped = host.engine, now_ms(), stopped_in(host.engine.replicas)
    member = engine.context.members.alive.get(engine.identity.broker)
    own: dict[str, Any] = {"mode": str(engine.mode), "phase": Phase.CAUGHT_UP if engine.caught_up else None}
    is_blind = engine.context.registry_mode is Mode.SAFE
    facts: Facts = {
        "channel": next((name for name, _ in host.topics.first_offsets), ""),
        "at_ms": at_ms,
        "blind_since_ms": at_ms - round(1_000 * engine.presence.silence_s) if is_blind else None,
        "stopped": stopped,
        "topics": host.topics.facts(),
        "brokers": [] if member is None else [{**alive_row(member, 0, {}, 0, leading=False), **own}],
    }
    return current(facts, NO_LIMITS, (kind for kind in CONDITIONS if kind.code in OWN))


_MODES = {
    Mode.STARTING: "not yet read back from the registry",
    Mode.NORMAL: "the log is read and written",
    Mode.SAFE: "the log is unavailable, or has a newer format: bundles are still served, no operation is started",
    Mode.SETTLING: "the log is available again, waiting for heartbeats of the others",
}


def _answer(host: Host, checks: Sequence[HealthCheck], **more: object) -> HttpAnswer:
    failed = [check for check in checks if not check.ok]
    document = {
        "status": "unavailable" if failed else "ok",
        "broker": host.engine.identity.broker,
        "incarnation": host.engine.identity.incarnation,
        "reasons": [f"{check.name}: {check.why}" for check in failed],
        "checks": {check.name: {"ok": check.ok, "why": check.why} for check in checks},
        **more,
    }
    return HttpAnswer.json(document, HTTPStatus.SERVICE_UNAVAILABLE if failed else HTTPStatus.OK)


def _rows(conditions: Iterable[Occurrence]) -> list[dict[str, str]]:
    return [{"code": item.code, "message": item.message, "next_step": item.next_step} for item in conditions]


def routes(host: Host, loop: asyncio.AbstractEventLoop, *, timeout_s: float) -> Mapping[str, Route]:
    """Pages of a member.

    Args:
        timeout_s: For a copy of the replica's states.
    """
    digests = ReplicaDigests(host.engine, timeout_s=timeout_s)

    def copied() -> ReplicaCopy:
        """Digest and dump: the copy is made in the loop, in short steps; the rest runs in the requesting thread."""
        asked = asyncio.run_coroutine_threadsafe(digests.copy(), loop)
        try:
            return asked.result(timeout_s)
        except TimeoutError as error:
            asked.cancel()
            raise LoopBusyError(
                f"the loop did not copy the states within {timeout_s:g} s", hint="Try again; check /healthz."
            ) from error

    # Both compete with the loop for processor time: few at once, further ones are refused.
    room = threading.BoundedSemaphore(HEAVY_MAX)

    def heavy(parts: Callable[[ReplicaCopy], Iterable[bytes]]) -> Iterator[bytes]:
        if not room.acquire(blocking=False):
            raise TooManyCopiesError(
                f"{HEAVY_MAX} copies of the states are being sent already", hint="Try again in a moment."
            )
        try:
            copy = copied()
            yield b""  # so that the caller of this generator gets a refusal before anything is sent
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
        "/readyz": lambda: _answer(host, ready(host), conditions=_rows(known_conditions(host))),
        "/digest": digest,
        "/dump": dump,
    }
