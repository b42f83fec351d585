"""Audit questions over HTTP, as far as they are bounded: owner at a moment, history, gaps, differences, state of the log.

They are answered by the code of `audit` and `lookup --as-of`, from an export that stops at a number of records and after
a time. An answer from a part of the log says so, and where the part ends.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import islice
from typing import TYPE_CHECKING, Any, Final

from pydantic import Field
from typing_extensions import TypedDict

from statechannel.audit.engine import LOCAL, AuditQuestion, LiveSource, ReadMode, Wants
from statechannel.audit.errors import AuditQuestionError
from statechannel.audit.gap_list import GapFilter
from statechannel.audit.local import answer as answer_locally
from statechannel.audit.moments import AsOf
from statechannel.cli.audit.gaps import read_gaps
from statechannel.cli.audit.look_back import owner_document
from statechannel.cli.audit.options import AuditOptions, moment_of
from statechannel.cli.audit.parts import difference_rows, history_head, history_rows, title_of
from statechannel.cli.http_routes import CommandAnswers
from statechannel.cli.kit.connection import Connection
from statechannel.cli.kit.live_log import ExportBounds, export_live
from statechannel.cli.kit.progress import progress
from statechannel.errors import StateChannelError
from statechannel.http_api.problems import ProblemError
from statechannel.http_api.reads import NAME_MAX
from statechannel.http_api.routes import ApiAnswer, ApiCall, ApiRoute, RequestModel
from statechannel.settings.groups_cluster import AccessRole

if TYPE_CHECKING:
    from statechannel.http_api.cluster import ApiCluster
    from statechannel.settings.groups_cluster import HttpSettings

_MOMENT: Final = "an offset, a time (ISO 8601, `...ms` since 1970), or an age (`10m`)."
_ROWS: Final = Field(100, ge=1, le=100_000, description="Most rows, of the newest; `http.page_max` bounds it.")


def _moment(about: str) -> Any:
    return Field(None, max_length=64, description=f"{about}: {_MOMENT}")


class AuditQuery(RequestModel):
    """A moment."""

    as_of: str | None = _moment("Moment, inclusive; default: the end of the log")


class OwnerQuery(RequestModel):
    """A topic or bundle at a moment."""

    name: str = Field(
        min_length=1, max_length=NAME_MAX, description="`tenant/namespace/topic`, or the key of a bundle."
    )
    as_of: str = Field(min_length=1, max_length=64, description=f"Moment, inclusive: {_MOMENT}")


class HistoryQuery(RequestModel):
    """Which records."""

    name: str = Field(min_length=1, max_length=NAME_MAX, description="Bundle, topic or namespace.")
    by: str | None = Field(None, max_length=256, description="Only records of this broker.")
    since: str | None = _moment("Only from here on")
    until: str | None = _moment("Only up to here")
    limit: int = _ROWS


class GapsQuery(RequestModel):
    """Which gaps in service."""

    name: str | None = Field(None, max_length=NAME_MAX, description="Only of this namespace, bundle or topic.")
    broker: str | None = Field(None, max_length=256, description="Only with this owner before or after.")
    open: bool = Field(False, description="Only gaps that have not ended.")
    since: str | None = _moment("Only from here on")
    until: str | None = _moment("Only up to here")
    limit: int = _ROWS


class DifferenceQuery(RequestModel):
    """Two moments."""

    earlier: str = Field(min_length=1, max_length=64, description=f"First moment, inclusive: {_MOMENT}")
    later: str | None = _moment("Second moment, inclusive; default: the end of the log")
    limit: int = _ROWS


class LogRead(TypedDict):
    """How much of the log an answer is from.

    `complete` is false where reading stopped before the end of the log; `stopped_at` has the first offset that was left out, by
    partition.
    """

    complete: bool
    stopped_at: dict[str, int]


class AuditDocument(TypedDict, total=False):
    """An answer: the keys of the command, and how much of the log it is from."""

    log: LogRead
    rows_left_out: int
    notes: list[str]


def _log_read(bounds: ExportBounds) -> LogRead:
    stopped_at = {str(number): offset for number, offset in bounds.stopped_at.items()}
    return {"complete": not stopped_at, "stopped_at": stopped_at}


class LogAnswers:
    """Handlers of the paths below `/v1/audit`."""

    def __init__(self, cluster: ApiCluster) -> None:
        self._settings: HttpSettings = cluster.settings.http
        self._answers = CommandAnswers(cluster.settings)

    async def _of(self, answer: Callable[[AuditOptions], dict[str, Any]]) -> ApiAnswer:
        def read(connection: Connection) -> dict[str, Any]:
            bounds = ExportBounds(self._settings.audit_records_max, self._settings.audit_read_s)
            source = LiveSource(
                connection.client.bootstrap_servers,
                connection.topics.channel,
                connection.client.properties,
                lambda path: export_live(connection, path, bounds=bounds),
            )
            asked = AuditOptions(
                source,
                None,
                ReadMode.AUTO,
                connection.settings.channel.min_compaction_lag_ms,
                LOCAL,
                {},
                table=False,
                connect=lambda: connection,
            )
            try:
                document = answer(asked)
            except StateChannelError as error:
                if bounds.stopped_at and not error.retryable:
                    # What it misses may come after the part that was read.
                    raise ProblemError(
                        "answer-late",
                        f"reading stopped before the end of the log, and the part that was read has no answer: {error}",
                        hint="`statechannel audit` and `statechannel lookup --as-of` read the whole log.",
                        retryable=False,
                        facts={"log": _log_read(bounds)},
                    ) from error
                if isinstance(error, AuditQuestionError):
                    raise ProblemError("bad-request", str(error), hint=error.hint) from error
                raise
            return document | {"log": _log_read(bounds)}

        return ApiAnswer(await self._answers.of(read))

    def _rows(self, name: str, rows: Iterable[Any], count: int, limit: int) -> dict[str, Any]:
        """The newest rows."""
        left_out = max(0, count - min(limit, self._settings.page_max))
        return {name: list(islice(rows, left_out, None)), "rows_left_out": left_out}

    async def state(self, call: ApiCall) -> ApiAnswer:
        def answer(asked: AuditOptions) -> dict[str, Any]:
            as_of = None if call.query.as_of is None else moment_of(call.query.as_of, asked.source, "as_of")
            wants = Wants(cuts=as_of is not None)
            result = answer_locally(AuditQuestion(asked.source, as_of=as_of, wants=wants), progress=progress)
            return result.answer | ({} if as_of is None else dict(result.complete))

        return await self._of(answer)

    async def owner(self, call: ApiCall) -> ApiAnswer:
        query = call.query
        return await self._of(lambda asked: owner_document(asked.connect, asked.source, query.name, query.as_of))

    async def history(self, call: ApiCall) -> ApiAnswer:
        query = call.query

        def answer(asked: AuditOptions) -> dict[str, Any]:
            title_of(query.name, "name ")
            window = asked.window(query.since, query.until)
            result, rows = history_rows(asked, query.name, query.by, window)
            head = history_head(asked, result, query.name, query.by, window)
            return head | self._rows("history", rows, len(rows), query.limit)

        return await self._of(answer)

    async def gaps(self, call: ApiCall) -> ApiAnswer:
        query = call.query

        def answer(asked: AuditOptions) -> dict[str, Any]:
            window = asked.window(query.since, query.until)
            chosen = GapFilter(window, open_only=query.open, broker=query.broker)
            gaps = read_gaps(asked, query.name, chosen, to_end=query.until is None)
            rows = gaps.with_requesters(asked)
            return gaps.head(asked, window) | self._rows("gaps", rows, len(rows), query.limit)

        return await self._of(answer)

    async def difference(self, call: ApiCall) -> ApiAnswer:
        query = call.query

        def answer(asked: AuditOptions) -> dict[str, Any]:
            first = moment_of(query.earlier, asked.source, "earlier")
            second: AsOf | None = None if query.later is None else moment_of(query.later, asked.source, "later")
            _, _, head, rows = difference_rows(asked, (query.earlier, first), (query.later or "the end", second))
            return head | self._rows("differences", rows, len(rows), query.limit)

        return await self._of(answer)


def routes(cluster: ApiCluster) -> Iterable[ApiRoute]:
    """An entry point of `statechannel.http_routes`."""
    answers = LogAnswers(cluster)
    for path, name, about, handler, query in (
        ("/v1/audit", "audit", "State of the log: digest, verdicts, keys awaiting repair", answers.state,
         AuditQuery),
        ("/v1/audit/owner", "audit-owner", "Who owned a topic or bundle at a moment", answers.owner, OwnerQuery),
        ("/v1/audit/history", "audit-history", "List the records of a bundle, topic or namespace", answers.history,
         HistoryQuery),
        ("/v1/audit/gaps", "audit-gaps", "List the gaps in service", answers.gaps, GapsQuery),
        ("/v1/audit/diff", "audit-diff", "Compare the accepted states of two moments", answers.difference,
         DifferenceQuery),
    ):  # fmt: skip
        yield ApiRoute(
            "GET", path, name, about, AccessRole.READ, handler, dict[str, Any], query=query, reasons=("too-busy",)
        )
