"""Feeds open pages: follows changes and members, and sends all pages the same bytes, encoded once."""

from __future__ import annotations

import asyncio
import contextlib
import heapq
import time
from collections import deque
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any, Final

import orjson

from statechannel.clocks import now_ms
from statechannel.conditions.facts import broker_rows, leader_of, pauses_of, stopped_in
from statechannel.engine.context import Mode
from statechannel.engine.freshness import lag_s
from statechannel.errors import StateChannelError
from statechannel.http_api.cluster import silence_by
from statechannel.http_api.page.bundle_table import BundleStart, Holding, holding_of
from statechannel.http_api.page.page_facts import ClusterLook, ReadElsewhere
from statechannel.http_api.page.page_view import PageView
from statechannel.http_api.problems import ProblemError
from statechannel.logger import SafeLogger
from statechannel.protocol.states import State
from statechannel.protocol.verdict import REJECTIONS
from statechannel.stories.incident import forged_of
from statechannel.stories.registry import still_lost

if TYPE_CHECKING:
    from statechannel.broker.changes import Change
    from statechannel.engine.engine import Engine
    from statechannel.http_api.cluster import ApiCluster
    from statechannel.router import ChangesGap
    from statechannel.settings import Settings

_log = SafeLogger(__name__)

UNWATCHED_S: Final = 2.0
"""Without open pages the members are looked at no more often."""
QUIET_S: Final = 1.0
"""Where nothing changes, pages hear no more often that they show what is."""
_WAITING_MAX: Final = 100_000
_DEBTS_MAX: Final = 1_000
_PROGRESS_MAX: Final = 240

Batch = Sequence["Change | ChangesGap"]


class PageSource:
    """Where the page gets its data: the view of a router in this process. Called from the loop of the HTTP server."""

    def __init__(self, cluster: ApiCluster) -> None:
        self._cluster = cluster
        self._progress: deque[tuple[int, Mapping[int, int]]] = deque(maxlen=_PROGRESS_MAX)
        self._elsewhere = ReadElsewhere()

    @property
    def broker(self) -> str:
        return self._cluster.broker

    async def look(self) -> ClusterLook:
        return await self._cluster.look(self._read)

    def _read(self, engine: Engine, now_s: float) -> ClusterLook:
        context, newest_ms, at_ms = engine.context, engine.presence.last_ms, now_ms()
        members = still_lost(context.members, self._cluster.dismissals)
        silent_ms = silence_by(engine, now_s)
        applied = {part.partition: part.view.applied for part in engine.replicas}
        leader = leader_of(members)
        term = members.alive[leader].info.get("term") if leader is not None else None
        away = context.registry_mode is Mode.SAFE
        heard_s = max((member.heard_at_s for member in members.alive.values()), default=None)
        others = (member.info.get("applied") for name, member in members.alive.items() if name != self.broker)
        ends = {part.partition: part.applied for part in engine.replicas}
        behind_ms = 0 if away else self._elsewhere.behind_ms(at_ms, ends, others)
        if not away:
            self._progress.append((at_ms, applied))
        return ClusterLook(
            at_ms=at_ms,
            broker=self.broker,
            mode=str(context.mode),
            away_since_ms=at_ms - round(1_000 * engine.presence.silence_s) if away else None,
            lag_s=max(lag_s(context.now, part) for part in engine.replicas) if behind_ms is None else behind_ms / 1_000,
            applied=applied,
            leader=leader,
            term=term if type(term) is int and term >= 0 else None,
            brokers=broker_rows(members, {}, applied, silent_ms),
            pauses=pauses_of(members, silent_ms, at_ms),
            log_ms=None if heard_s is None else newest_ms + round(1_000 * (now_s - heard_s)),
            lags_ms={
                name: self._lag_ms(member.info.get("applied"), applied, at_ms - silent_ms(member))
                for name, member in members.alive.items()
            },
            stopped=stopped_in(engine.replicas),
            debts=[{"key": key.name} for part in engine.replicas for key in islice(part.view.ledger.open, _DEBTS_MAX)],
            oldest_debt_ms=1_000 * engine.duties.oldest_debt_s(),
            topics=self._cluster.topics.facts(),
            differs=engine.findings.fields() or (),
            forged={
                (member.broker, member.incarnation): forged
                for member in members.alive.values()
                if (forged := forged_of(member.info, at_ms)) is not None
            },
            rejected={verdict.value: engine.counts[verdict] for verdict in REJECTIONS if engine.counts[verdict]},
        )

    def _lag_ms(self, theirs: object, applied: Mapping[int, int], heard_ms: int) -> int:
        """How long before it was heard this process had read the first record that a member had not."""
        if not isinstance(theirs, dict):
            return 0
        lag_ms = 0
        for partition, mine in applied.items():
            at = theirs.get(str(partition))
            if type(at) is int and at < mine:
                read_ms = next(
                    (then_ms for then_ms, known in self._progress if known.get(partition, -1) > at), heard_ms
                )
                lag_ms = max(lag_ms, heard_ms - read_ms)
        return lag_ms

    async def positions(self) -> Mapping[int, int]:
        """Offset through which each partition was read."""
        return await self._cluster.position()

    async def bundles(self) -> tuple[list[BundleStart], dict[int, int]]:
        """All live bundles, and the next offset of each partition."""
        starts: list[BundleStart] = []
        positions: dict[int, int] = {}
        for partition in sorted(await self.positions()):
            # A partition in one turn of the loop, so that all its states are as of one offset.
            rows, next_offset = await self._cluster.look(partial(_bundles_of, partition))
            starts += rows
            positions[partition] = next_offset
        return starts, positions

    def past(self, since: Mapping[int, int], ends: Mapping[int, int]) -> AsyncGenerator[Batch, None]:
        """Changes between two positions, read from Kafka."""
        return self._cluster.past(since, ends)


