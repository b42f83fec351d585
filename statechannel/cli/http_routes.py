"""Paths of the admin API that are answered as commands answer: `operation list`, from the log and the requests topic."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import cache
from typing import TYPE_CHECKING, Any, Final

from pydantic import Field
from typing_extensions import TypedDict

from statechannel.audit.moments import AsOf, LogWindow
from statechannel.cli.kit.connection import Connection, connection_of
from statechannel.cli.kit.output import remarks_collected
from statechannel.cli.operation import operations_document
from statechannel.http_api.routes import ApiAnswer, ApiCall, ApiRoute, RequestModel, TopicReads
from statechannel.settings.groups_cluster import AccessRole

if TYPE_CHECKING:
    from statechannel.http_api.cluster import ApiCluster
    from statechannel.settings import Settings


TIME_MAX_MS: Final = 253_402_300_799_999
"""The last millisecond of the year 9999: what calendars and Kafka have."""


class OperationsQuery(RequestModel):
    """Which operations."""

    since_ms: int = Field(0, ge=0, le=TIME_MAX_MS, description="Only what changed from this log time on.")
    by: str | None = Field(None, max_length=256, description="Only what this broker began, or this person asked for.")
    limit: int = Field(50, ge=1, le=1_000, description="Number of newest operations.")


class OperationsDocument(TypedDict):
    """Operations, the oldest first; the keys of `operation list`."""

    operations: list[dict[str, Any]]
    left_out: int
    lookups_left_out: int
    tentative: bool
    notes: list[str]


@cache
def topic_reads(most: int) -> TopicReads:
    """One bound for all paths of a process that read topics."""
    return TopicReads(most)


class CommandAnswers:
    """Answers by the code of commands, in threads: it blocks, and its remarks become `notes` of the document."""

    def __init__(self, settings: Settings) -> None:
        self._connection: Connection | None = None
        self._settings = settings
        self._reads = topic_reads(settings.http.topic_reads_max)

    async def of(self, answer: Callable[[Connection], dict[str, Any]]) -> dict[str, Any]:
        """The document that `answer` makes.

        Raises:
            ProblemError: `too-busy`.
            StateChannelError: As `answer` raises it.
        """

        def read() -> dict[str, Any]:
            self._connection = self._connection or connection_of(self._settings)
            with remarks_collected() as notes:
                document = answer(self._connection.within(self._settings.http.answer_timeout_s))
            return {**document, "notes": list(notes)}

        document: dict[str, Any] = await self._reads.run(read)
        return document


def routes(cluster: ApiCluster) -> Iterable[ApiRoute]:
    """An entry point of `statechannel.http_routes`."""
    answers = CommandAnswers(cluster.settings)

    async def operations(call: ApiCall) -> ApiAnswer:
        query = call.query
        window = LogWindow(AsOf(time_ms=query.since_ms)) if query.since_ms else LogWindow()
        return ApiAnswer(
            await answers.of(lambda connection: operations_document(connection, window, query.by, query.limit))
        )

    yield ApiRoute(
        "GET",
        "/v1/operations",
        "list-operations",
        "List operations: those of requests, and those that brokers began",
        AccessRole.READ,
        operations,
        OperationsDocument,
        query=OperationsQuery,
        reasons=("too-busy",),
    )
