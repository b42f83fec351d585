"""The balancer in the admin API: paths that change policies, overrides and cordons, or drain brokers; events of its decisions."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from pydantic import Field
from ulid import ULID

from shedders.cli.drain import command, cordons, follower
from shedders.cli.policy.write import PolicyWriteResult, put, take_away
from shedders.decisions.history import decision_read
from shedders.decisions.topic import describe_decision_topic
from shedders.policies.kinds import PolicyKind, kind_of
from shedders.policies.record import made_key
from shedders.queries.policies import DRAIN, POLICY
from statechannel.broker.request_writer import balancer_args
from statechannel.clocks import now_ms
from statechannel.http_api.actions import ACTION_KEYS, IDEMPOTENCY_KEY, ActionBody, operation_of
from statechannel.http_api.change_sources import ChangeSource, Fold
from statechannel.http_api.problems import ProblemError, is_success, of_outcome
from statechannel.http_api.routes import PENDING, ApiAnswer, ApiCall, ApiRoute, TopicAnswers
from statechannel.kafka.client_settings import to_client, to_topics
from statechannel.kafka.tail import PartitionTail, side_tail
from statechannel.kafka.topic_policy import decisions_topic
from statechannel.operations import outcomes
from statechannel.operations.outcomes import Answer
from statechannel.operations.table import Addressee
from statechannel.protocol.log import RecordRead
from statechannel.protocol.side_record import InvalidRecord
from statechannel.queries.connection import Connection
from statechannel.queries.live_log import read_requests
from statechannel.queries.query import Keys, object_type
from statechannel.settings.groups_cluster import AccessRole
from statechannel.stories.requests import RequestStory

if TYPE_CHECKING:
    from statechannel.http_api.cluster import ApiCluster
    from statechannel.settings import Settings


_YEAR_S: Final = 366 * 86_400


class PolicyBody(ActionBody):
    """A policy, or an override, which expires."""

    value: dict[str, Any] = Field(
        {}, max_length=100, description="Fields of its kind; `statechannel policy kinds` lists them."
    )
    force: bool = Field(
        False,
        description="Write it even if policies then contradict each other, or its bundle does not exist. Takes the role force.",
    )


class OverrideBody(PolicyBody):
    """An override."""

    for_s: float = Field(gt=0, le=_YEAR_S, description="Time after which it expires.")


class PolicyEndBody(ActionBody):
    """The end of a policy."""

    force: bool = Field(
        False, description="Even if the remaining policies contradict each other. Takes the role force."
    )


class DrainBody(ActionBody):
    """How a broker is emptied."""

    rate_per_s: float | None = Field(None, gt=0, le=10_000, description="Bundles moved per second.")
    force: bool = Field(False, description="Also move bundles that policies forbid elsewhere. Takes the role force.")


_CHANGE: Final[Sequence[Keys]] = (
    (PolicyKind, "kind"), (str, "name"), (bool, "override deleted superseded"), (dict[str, Any] | None, "value"),
    (str | None, "by why reason"), (int | None, "until_ms offset logged_at_ms"), (Answer | None, "outcome"),
    (POLICY | None, "replaced"), (list[str], "contradictions"),
)  # fmt: skip
_OF_ALL: Final[Sequence[Keys]] = ((bool, "dry_run"), (list[str], "notes"))
_POLICY_CHANGE: Final = object_type("PolicyChange", "A policy that was written or deleted.", *_CHANGE, *_OF_ALL)
_UNCORDON: Final = object_type(
    "UncordonDocument",
    "The end of a cordon, or what it would do.",
    *_OF_ALL,
    sometimes=(*_CHANGE, (list[str], "would")),
)
_DRAIN: Final = object_type(
    "DrainDocument", "A drain that has begun, or a dry run.", (list[str], "notes"), sometimes=ACTION_KEYS
)
_DOCUMENTS: Final[Mapping[str, Any]] = {"drain": _DRAIN, "uncordon": _UNCORDON}


class BalancerAnswers:
    """Handlers of the balancer's paths."""

    def __init__(self, cluster: ApiCluster) -> None:
        self._answers = TopicAnswers(cluster.settings)
        self._drain_s = cluster.settings.limits.command_timeout_s

    async def _read(self, read: Callable[[Connection], dict[str, Any]]) -> ApiAnswer:
        return ApiAnswer(await self._answers.of(read))

    # --- policies: a record of a key, so that the same call twice is the same state -------------------------------------

    async def set_policy(self, call: ApiCall) -> ApiAnswer:
        return await self._set(call, None)

    async def set_override(self, call: ApiCall) -> ApiAnswer:
        return await self._set(call, call.body.for_s)

    async def _set(self, call: ApiCall, for_s: float | None) -> ApiAnswer:
        body = _forced(call)
        key = made_key(kind_of(call.path["kind"]), call.path["name"], override=for_s is not None)

        def write(to: Connection) -> dict[str, Any]:
            until_ms = None if for_s is None else now_ms() + round(1_000 * for_s)
            return _written(
                put(
                    to, key, dict(body.value), by=call.caller.by, why=body.reason, until_ms=until_ms, force=body.force,
                    dry_run=body.dry_run,
                )
            )  # fmt: skip

        return await self._read(write)

    async def end_policy(self, call: ApiCall) -> ApiAnswer:
        return await self._end(call, override=False)

    async def end_override(self, call: ApiCall) -> ApiAnswer:
        return await self._end(call, override=True)

    async def _end(self, call: ApiCall, *, override: bool) -> ApiAnswer:
        body = _forced(call)
        key = made_key(kind_of(call.path["kind"]), call.path["name"], override=override)
        by = call.caller.by
        return await self._read(
            lambda to: _written(take_away(to, key, force=body.force, by=by, why=body.reason, dry_run=body.dry_run))
        )

    # --- drains -------------------------------------------------------------------------------------------------------

    async def drain(self, call: ApiCall) -> ApiAnswer:
        body, broker = _forced(call), call.path["broker"]
        cordons.key_of(broker)
        key = call.headers.get(IDEMPOTENCY_KEY)
        drain = str(ULID()) if key is None else operation_of(call.caller.name, key)

        def begin(to: Connection) -> dict[str, Any]:
            args = {"broker": broker, "rate_per_s": body.rate_per_s, "force": body.force, "drain": drain}
            known = read_requests(to).get(drain) if key is not None else None
            if known is not None:
                _require_same(known, args)
                return _state_of(to, drain, broker)
            registry = follower.check(to, broker, force=body.force)
            if body.dry_run:
                would = command.effect_of(to, registry, broker, force=body.force).sentences
                return {"dry_run": True, "would": list(would), "broker": broker}
            cordons.cordon(to, broker, drain, why=body.reason or "", by=call.caller.by)
            within_s = body.timeout_s or self._drain_s
            follower.send(to, DRAIN, args, within_s, identifier=drain, by=call.caller.by)
            return {"operation": drain, "broker": broker, "answer": PENDING}

        document = await self._answers.of(begin)
        if document.get("answer") != PENDING:
            return ApiAnswer(document)
        return ApiAnswer(document, 202, {"Location": f"/v1/operations/{drain}", "Retry-After": "1"})

    async def uncordon(self, call: ApiCall) -> ApiAnswer:
        body, broker = _forced(call), call.path["broker"]
        cordons.key_of(broker)

        def end(to: Connection) -> dict[str, Any]:
            done = cordons.uncordon(
                to, broker, force=body.force, by=call.caller.by, why=body.reason, dry_run=body.dry_run
            )
            if body.dry_run:
                return {"dry_run": True, "would": [f"{broker} would take bundles again"]}
            return _written(done)

        return await self._read(end)