def _bundles_of(partition: int, engine: Engine, _: float) -> tuple[list[BundleStart], int]:
    view = next(part.view for part in engine.replicas if part.partition == partition)
    kinds: dict[Holding, Holding] = {}

    def same(holding: Holding) -> Holding:
        return kinds.setdefault(holding, holding)

    rows = [
        BundleStart(key.key, same(holding_of(key.state, key.from_, key.to)), key.operation, key.flow)
        for key in view.keys.values()
        if key.lower >= 0 and key.state is not None and key.state is not State.DELETED
    ]
    return rows, view.applied + 1


class PageFeed:
    """Feeds all open pages.

    Attributes:
        topics: Readers of sections that are read from topics now and then, by name.
        past_topics: Readers of the same sections as of a moment (ms since 1970).
    """

    def __init__(self, source: PageSource, settings: Settings) -> None:
        self.view = PageView(settings)
        self.source = source
        self.readers = 0
        self.topics: Mapping[str, Callable[[], Any]] = {}
        self.past_topics: Mapping[str, Callable[[int], Any]] = {}
        self.operations: Callable[[], list[dict[str, Any]]] = list
        self.topic_sections: dict[str, Any] = {}
        self._settings = settings.http
        self._waiting: list[Change] | None = []
        self._lost_track = False
        self._sent: dict[str, bytes] = {}
        self._layout: object = None
        self._number = 0
        self._delta = b""
        self._whole: tuple[int, bytes] | None = None
        self._turn = asyncio.Event()
        self._opened = asyncio.Event()  # a page that is opened does not wait for the next look
        self._tasks: list[asyncio.Task[None]] = []
        self._read_due_s = self._read_began_s = self._quiet_due_s = 0.0
        self._decision: str | None = None
        self._reading: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin, in the running loop."""
        self._tasks.append(asyncio.get_running_loop().create_task(self._run(), name="http-page"))

    async def close(self) -> None:
        """End the feed and, by that, the streams."""
        for task in (*self._tasks, *([] if self._reading is None else [self._reading])):
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task
        self._tasks.clear()
        self._announce()

    def take(self, batch: Batch) -> None:
        """Changes that have come; after a gap all bundles are read again."""
        for item in batch:
            if isinstance(item, tuple):
                self._lost_track = True
            elif self._waiting is None:
                self.view.take((item,))
                if item.decision not in (None, self._decision):
                    self._decision = item.decision
                    self._read_soon()
            elif len(self._waiting) < _WAITING_MAX:
                self._waiting.append(item)
            else:
                self._lost_track = True

    async def _run(self) -> None:
        while True:
            began_s = time.monotonic()
            try:
                if self._waiting is not None:
                    await self._begin()
                elif self._lost_track:
                    await self._load()
                self.view.look(await self.source.look())
                if self.readers:
                    self._encode()
                    self._read()
            except ProblemError as error:
                _log.debug("http-page-waits", why=str(error))
            except StateChannelError as error:
                _log.warning("http-page-interrupted", why=str(error))
            except Exception:
                _log.exception("http-page-failed")
            each_s = self._settings.page_each_s if self.readers else max(UNWATCHED_S, self._settings.page_each_s)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(max(0.01, each_s - (time.monotonic() - began_s))):
                    await self._opened.wait()
            self._opened.clear()

    async def _begin(self) -> None:
        """The log from its beginning, where that is short and whole; else the bundles as they are."""
        positions = await self.source.positions()
        records = sum(offset + 1 for offset in positions.values())
        if not (records <= self._settings.page_past_max and await self._replay(positions)):
            await self._load()
            return
        waiting, self._waiting = self._waiting or [], None
        self.view.take(waiting)

    async def _replay(self, positions: Mapping[int, int]) -> bool:
        view = PageView(self.view.settings)
        ends = {partition: offset + 1 for partition, offset in positions.items()}
        changes: dict[int, list[Change]] = {partition: [] for partition in ends}
        async with contextlib.aclosing(self.source.past(dict.fromkeys(ends, 0), ends)) as batches:
            async for batch in batches:
                for item in batch:
                    if isinstance(item, tuple):
                        return False
                    changes[item.partition].append(item)
        # Of one partition in the order of its log, whose times may go back.
        view.take(heapq.merge(*changes.values(), key=lambda change: change.timestamp_ms))
        for partition, end in ends.items():
            view.journal.positions[partition] = max(end, view.journal.positions.get(partition, 0))
        self.view = view
        return True

    async def _load(self) -> None:
        self._lost_track = False
        if self._waiting is None:
            self._waiting = []
        starts, positions = await self.source.bundles()
        self.view.begin(starts, positions)
        waiting, self._waiting = self._waiting, None
        self.view.take(waiting)

    # --- what is sent ---------------------------------------------------------------------------------------------------

    def _encode(self) -> None:
        """One update: the sections that have changed since the last one."""
        fresh = {
            name: data
            for name, section in {
                **self.view.sections(),
                "operations": self.operations(),
                **self.topic_sections,
            }.items()
            if (data := orjson.dumps(section, default=str)) != self._sent.get(name)
        }
        self._sent |= fresh
        heat, now_s = self.view.heat, time.monotonic()
        cells = None if heat is None else heat.changed()
        if self.view.heat_layout != self._layout:
            self._layout = self.view.heat_layout
            fresh["heat"] = orjson.dumps(heat and heat.document())
        elif cells is not None:
            fresh["cells"] = orjson.dumps(cells)
        if not fresh and now_s < self._quiet_due_s:
            return
        self._quiet_due_s = now_s + QUIET_S
        self._number += 1
        self._delta = _event(self._number, fresh)
        self._announce()

    def _snapshot(self) -> bytes:
        """All sections, encoded once for all who begin now."""
        if self._whole is None or self._whole[0] != self._number:
            whole = {**self._sent, "heat": orjson.dumps(self.view.heat and self.view.heat.document())}
            self._whole = self._number, _event(self._number, whole)
        return self._whole[1]

    def _announce(self) -> None:
        turn, self._turn = self._turn, asyncio.Event()
        turn.set()

    async def stream(self) -> AsyncGenerator[bytes, None]:
        """What one page is sent: everything, then what changes. One that is slow skips to the newest.

        Raises:
            ProblemError: Before the first part: too many pages are open.
        """
        if self.readers >= self._settings.page_readers_max:
            raise ProblemError("too-busy", f"{self.readers} pages are open already")
        self.readers += 1
        try:
            yield b": statechannel page\n\n"
            turn, self._quiet_due_s = self._turn, 0.0
            self._opened.set()
            await self._wait(turn)
            known = -1
            while self._tasks:
                turn = self._turn
                if known != self._number:
                    part = self._delta if known == self._number - 1 else self._snapshot()
                    known = self._number
                    yield part
                    continue
                if not await self._wait(turn):
                    yield b": quiet\n\n"
        finally:
            self.readers -= 1

    async def _wait(self, turn: asyncio.Event) -> bool:
        try:
            async with asyncio.timeout(self._settings.heartbeat_s):
                await turn.wait()
        except TimeoutError:
            return False
        return True

    # --- what is read from topics ---------------------------------------------------------------------------------------

    def _read(self) -> None:
        """Begin to read them if that is due, one reading at a time."""
        now_s, task = time.monotonic(), self._reading
        if self.topics and now_s >= self._read_due_s and (task is None or task.done()):
            self._read_due_s, self._read_began_s = now_s + self._settings.page_topics_s, now_s
            self._reading = asyncio.get_running_loop().create_task(self._topics_read(), name="http-page-topics")

    def _read_soon(self) -> None:
        """A decision is carried out, or a drain runs: what the topics say of it is not waited for until the next turn."""
        self._read_due_s = min(self._read_due_s, self._read_began_s + 8 * self._settings.page_each_s)

    async def _topics_read(self) -> None:
        for name, read in self.topics.items():
            try:
                self.topic_sections[name] = await read()
            except StateChannelError as error:
                self.topic_sections[name] = {"error": str(error)}
            except Exception:
                _log.exception("http-page-topic-failed", section=name)
        decisions = self.topic_sections.get("decisions", {}).get("decisions", ())
        self.view.drains = frozenset(row["id"] for row in decisions if row.get("drain"))
        cordons = self.topic_sections.get("cordons", {}).get("cordons")
        if cordons is not None:  # those that were read last, where they could not be read now
            self.view.cordons = {row["broker"]: row for row in cordons}
            if any(row["drain_state"] == "running" for row in cordons):
                self._read_soon()


def _event(number: int, sections: Mapping[str, bytes]) -> bytes:
    at_ms = now_ms()
    parts = b",".join(b'"%b":%b' % (name.encode(), data) for name, data in sections.items())
    return b'event: page\ndata: {"at_ms":%d,"number":%d,"sections":{%b}}\n\n' % (at_ms, number, parts)
