"""Paths that change something: each writes one request to the requests topic, by an id that the caller's key determines."""

from __future__ import annotations

import contextlib
import hashlib
import re
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Literal

from pydantic import Field, create_model, field_validator
from ulid import ULID

from statechannel.broker.request_writer import NO_EXTENSION, balancer_args
from statechannel.engine.commands import Declined, Done, Outcome, Rejected, Unowned
from statechannel.engine.names import mistyped
from statechannel.http_api.problems import ProblemError, is_success, of_outcome
from statechannel.http_api.reads import bundle_name, etag_of, namespace_name, unknown_bundle, unknown_namespace
from statechannel.http_api.routes import PENDING, ApiAnswer, ApiCall, ApiRoute, Handler
from statechannel.operations import outcomes
from statechannel.operations.outcomes import OutcomeName
from statechannel.operations.request_record import Request
from statechannel.operations.table import ARGUMENTS, MAY_TAKE, OPERATIONS, Addressee, RequestCommand, move_args
from statechannel.protocol.bundle import is_new_namespace
from statechannel.queries.channel_view import BundleRow, NamespaceDetails
from statechannel.queries.query import Keys, RequestModel, keys_of, many, object_type
from statechannel.settings.groups_cluster import AccessRole
from statechannel.stories.requests import DEFAULTS, request_digest

if TYPE_CHECKING:
    from statechannel.http_api.cluster import ApiCluster
    from statechannel.http_api.request_book import RequestBook
    from statechannel.operations.table import OperationSpec
    from statechannel.stories.requests import RequestStory

IDEMPOTENCY_KEY: Final = "idempotency-key"
_KEY: Final = re.compile(r"[\x21-\x7e]{1,255}", re.ASCII)
_TAG: Final = re.compile(r'"([0-9]{1,16})\.[0-9]{1,16}"', re.ASCII)
_WAIT: Final = re.compile(r"wait=([0-9]{1,6})", re.ASCII)
_REASON_MAX: Final = 1_000


class ActionBody(RequestModel):
    """What every action takes."""

    reason: str | None = Field(
        None, min_length=1, max_length=_REASON_MAX, description="Why, for people; kept in the log."
    )
    dry_run: bool = Field(False, description="Check it, say what would happen, and change nothing.")
    timeout_s: float | None = Field(
        None,
        gt=0,
        le=3_600,
        description="After this time brokers need not execute it; default `limits.command_timeout_s`.",
    )

    @field_validator("reason")
    @classmethod
    def _one_line(cls, reason: str | None) -> str | None:
        if reason is not None and not reason.isprintable():
            raise ValueError("has line breaks or control characters")
        return reason


def body_of(spec: OperationSpec) -> type[ActionBody]:
    """The body of a command's path: what every action takes, and those of its arguments that callers give there."""
    if spec.http is None or not spec.http.body:
        return ActionBody
    name, about, *arguments = spec.http.body
    fields: dict[str, Any] = {}
    for argument in arguments:
        form, bounds = ARGUMENTS[argument].over_http
        fields[argument] = (form, Field(description=ARGUMENTS[argument].about, **bounds))
    return create_model(name, __base__=ActionBody, __module__=__name__, __doc__=about, **fields)


ACTION_KEYS: Final[Sequence[Keys]] = (
    (str, "operation broker result reason message namespace"), (Literal["accepted", "rejected", "unknown", "pending"], "answer"),
    (str | None, "executed_by leader_api bundle hint winner owner destination"), (OutcomeName, "outcome"),
    (bool, "expired dry_run"), (int, "generation partition offset bundles"), (dict[str, str], "urls"),
    (float | None, "stale_age_s"), (many(Declined), "declines"), (dict[str, Any], "facts"), (list[str], "would"),
)  # fmt: skip
ACTION: Final = object_type(
    "ActionDocument",
    "A request and its end: the keys that commands print, by the kind of `outcome`. `leader_api` is the URL of the leader's "
    "API, in answers to what is under way; null where it is not known.",
    sometimes=(*ACTION_KEYS, (int, "version served in_flight"), *keys_of(NamespaceDetails)),
)
REQUEST: Final = object_type(
    "RequestDocument", "A request of the requests topic.", (str, "command name by"), (int, "asked_ms"), (bool, "executor_lost"),
    (bool | None, "retryable"), sometimes=ACTION_KEYS,
)  # fmt: skip