def _state_of(to: Connection, drain: str, broker: str) -> dict[str, Any]:
    """What has become of a drain: the state of its request.

    Raises:
        ProblemError: It was refused, or its leader has lost leadership.
    """
    request = follower.newest(to, drain)
    document: dict[str, Any] = {"operation": drain, "broker": broker, "answer": PENDING}
    if request is None or request.outcome is None:
        return document
    outcome = outcomes.from_json(request.outcome)
    if not is_success(outcome):
        raise of_outcome(outcome, name=broker, operation=drain, executed_by=request.executed_by)
    return document | outcomes.to_json(outcome) | {"answer": outcomes.answer_of(outcome).value, "operation": drain}


def _forced(call: ApiCall) -> Any:
    if call.body.force:
        call.require(AccessRole.FORCE, "a change against policies")
    return call.body


def _require_same(known: RequestStory, args: dict[str, Any]) -> None:
    """Refuse a key that stands for another request.

    Raises:
        ProblemError: `idempotency-key-reused`.
    """
    asked = balancer_args(DRAIN, Addressee.LEADER, args)
    if known.args != {name: value for name, value in asked.items() if value is not None}:
        raise ProblemError(
            "idempotency-key-reused",
            f"the key stands for another request: {known.command} of {known.broker or known.name or known.id}",
            facts={"operation": known.id},
        )


