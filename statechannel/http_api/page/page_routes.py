"""Paths of the page: its files, the stream that feeds it, and what it asks for: a moment, a difference, a bundle."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import cache, partial
from heapq import nlargest, nsmallest
from importlib import resources
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple

from pydantic import Field, create_model
from starlette.responses import Response
from starlette.routing import Route

from statechannel.audit.report.ownership import shared_file
from statechannel.errors import StateChannelError
from statechannel.http_api.page.bundle_table import ChangeJournal, Holding, LiveBundleTable
from statechannel.http_api.page.heat_map import HeatBound, heat_map_of
from statechannel.http_api.page.past_page import difference, past_document, step_fields
from statechannel.http_api.problems import ProblemError, is_success, of_outcome
from statechannel.http_api.reads import streamed
from statechannel.http_api.routes import ApiAnswer, ApiCall, ApiRoute, Caller, Handler
from statechannel.protocol.bundle import is_bundle, parse_key
from statechannel.protocol.states import State
from statechannel.queries.query import NAME_MAX, TIME_MAX_MS, NameQuery, RequestModel
from statechannel.settings.groups_cluster import AccessRole

if TYPE_CHECKING:
    from starlette.requests import Request

    from statechannel.http_api.cluster import ApiCluster
    from statechannel.http_api.page.page_feed import PageFeed

STEPS_SHOWN: Final = 20
DECISIONS_SHOWN: Final = 50
DECISIONS_BEFORE_MS: Final = 3_600_000
"""Of a past moment, decisions that are this much older are not read."""
HISTORY_MAX: Final = 100
PLACE_MAX: Final = 10**15
PAGE_POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self'; "
    "require-trusted-types-for 'script'; trusted-types 'none'; "
    "frame-ancestors 'none'; base-uri 'none'; form-action 'none'"
)
_TYPES: Final[Mapping[str, str]] = {
    "html": "text/html; charset=utf-8",
    "css": "text/css; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "svg": "image/svg+xml",
}
BUNDLE_LOADS_MAX: Final = 2_000
"""Heaviest bundles that the page is sent the load of."""
CORDONS_MAX: Final = 1_000
_TABLE_KEPT_S: Final = 1.0
_TABLES_MAX: Final = 50


class MomentQuery(RequestModel):
    """A moment: by the number of a change, by time, or by place in the log."""

    place: int | None = Field(None, ge=0, le=PLACE_MAX, description="Number of a change, as this process counts them.")
    time_ms: int | None = Field(None, ge=0, le=TIME_MAX_MS, description="Log time (ms since 1970).")
    partition: int = Field(0, ge=0, le=9_999, description="Partition of `offset`.")
    offset: int | None = Field(None, ge=0, le=PLACE_MAX, description="Offset in the channel's topic.")


_ENDS: Final = {"place": "", "time_ms": "_ms", "partition": "_partition", "offset": "_offset"}
_OF_TWO: Any = {
    which + end: (MomentQuery.model_fields[name].annotation, MomentQuery.model_fields[name])
    for which in ("first", "second")
    for name, end in _ENDS.items()
}
PageDifferenceQuery = create_model("PageDifferenceQuery", __base__=RequestModel, **_OF_TWO)
"""Two moments, each as `/v1/page/at` has it: `first`, `first_ms`, and so on."""


class BundleRowsQuery(RequestModel):
    """Which bundles, and in which order."""

    text: str = Field("", max_length=NAME_MAX, description="Only bundles whose name has it.")
    broker: str | None = Field(None, max_length=NAME_MAX, description="Only bundles that this broker has.")
    state: State | None = Field(None, description="Only bundles in this state.")
    unserved: bool = Field(False, description="Only bundles that no live broker has, and that were looked up.")
    load_min: float = Field(0, ge=0, description="Only bundles of at least this load (bytes a second, in and out).")
    sort: Literal["bundle", "owner", "state", "load"] = "bundle"
    descending: bool = False
    limit: int = Field(100, ge=1, le=1_000, description="Most rows; their number is of all.")


class HeatQuery(RequestModel):
    """Up to which moment the heat map is wanted."""

    place: int | None = Field(None, ge=0, le=PLACE_MAX, description="Number of the last change; default: the newest.")
    at_ms: int | None = Field(None, ge=0, le=TIME_MAX_MS, description="End of the newest column (ms since 1970).")
    start: str | None = Field(None, max_length=NAME_MAX, description="First bundle; default: all of them.")
    end: str | None = Field(None, max_length=NAME_MAX, description="With `start`: the bundle after the last.")


class ReportsQuery(RequestModel):
    """A moment."""

    at_ms: int = Field(ge=0, le=TIME_MAX_MS, description="Log time (ms since 1970).")


def _bound_of(name: str) -> HeatBound:
    parts = parse_key(name.encode())
    if parts is None:
        raise ProblemError("bad-request", f"{name[:200]} is the name of no bundle")
    return parts.namespace, parts.lower


class _Moment(NamedTuple):
    """All bundles as of a moment.

    Attributes:
        place: Number of the newest change by then in `journal`.
        asked_ms: The time that was asked for, if one was.
        is_from_log: `journal` was read for it, so that numbers of its changes mean nothing elsewhere.
    """

    journal: ChangeJournal
    table: LiveBundleTable
    place: int
    asked_ms: int | None
    is_whole: bool
    is_from_log: bool

    @property
    def order(self) -> tuple[bool, int]:
        """What was read from the log is older than what is in memory."""
        at_ms = max(self.journal.time_of(self.place) or 0, self.asked_ms or 0)
        return (False, at_ms) if self.is_from_log else (True, self.place)


class PageReads:
    """Handlers of what the page asks for."""

    def __init__(self, cluster: ApiCluster, feed: PageFeed) -> None:
        self._cluster = cluster
        self._feed = feed
        self._reading = False
        self._tables: dict[str, tuple[float, ApiAnswer]] = {}

    async def stream(self, _: ApiCall) -> ApiAnswer:
        return await streamed(self._feed.stream())

    async def moment(self, call: ApiCall) -> ApiAnswer:
        return ApiAnswer(self._document(await self._moment(call.query)))

    async def _moment(self, query: MomentQuery) -> _Moment:
        """From memory if it is there, else from the log.

        Raises:
            ProblemError: `bad-request`, `moment-too-old`, `too-busy`.
        """
        journal = self._feed.view.journal
        if query.place is not None:
            return self._at_place(query.place)
        if query.time_ms is None and query.offset is None:
            raise ProblemError("bad-request", "a moment has none of a number, a time and an offset")
        oldest = next((step for step in journal.steps if step.place > journal.whole_from), None)
        if query.offset is not None:
            if query.partition not in await self._feed.source.positions():
                raise ProblemError("bad-request", f"the channel has no partition {query.partition}")
            places = [
                step.place
                for step in journal.steps
                if step.partition == query.partition and step.offset <= query.offset
            ]
            if places or journal.is_whole:
                return self._at_place(max(places, default=0))
        elif journal.is_whole or (oldest is not None and query.time_ms is not None and query.time_ms >= oldest.at_ms):
            return self._at_place(journal.place_at(query.time_ms or 0), query.time_ms)
        return await self._from_log(query)

    def _at_place(self, place: int, at_ms: int | None = None) -> _Moment:
        journal = self._feed.view.journal
        place = min(place, journal.place)
        table = journal.as_of(place)
        if table is None:
            hint = "Ask by a time or an offset, or for a later change."
            raise ProblemError("moment-too-old", f"change {place} is not in memory any more", hint=hint)
        return _Moment(journal, table, place, at_ms, is_whole=True, is_from_log=False)

    def _time_of(self, moment: _Moment) -> int:
        """Log time of its newest change, or what was asked for, if that is not later than what is known; 0: not known."""
        newest_ms = moment.journal.time_of(moment.place) or 0
        return max(newest_ms, min(moment.asked_ms or 0, self._feed.view.looked_at_ms))

    def _document(self, moment: _Moment) -> dict[str, Any]:
        journal, place = moment.journal, moment.place
        before = [step for step in journal.steps if step.place <= place][-STEPS_SHOWN:]
        after = next((step.place for step in journal.steps if step.place > place), None)
        earlier = [step.place for step in before if step.place < place]
        at_ms = self._time_of(moment)
        previous = earlier[-1] if earlier else journal.whole_from if place > journal.whole_from else None
        view = self._feed.view
        numbers = {"place": None, "previous": None, "next": None} if moment.is_from_log else {}
        return {
            **past_document(journal, moment.table, place, at_ms, view.members.at(at_ms), view.events),
            "steps": [step_fields(moment.table, step) for step in before],
            "next": after,
            "previous": previous,
            "live": after is None,
            "whole": moment.is_whole,
            **numbers,
        }

    async def _from_log(self, query: MomentQuery) -> _Moment:
        """Read from Kafka from its first record: one at a time, within the time limit of answers."""
        if self._reading:
            raise ProblemError("too-busy", "another moment is being read from the log")
        self._reading = True
        try:
            journal = ChangeJournal(STEPS_SHOWN)
            ends = {partition: offset + 1 for partition, offset in (await self._feed.source.positions()).items()}
            if query.offset is None:
                whole = await self._read(journal, ends, query.time_ms)
            else:
                own = {query.partition: min(query.offset + 1, ends.pop(query.partition))}
                whole = await self._read(journal, own, None)
                steps, at_ms = list(journal.steps), journal.steps[-1].at_ms if journal.steps else 0
                # The other partitions as of its time; what was asked for is the newest step.
                whole = (not ends or await self._read(journal, ends, at_ms)) and whole
                others = [step for step in journal.steps if step.partition != query.partition]
                journal.steps = deque(sorted([*others, *steps], key=lambda step: step.at_ms))
            journal.is_whole = journal.is_whole and whole
            return _Moment(journal, journal.table, journal.place, query.time_ms, is_whole=whole, is_from_log=True)
        finally:
            self._reading = False

    async def _read(self, journal: ChangeJournal, ends: Mapping[int, int], until_ms: int | None) -> bool:
        """Take the changes before these offsets, and up to this time; whether none is missing."""
        whole, late = True, set[int]()
        async with contextlib.aclosing(self._feed.source.past(dict.fromkeys(ends, 0), ends)) as batches:
            async for batch in batches:
                for item in batch:
                    if isinstance(item, tuple):
                        whole = False
                    elif until_ms is not None and item.timestamp_ms > until_ms:
                        late.add(item.partition)
                    else:
                        journal.take(item)
                await asyncio.sleep(0)
                if len(late) == len(ends) == 1:
                    break
        return whole

    async def difference(self, call: ApiCall) -> ApiAnswer:
        query = call.query.model_dump()
        moments = [
            await self._moment(MomentQuery(**{name: query[which + end] for name, end in _ENDS.items()}))
            for which in ("first", "second")
        ]
        if not all(moment.is_whole for moment in moments):
            # Bundles without a later record are missing at such a moment, and would seem to be new.
            raise ProblemError(
                "moment-too-old", "compaction has removed records before the earlier moment", hint="Choose a later one."
            )
        first, second = sorted(moments, key=lambda moment: moment.order)
        numbers = {
            name: None if moment.is_from_log else moment.place
            for name, moment in (("first", first), ("second", second))
        }
        times = {"first_ms": self._time_of(first) or None, "second_ms": self._time_of(second) or None}
        return ApiAnswer({**numbers, **times, **difference(first.table, second.table)})

    async def bundle(self, call: ApiCall) -> ApiAnswer:
        """A bundle or the bundle of a topic: what it is, and its newest changes."""
        name, journal = call.query.name, self._feed.view.journal
        outcome = await self._cluster.lookup(name)
        bundle = name if is_bundle(name) else getattr(outcome, "bundle", None) or ""
        parts = parse_key(bundle.encode())
        row = None if parts is None else await self._cluster.bundle(bundle)
        steps = [] if parts is None else journal.of_bundle(parts.namespace, parts.lower, parts.upper, HISTORY_MAX)
        if row is None and not steps and not is_success(outcome):
            raise of_outcome(outcome, name=name)
        if parts is None:
            raise ProblemError("bad-request", f"{name[:200]} belongs to a broker by rule", hint="It has no bundle.")
        history = [step_fields(journal.table, step) for step in steps]
        return ApiAnswer({"asked": name, "bundle": bundle, "row": row, "history": history, "whole": journal.is_whole})

    async def bundles(self, call: ApiCall) -> ApiAnswer:
        def rows() -> ApiAnswer:
            view = self._feed.view
            loads = (self._feed.topic_sections.get("loads") or {}).get("bundles", ())
            return ApiAnswer(bundle_rows(view.journal.table, call.query, view.alive, view.unserved, loads))

        return self._kept(call.query.model_dump_json(), rows)

    def _kept(self, key: str, make: Callable[[], ApiAnswer]) -> ApiAnswer:
        """Pages that ask the same within a second get the same answer: it walks all bundles."""
        now_s = time.monotonic()
        made_s, answer = self._tables.get(key, (0.0, ApiAnswer({})))
        if now_s - made_s > _TABLE_KEPT_S:
            answer = make()
            self._tables = {key: row for key, row in self._tables.items() if now_s - row[0] <= _TABLE_KEPT_S}
            if len(self._tables) >= _TABLES_MAX:
                self._tables.clear()
            self._tables[key] = now_s, answer
        return answer

    async def heat(self, call: ApiCall) -> ApiAnswer:
        view, width_ms = self._feed.view, round(1_000 * self._cluster.settings.http.page_column_s)
        query: HeatQuery = call.query
        journal = view.journal
        if query.place is not None and query.place < journal.whole_from:
            raise ProblemError("moment-too-old", f"change {query.place} is not in memory any more")
        newest_ms = max(journal.steps[-1].at_ms if journal.steps else 0, view.looked_at_ms)
        at_ms = newest_ms if query.at_ms is None else min(query.at_ms, newest_ms)
        start, end = (None if name is None else _bound_of(name) for name in (query.start, query.end))
        if end is not None and (start is None or start >= end):
            raise ProblemError("bad-request", "`start` has to come before `end`")
        within = None if start is None else (start, end)

        def heat() -> ApiAnswer:
            losses = view.members.losses()
            heat_map = heat_map_of(journal, width_ms, at_ms, until=query.place, losses=losses, within=within)
            return ApiAnswer(heat_map.document())

        return self._kept(f"heat {query.model_dump_json()}", heat)

    async def reports(self, call: ApiCall) -> ApiAnswer:
        """What topics have of a moment: what fails is said in its section, as the others are known."""
        at_ms, answer = call.query.at_ms, dict[str, Any]()
        for name in ("decisions", "loads"):
            read = self._feed.past_topics.get(name)
            try:
                answer[name] = None if read is None else await read(at_ms)
            except StateChannelError as error:
                answer[name] = {"error": str(error)}
        return ApiAnswer({"at_ms": at_ms, **answer})

    def routes(self) -> list[ApiRoute]:
        """Their routes, which only the page asks for."""

        def of(
            path: str, name: str, about: str, handler: Handler, query: type[RequestModel], *reasons: str
        ) -> ApiRoute:
            kind, read = dict[str, Any], AccessRole.READ
            return ApiRoute("GET", f"/v1/page/{path}", name, about, read, handler, kind, query=query, reasons=reasons)

        late, busy = "moment-too-old", "too-busy"
        return [
            ApiRoute(
                "GET", "/v1/page/stream", "feed-page", "Feed the page: server-sent events with its sections", AccessRole.READ,
                self.stream, bytes, reasons=(busy,), bounds_time=False,
            ),
            of("at", "page-at", "Owners as of a moment, and the changes before it", self.moment, MomentQuery, busy, late),
            of("difference", "page-difference", "The owners of two moments", self.difference, PageDifferenceQuery, busy, late),
            of("bundles", "page-bundles", "The table of bundles, filtered and sorted", self.bundles, BundleRowsQuery),
            of("bundle", "page-bundle", "A bundle, or that of a topic, with its newest changes", self.bundle, NameQuery),
            of("heat", "page-heat", "The heat map as of a moment", self.heat, HeatQuery, late),
            of("reports", "page-reports", "Decisions and loads as of a moment", self.reports, ReportsQuery, busy),
        ]  # fmt: skip


def bundle_rows(
    table: LiveBundleTable,
    query: BundleRowsQuery,
    alive: Collection[str],
    unserved: Collection[int],
    loads: Sequence[Mapping[str, Any]],
) -> dict[str, Any]:
    """The number of those that are wanted, and the first of them.

    Args:
        alive: Brokers that can serve.
        unserved: Keys of bundles that have lost their owner.
        loads: Rows of `/v1/loads`: the heaviest bundles.
    """
    load_of: dict[int, float] = {}
    for row in loads:
        parts = parse_key(row["bundle"].encode())
        if parts is not None and table.has_namespace(parts.namespace):
            key = table.key_of(parts.namespace, parts.lower)
            load_of[key] = row["msg_throughput_in"] + row["msg_throughput_out"]

    def is_wanted(key: int, upper: int, holding: Holding) -> bool:
        owner, state = holding.owner, holding.state
        return (
            (query.broker is None or owner == query.broker)
            and (query.state is None or state is query.state)
            and not (query.unserved and (owner in alive or (state is State.UNASSIGNED and key not in unserved)))
            and load_of.get(key, 0) >= query.load_min
            and (not query.text or query.text in table.name_of(key, upper))
        )

    def order(row: tuple[int, int, Holding]) -> tuple[Any, int]:
        key, _, (state, owner, *_) = row
        match query.sort:
            case "load":
                return load_of.get(key, 0), key
            case "owner":
                return owner or "", key
            case "state":
                return state, key
            case _:
                return table.namespace_of(key), key

    wanted = [row for row in table.rows() if is_wanted(*row)]
    first = (nlargest if query.descending else nsmallest)(query.limit, wanted, order)
    return {
        "all": len(wanted),
        "rows": [
            {
                "bundle": table.name_of(key, upper),
                "state": holding.state.value,
                "owner": holding.owner,
                "next": holding.destination,
                "load": load_of.get(key),
            }
            for key, upper, holding in first
        ],
    }


def topic_reads_of(routes: Sequence[ApiRoute]) -> tuple[dict[str, Callable[[], Any]], dict[str, Callable[[int], Any]]]:
    """Sections that routes of installed packages answer: those of now, and those of a moment."""
    caller = Caller("page", AccessRole.READ, "")
    by_name = {route.name: route for route in routes}
    there = {name: section for name, section in TOPIC_SECTIONS.items() if section.route in by_name}

    async def read(section: TopicSection, at_ms: int | None = None) -> Any:
        route = by_name[section.route]
        query = None if route.query is None else route.query.model_validate(section.query(at_ms))
        return section.shown((await route.handler(ApiCall(caller, {}, query, None, {}))).document)

    reads = {name: partial(read, section) for name, section in there.items()}
    return dict(reads), {name: reads[name] for name, section in there.items() if section.has_past}


def _decision_row(row: Mapping[str, Any]) -> dict[str, Any]:
    """What the list shows; the rest is asked for by its id."""
    kept = {name: row.get(name) for name in ("id", "at_ms", "leader", "subject", "reason", "skipped", "why", "scores")}
    kept["drain"] = None if not row.get("drain") else row["drain"]["broker"]
    return kept | {name: len(row.get(name) or ()) for name in ("moves", "splits", "placed", "left")}


@cache
def assets() -> Mapping[str, bytes]:
    """The files of the page, by name: all of them at once, as a cache of names that are asked for would have no bound."""
    files = resources.files(__package__).joinpath("assets").iterdir()
    own = {file.name: file.read_bytes() for file in files if file.name.rpartition(".")[2] in _TYPES}
    return {**own, **{name: shared_file(name).encode() for name in ("shared.css", "heat_chart.js")}}


def asset_routes() -> list[Route]:
    """Files of the page: without a token, since they hold nothing of the cluster."""

    async def serve(request: Request) -> Response:
        name = request.path_params.get("file", "page.html")
        content = assets().get(name)
        if content is None:
            return Response(status_code=404)
        kind = _TYPES[name.rpartition(".")[2]]
        return Response(content, headers={"Content-Security-Policy": PAGE_POLICY, "Content-Type": kind})

    return [Route("/", serve, methods=["GET"]), Route("/page/{file}", serve, methods=["GET"])]


class TopicSection(NamedTuple):
    """A section that a route of an installed package answers.

    Attributes:
        query: The route's question for a moment (ms since 1970); None: now. By default it has the moment alone.
        has_past: Whether the topic has what was valid at a moment.
    """

    route: str
    shown: Callable[[Mapping[str, Any]], dict[str, Any]]
    query: Callable[[int | None], dict[str, Any]] = lambda at_ms: {"at_ms": at_ms}
    has_past: bool = True


def _decisions_query(at_ms: int | None) -> dict[str, Any]:
    past = {} if at_ms is None else {"since_ms": max(0, at_ms - DECISIONS_BEFORE_MS), "until_ms": at_ms}
    return {"limit": DECISIONS_SHOWN, **past}


TOPIC_SECTIONS: Final[Mapping[str, TopicSection]] = {
    "cordons": TopicSection(
        "list-cordons", lambda answer: {"cordons": answer["cordons"][:CORDONS_MAX]}, has_past=False
    ),
    "decisions": TopicSection(
        "list-decisions",
        lambda answer: {"decisions": [_decision_row(row) for row in answer["decisions"]]},
        _decisions_query,
    ),
    "loads": TopicSection("list-loads", lambda answer: {**answer, "bundles": answer["bundles"][:BUNDLE_LOADS_MAX]}),
}