Check = Callable[[], Awaitable[object]]


def operation_of(caller: str, key: str) -> str:
    """The id of the request of a caller's key: the same on every broker, at every time."""
    return "h-" + hashlib.sha256(f"{caller}\0{key}".encode()).hexdigest()[:40]


class Actions:
    """Handlers of the paths that change something."""

    def __init__(self, cluster: ApiCluster, book: RequestBook) -> None:
        self._cluster = cluster
        self._book = book
        self._settings = cluster.settings
        self._running = 0

    # --- one request ------------------------------------------------------------------------------------------------

    async def _act(
        self, call: ApiCall, command: RequestCommand, args: Mapping[str, Any], name: str, check: Check | None = None
    ) -> ApiAnswer:
        """Write a request unless the log has that of the same key already, and answer with its state.

        Args:
            check: Called before it is written, not where the log has it.

        Raises:
            ProblemError: It is refused.
        """
        wait_s, identifier = self._wait_s(call), self._operation(call)
        filled = {name: value for name, value in args.items() if value is not None}
        within_s = call.body.timeout_s or self._settings.limits.command_timeout_s
        request = Request(identifier, command.value, 0, filled, call.caller.by)
        with self._take_slot():
            story = await self._find(identifier, is_new=IDEMPOTENCY_KEY not in call.headers)
            if story is None:
                if check is not None:
                    await check()
                if not await self._alive():
                    raise ProblemError("no-broker", "no broker is alive")
                story = await self._book.write(request, answer_within_s=within_s)
            self._require_same(story, request)
            if story.outcome is None and wait_s:
                story = await self._book.wait_ended(identifier, min(wait_s, within_s))
        return self._state_of(story, name)

    @contextlib.contextmanager
    def _take_slot(self) -> Iterator[None]:
        """Count as one of `http.actions_max` actions under way.

        Raises:
            ProblemError: `too-busy`.
        """
        if self._running >= self._settings.http.actions_max:
            raise ProblemError("too-busy", f"{self._running} requests are under way already")
        self._running += 1
        try:
            yield
        finally:
            self._running -= 1

    async def _find(self, identifier: str, *, is_new: bool = False) -> RequestStory | None:
        """A request. Unless its id is new, the log is read to its end for it: another process may have written it just now."""
        await self._book.wait_caught_up()
        if not is_new and not self._book.find(identifier):
            await self._book.wait_current()
        return self._book.find(identifier)

    @staticmethod
    def _require_same(story: RequestStory, request: Request) -> None:
        if story.digest != request_digest(request.asked, request.args):
            raise ProblemError(
                "idempotency-key-reused",
                f"the key stands for another request: {story.command} of {story.subject[:200] or story.id}",
                facts={"operation": story.id},
            )

    def _state_of(self, story: RequestStory, name: str) -> ApiAnswer:
        location = {"Location": f"/v1/operations/{story.id}"}
        outcome = _outcome_of(story)
        if outcome is None:
            return ApiAnswer(self._document(story, None), 202, {**location, "Retry-After": "1"})
        if not is_success(outcome):
            problem = of_outcome(outcome, name=name, operation=story.id, executed_by=story.executed_by)
            problem.headers.update(location)
            raise problem
        return ApiAnswer(self._document(story, outcome), 200, location)

    def _document(self, story: RequestStory, outcome: Outcome | None) -> dict[str, Any]:
        operation = {"operation": story.id, "executed_by": story.executed_by}
        if outcome is None:
            return {**operation, "answer": PENDING, "expired": self._book.is_expired(story)}
        return {**operation, **outcomes.to_json(outcome), "answer": outcomes.answer_of(outcome).value}

    def _operation(self, call: ApiCall) -> str:
        key = call.headers.get(IDEMPOTENCY_KEY)
        if key is None:
            return str(ULID())
        if _KEY.fullmatch(key) is None:
            raise ProblemError("bad-request", "the Idempotency-Key is not 1 to 255 visible characters of ASCII")
        return operation_of(call.caller.name, key)

    def _wait_s(self, call: ApiCall) -> float:
        match = _WAIT.search(call.headers.get("prefer", ""))
        return 0.0 if match is None else min(float(match[1]), self._settings.http.wait_max_s)

    async def _alive(self) -> set[str]:
        rows, _ = await self._cluster.brokers()
        return {row["broker"] for row in rows if row["state"] in ("alive", "draining")}

    # --- checks before it is written ----------------------------------------------------------------------------------

    async def _require_bundle(self, call: ApiCall) -> BundleRow:
        """The bundle of the path, as `If-Match` wants it."""
        name = bundle_name(call)
        row = await self._cluster.bundle(name)
        if row is None:
            raise unknown_bundle(name)
        wanted = call.headers.get("if-match")
        if (
            wanted is not None
            and wanted.strip() != "*"
            and etag_of(row) not in [tag.strip() for tag in wanted.split(",")]
        ):
            raise ProblemError(
                "generation-changed", f"{name} has the ETag {etag_of(row)}", headers={"ETag": etag_of(row)}
            )
        return row

    async def _require_move_allowed(self, call: ApiCall, name: str, destination: str | None) -> None:
        """Ask the leader whether policies allow a move; where it runs no balancer the channel alone decides.

        Raises:
            ProblemError: They do not.
        """
        if call.body.force:
            return
        args = balancer_args(MAY_TAKE, Addressee.LEADER, {"name": name, "destination": destination})
        filled = {name: value for name, value in args.items() if value is not None}
        within_s = self._settings.http.answer_timeout_s
        request = Request(str(ULID()), RequestCommand.EXTENSION.value, 0, filled, call.caller.by)
        await self._book.write(request, answer_within_s=within_s)
        outcome = _outcome_of(await self._book.wait_ended(request.id, within_s))
        if outcome is None:
            raise ProblemError(
                "answer-late",
                "no leader has said in time whether policies allow the move",
                retryable=True,
                for_leader=True,
            )
        no_balancer = isinstance(outcome, Rejected) and str(outcome.reason) == NO_EXTENSION
        if not isinstance(outcome, Done) and not no_balancer:
            raise of_outcome(outcome, name=name)

    async def _require_served(self, call: ApiCall) -> BundleRow:
        row = await self._require_bundle(call)
        if row["owner"] is None:
            raise of_outcome(Rejected("not-assigned", f"no broker serves {row['bundle']}"), name=row["bundle"])
        return row

    async def _require_destination(self, row: BundleRow, destination: str | None) -> None:
        name = row["bundle"]
        if destination == row["owner"]:
            raise of_outcome(Rejected("destination-is-owner", f"{name} is served by {destination} already"), name=name)
        if destination is not None and destination not in await self._alive():
            raise of_outcome(Rejected("unknown-destination", f"broker {destination} is not alive"), name=name)

    # --- handlers ---------------------------------------------------------------------------------------------------

    async def move(self, command: RequestCommand, call: ApiCall) -> ApiAnswer:
        """A transfer or an unload."""
        spec, body, name = OPERATIONS[command], call.body, bundle_name(call)
        destination = getattr(body, "destination", None)
        if body.force:
            call.require(AccessRole.FORCE, "a move against policies")
        args = move_args(name, destination, body.reason, _generation_of(call), force=body.force)

        async def check() -> None:
            await self._require_bundle(call)
            if not await self._cluster.common_checks() >= {*spec.checks}:
                # A member of an older version does not check it itself.
                await self._require_move_allowed(call, name, destination)

        if not body.dry_run:
            return await self._act(call, command, args, name, check)
        row = await self._require_served(call)
        await self._require_destination(row, destination)
        with self._take_slot():
            await self._book.wait_caught_up()
            await self._require_move_allowed(call, name, destination)
        facts = {"bundle": name, "owner": row["owner"], "destination": destination}
        return ApiAnswer({"dry_run": True, "would": [spec.would.format(name=name, **facts)], **facts})

    async def split(self, call: ApiCall) -> ApiAnswer:
        body, name = call.body, bundle_name(call)
        args = {"name": name, "reason": body.reason, **({"at": body.at} if body.at else {"parts": body.parts})}
        args["if_generation"] = _generation_of(call)
        if not body.dry_run:
            return await self._act(call, RequestCommand.SPLIT, args, name, partial(self._require_bundle, call))
        row = await self._require_served(call)
        parts = len(body.at) + 1 if body.at else body.parts
        would = OPERATIONS[RequestCommand.SPLIT].would.format(owner=row["owner"], name=name, parts=parts)
        return ApiAnswer({"dry_run": True, "would": [would], "bundle": name})

    async def assign(self, call: ApiCall) -> ApiAnswer:
        name = call.body.name
        refused = mistyped(name)
        if refused is not None:
            raise of_outcome(refused, name=name)
        if call.body.dry_run:
            outcome = await self._cluster.lookup(name)
            would = (
                [f"{outcome.bundle} would be assigned, if a broker may take it"] if isinstance(outcome, Unowned) else []
            )
            return ApiAnswer({"dry_run": True, "would": would, **outcomes.to_json(outcome)})
        return await self._act(call, RequestCommand.LOOKUP, {"name": name, "read_only": False}, name)

    async def create_namespace(self, call: ApiCall) -> ApiAnswer:
        body = call.body
        if not is_new_namespace(body.namespace):
            raise ProblemError(
                "bad-request",
                f"`{body.namespace[:200]}` is not the name of a new namespace",
                hint="Use tenant/namespace, neither of them . or .. alone.",
            )
        bundles = body.bundles or self._settings.lookups.default_bundles
        args = {"namespace": body.namespace, "bundles": bundles, "reason": body.reason}
        if body.bundles is None:
            args[DEFAULTS] = ["bundles"]
        if not body.dry_run:
            return await self._act(call, RequestCommand.CREATE_NAMESPACE, args, body.namespace)
        if await self._cluster.namespace(body.namespace) is not None:
            raise of_outcome(Rejected("namespace-exists", f"{body.namespace} exists already"), name=body.namespace)
        would = OPERATIONS[RequestCommand.CREATE_NAMESPACE].would.format(namespace=body.namespace, bundles=bundles)
        return ApiAnswer({"dry_run": True, "would": [would], "namespace": body.namespace, "bundles": bundles})

    async def delete_namespace(self, call: ApiCall) -> ApiAnswer:
        body, name = call.body, namespace_name(call)
        if not body.dry_run:
            return await self._act(
                call, RequestCommand.DELETE_NAMESPACE, {"namespace": name, "reason": body.reason}, name
            )
        parts = await self._cluster.namespace(name)
        if parts is None:
            raise unknown_namespace(name)
        would = OPERATIONS[RequestCommand.DELETE_NAMESPACE].would.format(namespace=name, bundles=parts[0]["bundles"])
        return ApiAnswer({"dry_run": True, "would": [would], **parts[0], **parts[1]})

    async def of_lost_brokers(self, command: RequestCommand, call: ApiCall) -> ApiAnswer:
        """The end of a pause of repair, or the dismissal of a broker."""
        body, broker = call.body, call.path.get("broker", "")
        if not body.dry_run:
            args = {"broker": broker or None, "reason": body.reason}
            return await self._act(call, command, args, broker)
        if broker and broker not in {
            row["broker"] for row in (await self._cluster.brokers())[0] if row["state"] == "lost"
        }:
            raise of_outcome(Rejected("broker-not-lost", f"{broker} is not known as lost"), name=broker)
        return ApiAnswer({"dry_run": True, "would": [OPERATIONS[command].would.format(broker=broker)]})

    async def operation(self, call: ApiCall) -> ApiAnswer:
        identifier = call.path["operation"]
        wait_s = self._wait_s(call)
        story = await self._find(identifier)
        if story is not None and story.outcome is None and wait_s:
            story = await self._book.wait_ended(identifier, wait_s)
        if story is None:
            raise ProblemError("operation-not-found", f"there is no request {identifier[:64]}")
        outcome = _outcome_of(story)
        request = {"command": story.command, "name": story.subject, "by": story.by, "asked_ms": story.asked_ms}
        document = {"expired": False, **self._document(story, outcome), **request}
        document |= await self._next_step(story, outcome)
        return ApiAnswer(document, headers={} if outcome else {"Retry-After": "1"})

    async def _next_step(self, story: RequestStory, outcome: Outcome | None) -> dict[str, Any]:
        """Whether the executing broker is lost meanwhile; of a refusal, whether the same may be asked again, and the hint."""
        if outcome is not None:
            problem = None if is_success(outcome) else of_outcome(outcome, name=story.subject, operation=story.id)
            again, hint = (None, None) if problem is None else (problem.retryable, problem.hint)
            return {"executor_lost": False, "retryable": again, "hint": hint}
        is_lost = story.executed_by is not None and story.executed_by not in await self._alive()
        hint = "The next leader or owner goes on with it: poll again." if is_lost else None
        return {"executor_lost": is_lost, "retryable": None, "hint": hint}

    def routes(self) -> list[ApiRoute]:
        """Their routes."""
        handlers: dict[RequestCommand, Handler] = {
            RequestCommand.TRANSFER: partial(self.move, RequestCommand.TRANSFER),
            RequestCommand.UNLOAD: partial(self.move, RequestCommand.UNLOAD),
            RequestCommand.SPLIT: self.split,
            RequestCommand.LOOKUP: self.assign,
            RequestCommand.CREATE_NAMESPACE: self.create_namespace,
            RequestCommand.DELETE_NAMESPACE: self.delete_namespace,
            RequestCommand.RESUME_REPAIR: partial(self.of_lost_brokers, RequestCommand.RESUME_REPAIR),
            RequestCommand.DISMISS_BROKER: partial(self.of_lost_brokers, RequestCommand.DISMISS_BROKER),
        }
        actions = [
            ApiRoute(
                at.method, at.path, at.name, at.about, at.role, handler, ACTION, body=body_of(OPERATIONS[command]),
                statuses=(200, 202), reasons=at.reasons, acts=True, bounds_time=False,
            )
            for command, handler in handlers.items()
            if (at := OPERATIONS[command].http) is not None
        ]  # fmt: skip
        return [
            *actions,
            ApiRoute(
                "GET", "/v1/operations/{operation}", "show-operation",
                "Show a request and its end; `Prefer: wait=SECONDS` waits for it", AccessRole.READ, self.operation,
                REQUEST, reasons=("operation-not-found", "not-current"), bounds_time=False,
            ),
        ]  # fmt: skip


def _generation_of(call: ApiCall) -> int | None:
    """The generation of `If-Match`, which the executing broker checks, too; None without one tag of a served bundle."""
    match = _TAG.fullmatch(call.headers.get("if-match", "").strip())
    return None if match is None else int(match[1])


def _outcome_of(story: RequestStory) -> Outcome | None:
    if story.outcome is None:
        return None
    try:
        return outcomes.from_json(story.outcome)
    except ValueError as error:
        raise ProblemError(
            "internal-error", f"the reply to {story.id} cannot be read: {error}", facts={"operation": story.id}
        ) from None