def _written(done: PolicyWriteResult) -> dict[str, Any]:
    """The document of a write that has succeeded.

    Raises:
        ProblemError: It was refused, or is unknown.
    """
    written = done.written
    if written is not None and written.outcome is Answer.REJECTED:
        hint = "" if written.error is None else written.error.hint
        raise ProblemError("not-written", f"rejected: {written.reason}", status=409, hint=hint)
    if written is not None and written.outcome is Answer.UNKNOWN:
        hint = "Look at /v1/policies; the same call again is safe."
        raise ProblemError("unknown", f"unknown: {written.reason}", status=504, hint=hint)
    return done.fields()


def routes(cluster: ApiCluster) -> Iterable[ApiRoute]:
    """An entry point of `statechannel.http_routes`."""
    answers = BalancerAnswers(cluster)
    policy, override, drain = (
        "/v1/policies/{kind}/{name:path}",
        "/v1/overrides/{kind}/{name:path}",
        "/v1/brokers/{broker}/drain",
    )

    def act(method: str, path: str, name: str, about: str, handler: Any, body: Any, *reasons: str) -> ApiRoute:
        answer, statuses = _DOCUMENTS.get(name, _POLICY_CHANGE), (200, 202) if name == "drain" else (200,)
        return ApiRoute(
            method, path, name, about, AccessRole.OPERATE, handler, answer, body=body, statuses=statuses,
            reasons=("too-busy", *reasons), acts=True,
        )  # fmt: skip

    yield act("PUT", policy, "set-policy", "Write a policy", answers.set_policy, PolicyBody, "bad-policy")
    yield act("DELETE", policy, "end-policy", "Delete a policy", answers.end_policy, PolicyEndBody, "bad-policy")
    yield act("PUT", override, "set-override", "Write an override", answers.set_override, OverrideBody, "bad-policy")
    yield act("DELETE", override, "end-override", "End an override", answers.end_override, PolicyEndBody, "bad-policy")
    yield act(
        "POST", drain, "drain", "Cordon a broker and move all its bundles away", answers.drain, DrainBody,
        "idempotency-key-reused",
    )  # fmt: skip
    about = "Let a broker take bundles again, and end its drain"
    yield act("DELETE", drain, "uncordon", about, answers.uncordon, PolicyEndBody)


DECISION: Final = "decision"
_LEFT_OUT: Final = {"memory", "settings"}
"""Fields for the next leader: they can be as large as all the rest."""


def decision_document(record: RecordRead) -> Mapping[str, Any]:
    """The document of a record of the topic: its own fields without those for the next leader, or why it cannot be read."""
    read = decision_read(record)
    place = {"offset": read.offset, "timestamp_ms": read.timestamp_ms}
    if isinstance(read.record, InvalidRecord):
        return place | {"unreadable": str(read.record.reason), "message": read.record.why}
    return place | read.record.model_dump(mode="json", exclude=_LEFT_OUT)


def decisions(settings: Settings) -> ChangeSource:
    """An entry point of `statechannel.change_sources`."""
    client, topic = to_client(settings), decisions_topic(to_topics(settings).channel)

    def open_tail() -> PartitionTail:
        timeout_s = settings.kafka.command_timeout_s
        describe_decision_topic(client, topic, timeout_s=timeout_s)
        return side_tail(client, topic, timeout_s)

    def fold() -> Fold:
        return decision_document

    return ChangeSource(DECISION, open_tail, fold)
