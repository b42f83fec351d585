"""A path of the admin API as a value: from a list of them come the application, its OpenAPI document, and a table."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cache, cached_property
from importlib.metadata import entry_points
from typing import TYPE_CHECKING, Any, Final, Protocol

from pydantic import ValidationError

from statechannel.audit.errors import AuditQuestionError
from statechannel.http_api.problems import ProblemError
from statechannel.queries import query as queries
from statechannel.queries.audit import PartialLogError
from statechannel.queries.connection import Connection, Notes, connection_to
from statechannel.queries.query import Query, RequestModel
from statechannel.settings.groups_cluster import AccessRole

if TYPE_CHECKING:
    from statechannel.http_api.cluster import ApiCluster
    from statechannel.settings import Settings


GROUP: Final = "statechannel.http_routes"
"""Entry points of further paths: a function of `RouteMaker`'s signature."""


def parsed(model: type[RequestModel], values: Any) -> RequestModel:
    """Parameters or a body as an instance of its model.

    Raises:
        ProblemError: `bad-request`.
    """
    try:
        return model.model_validate(values)
    except ValidationError as error:
        (detail, *more) = error.errors(include_url=False, include_context=False, include_input=False)
        where = ".".join(str(part)[:100] for part in detail["loc"]) or "the body"
        rest = f"; and {len(more)} more" if more else ""
        raise ProblemError("bad-request", f"{where}: {detail['msg']}{rest}") from None


@dataclass(frozen=True, slots=True)
class Caller:
    """An authenticated caller.

    Attributes:
        name: As `http.access_file` names them; without that file, as they call themselves.
        address: IP address.
    """

    name: str
    role: AccessRole
    address: str

    @property
    def by(self) -> str:
        """The author of what they request, as the log keeps it."""
        return f"{self.name}@{self.address}"


@dataclass(frozen=True, slots=True)
class ApiCall:
    """A request after all checks.

    Attributes:
        path: Parameters of the path.
        query: An instance of the route's `query`.
        body: An instance of the route's `body`.
        headers: By lower-case name.
    """

    caller: Caller
    path: Mapping[str, str]
    query: Any
    body: Any
    headers: Mapping[str, str]

    def require(self, role: AccessRole, what: str) -> None:
        """Refuse a caller without a role.

        Raises:
            ProblemError: `role-missing`.
        """
        if not self.caller.role.includes(role):
            raise ProblemError(
                "role-missing", f"{what} takes the role {role}; {self.caller.name} has {self.caller.role}"
            )


@dataclass(frozen=True, slots=True)
class ApiAnswer:
    """The answer of a handler: a document that orjson takes."""

    document: Any
    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict)


Handler = Callable[[ApiCall], Awaitable[ApiAnswer]]


PENDING: Final = "pending"
"""`answer` of a document whose request is under way."""


@dataclass(frozen=True, slots=True)
class ApiRoute:
    """One method of one path.

    Attributes:
        path: With parameters in braces.
        name: Id of the operation in the OpenAPI document; unique.
        about: A sentence.
        role: Least role of the caller.
        answer: Type of the document; pydantic makes its schema.
        body: Of JSON; without any, the same as `{}`.
        statuses: Of answers that are no problem.
        reasons: Codes of problems that this route has beyond those of all routes.
        acts: It changes something: it takes an `Idempotency-Key`, and is written to the log with who asked.
        bounds_time: `http.answer_timeout_s` applies; actions wait as long as the caller prefers.
    """

    method: str
    path: str
    name: str
    about: str
    role: AccessRole
    handler: Handler
    answer: Any
    query: type[RequestModel] | None = None
    body: type[RequestModel] | None = None
    statuses: tuple[int, ...] = (200,)
    reasons: tuple[str, ...] = ()
    acts: bool = False
    bounds_time: bool = True

    @property
    def body_in_query(self) -> bool:
        """Its arguments are in the query: many clients and proxies send no body with DELETE. A body that is sent counts, too."""
        return self.method == "DELETE" and self.body is not None


class RouteMaker(Protocol):
    """Signature of an entry point of GROUP."""

    def __call__(self, cluster: ApiCluster) -> Iterable[ApiRoute]: ...


class TopicReads:
    """Runs reads of Kafka's topics, each in a thread; refuses further ones while `reads_max` are under way.

    Args:
        reads_max: Most reads under way.
    """

    def __init__(self, reads_max: int) -> None:
        self._reads_max = reads_max
        self._running = 0

    async def run(self, read: Callable[[], Any]) -> Any:
        """The result of `read`. A caller that gives up does not end it: its place is free once it has ended.

        Raises:
            ProblemError: `too-busy`.
        """
        if self._running >= self._reads_max:
            raise ProblemError("too-busy", f"{self._running} answers are being read from topics already")
        self._running += 1
        task = asyncio.ensure_future(asyncio.to_thread(read))
        task.add_done_callback(self._ended)
        return await asyncio.shield(task)

    def _ended(self, task: asyncio.Future[Any]) -> None:
        self._running -= 1
        if not task.cancelled():
            task.exception()  # asked for, or asyncio reports it as never retrieved


@cache
def _topic_reads(most: int) -> TopicReads:
    """One bound for all paths of a process that read topics."""
    return TopicReads(most)


class TopicAnswers:
    """Documents from topics, each made in a thread; notes of the reading are among its own."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._reads = _topic_reads(settings.http.topic_reads_max)

    @cached_property
    def _connection(self) -> Connection:
        """Of all answers: files that its settings name are read once. Waits are no part of an answer."""
        connection = connection_to(self._settings, Notes()).within(self._settings.http.answer_timeout_s)
        return replace(connection, notified=True)

    async def of(self, answer: Callable[[Connection], Mapping[str, Any]]) -> dict[str, Any]:
        """The document that `answer` makes.

        Raises:
            ProblemError: `too-busy`.
            StateChannelError: As `answer` raises it.
        """

        def read() -> dict[str, Any]:
            notes = Notes()
            document = answer(replace(self._connection, reporter=notes))
            return {**document, "notes": [*document.get("notes", ()), *notes.sentences]}

        document: dict[str, Any] = await self._reads.run(read)
        return document

    def route(self, query: Query) -> ApiRoute:
        """The path of a question."""
        in_path = query.params is not None and "{" in query.path

        async def handler(call: ApiCall) -> ApiAnswer:
            params = parsed(query.params, call.path) if in_path and query.params is not None else call.query
            try:
                return ApiAnswer(await self.of(lambda connection: query.answer(connection, params)))
            except PartialLogError as error:
                late, facts = "answer-late", {"log": error.log}
                raise ProblemError(late, str(error), hint=error.hint, retryable=False, facts=facts) from error
            except AuditQuestionError as error:
                raise ProblemError("bad-request", str(error), hint=error.hint) from error

        return ApiRoute(
            "GET", query.path, query.name, query.about, AccessRole.READ, handler, query.document,
            query=None if in_path else query.params, reasons=("too-busy",),
        )  # fmt: skip


def further_routes(cluster: ApiCluster) -> list[ApiRoute]:
    """Questions and other routes of installed packages, by the name of their entry points; of one name, the questions first."""
    answers = TopicAnswers(cluster.settings)
    points = [point for group in (queries.GROUP, GROUP) for point in entry_points(group=group)]
    routes: list[ApiRoute] = []
    for point in sorted(points, key=lambda point: point.name):
        loaded = point.load()
        routes += loaded(cluster) if point.group == GROUP else map(answers.route, loaded)
    return routes
