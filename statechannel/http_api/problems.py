"""Problem documents (RFC 9457) with the stable codes: what a refused request is answered with."""

from __future__ import annotations

from collections.abc import Mapping
from http import HTTPStatus
from typing import Any, Final, NamedTuple

from typing_extensions import TypedDict

from statechannel.broker.next_steps import hint_for
from statechannel.broker.request_writer import may_be_asked_again
from statechannel.engine.commands import NotFound, Outcome, Rejected, Undetermined, Unknown
from statechannel.errors import ExitCode, StateChannelError
from statechannel.operations import outcomes
from statechannel.printable import printable

PROBLEM_JSON: Final = "application/problem+json"
RETRY_AFTER: Final = "Retry-After"
NOT_LEADER: Final = "not-leader"
"""Code of an outcome: the broker that executed it does not lead."""
_GENERATION_CHANGED: Final = "generation-changed"


class Problem(TypedDict):
    """What a refused request is answered with; `reason` is stable, `message` and `hint` are for people.

    `leader_api` is the URL of the leader's API where only the leader could do it; null where it is not known, and elsewhere.
    """

    type: str
    title: str
    status: int
    detail: str
    reason: str
    message: str
    hint: str
    retryable: bool
    operation: str | None
    leader_api: str | None


class ProblemReason(NamedTuple):
    """A code of the admin API itself.

    Attributes:
        about: When it is answered.
        hint: The next step, unless the place that refuses has a better one.
    """

    status: int
    about: str
    hint: str
    retryable: bool = False


_ASK_AGAIN: Final = "Get a new token of `http.oidc_issuer`."

REASONS: Final[Mapping[str, ProblemReason]] = {
    "bad-request": ProblemReason(
        400, "a parameter or the body is missing, malformed or unknown", "See /v1/openapi.json."
    ),
    "token-missing": ProblemReason(
        401, "no bearer token, or one that is not in `http.access_file`", "Send `Authorization: Bearer TOKEN`."
    ),
    "token-invalid": ProblemReason(
        401,
        "a token of `http.oidc_issuer` that is malformed, has a wrong signature or algorithm, or no claim `iss`, `aud`, `exp` or "
        "`sub`, or its `sub` names a caller of `http.access_file`",
        _ASK_AGAIN,
    ),
    "token-expired": ProblemReason(401, "such a token whose time is over", _ASK_AGAIN),
    "token-early": ProblemReason(
        401, "such a token whose time has not begun", "Compare the clocks of issuer and brokers."
    ),
    "token-issuer": ProblemReason(401, "a token of another issuer", "Get a token of `http.oidc_issuer`."),
    "token-audience": ProblemReason(
        401, "a token for another API", "Ask the issuer for one with `http.oidc_audience`."
    ),
    "token-key-unknown": ProblemReason(
        401, "such a token that is signed by none of its issuer's keys", "Try again in 10 s, then with a new token."
    ),
    "role-missing": ProblemReason(
        403,
        "the caller's role does not allow it",
        "A line of `http.access_file` or the claim `http.oidc_role_claim` gives another role; without both, `http.open_role`.",
    ),
    "foreign-page": ProblemReason(
        403,
        "a change that may come from a page of another site: a foreign `Origin`, or neither a bearer token nor the header "
        "`Statechannel-Client`",
        "Programs send a bearer token, or `Statechannel-Client: NAME`.",
    ),
    "no-such-path": ProblemReason(404, "no such path", "See /v1/openapi.json."),
    "broker-not-found": ProblemReason(404, "no broker of this id is alive or lost", "See /v1/brokers."),
    "operation-not-found": ProblemReason(
        404, "no request of this id", "See /v1/operations, which has those that brokers begin, too."
    ),
    "wrong-method": ProblemReason(405, "the path has no such method", "See the header Allow, or /v1/openapi.json."),
    "receive-timeout": ProblemReason(
        408, "the body did not arrive within `http.receive_timeout_s`", "Send it at once."
    ),
    "moment-too-old": ProblemReason(
        410, "what was at this moment is neither in memory nor whole in the log any more", "Choose a later moment."
    ),
    "generation-changed": ProblemReason(
        412,
        "`If-Match` names another state of the bundle than the newest one",
        "Read the bundle again, and decide again.",
    ),
    "body-too-large": ProblemReason(413, "the body is larger than `http.body_max_bytes`", "Send less."),
    "wrong-media-type": ProblemReason(
        415, "the body is not `application/json`", "Send `Content-Type: application/json`."
    ),
    "bad-host": ProblemReason(
        421,
        "the header `Host` names another host than this one",
        "Call it by its address, or add the name to `http.hosts`.",
    ),
    "idempotency-key-reused": ProblemReason(
        422, "the `Idempotency-Key` was used for another request", "Use a new key for each request."
    ),
    "too-many-requests": ProblemReason(
        429, "more than `http.requests_per_s` from one address", "Wait for the time of Retry-After.", retryable=True
    ),
    "internal-error": ProblemReason(500, "a bug", "The log of the process has the error. Report it."),
    "not-supported": ProblemReason(
        501, "a call of Pulsar's API that this cluster does not have", "design/pulsar-paths.md lists what is supported."
    ),
    "too-busy": ProblemReason(
        503, "as much is under way as the settings of `http` allow", "Try again in a moment.", retryable=True
    ),
    "issuer-unavailable": ProblemReason(
        503,
        "the keys of `http.oidc_issuer` cannot be read, and none is known by which the token could be checked",
        "Tokens of `http.access_file` count meanwhile. The message says what the issuer answered.",
        retryable=True,
    ),
    "no-broker": ProblemReason(
        503, "no broker is alive that could execute it", "Start one: `statechannel broker run --id ID`.", retryable=True
    ),
    "not-current": ProblemReason(
        503, "this process has not read the channel to its end, or has stopped", "Ask another broker.", retryable=True
    ),
    "answer-late": ProblemReason(
        504,
        "no answer within `http.answer_timeout_s`",
        "Try again; /healthz shows whether the loop is blocked.",
        retryable=True,
    ),
}
"""Codes of the admin API itself; all others are those of outcomes (api.md) and of errors (errors.md)."""


class ProblemError(StateChannelError):
    """A request to the admin API is refused.

    Attributes:
        status: HTTP status.
        reason: Stable code: of REASONS, of an outcome, or of another error.
        headers: Further headers of the answer.
        facts: Further members of the document.
        for_leader: Only the leader could do it, and another broker has refused, or no broker has answered.
    """

    def __init__(
        self,
        reason: str,
        message: str,
        *,
        status: int | None = None,
        hint: str = "",
        retryable: bool | None = None,
        headers: Mapping[str, str] | None = None,
        facts: Mapping[str, Any] | None = None,
        for_leader: bool = False,
    ) -> None:
        known = REASONS.get(reason)
        super().__init__(message, hint=hint or (known.hint if known else ""))
        self.reason = reason
        self.status = status if status is not None else known.status if known else HTTPStatus.INTERNAL_SERVER_ERROR
        self.retryable = retryable if retryable is not None else known is not None and known.retryable
        self.headers = dict(headers or {})
        if self.retryable:
            self.headers.setdefault(RETRY_AFTER, "1")
        if self.status == HTTPStatus.UNAUTHORIZED:
            scheme = "Bearer" if reason == "token-missing" else 'Bearer error="invalid_token"'
            self.headers.setdefault("WWW-Authenticate", scheme)
        self.facts = dict(facts or {})
        self.for_leader = for_leader or reason == NOT_LEADER

    def document(self) -> dict[str, Any]:
        message = printable(str(self))
        problem: Problem = {
            "type": f"urn:statechannel:problem:{self.reason}",
            "title": HTTPStatus(self.status).phrase,
            "status": self.status,
            "detail": message,
            "reason": self.reason,
            "message": message,
            "hint": self.hint,
            "retryable": self.retryable,
            "operation": None,
            "leader_api": None,
        }
        return {**problem, **self.facts}


_BY_EXIT_CODE: Final[Mapping[ExitCode, int]] = {
    ExitCode.USAGE: 400,
    ExitCode.BAD_SETTINGS: 400,
    ExitCode.REJECTED: 409,
    ExitCode.NOT_FOUND: 404,
    ExitCode.UNDETERMINED: 503,
    ExitCode.NO_BROKER: 503,
    ExitCode.KAFKA_AWAY: 503,
    ExitCode.KAFKA_DENIED: 502,
    ExitCode.KAFKA_FAILED: 502,
    ExitCode.TOPIC_REFUSED: 502,
    ExitCode.TOPIC_BROKEN: 502,
    ExitCode.NEWER_FORMAT: 502,
    ExitCode.UNKNOWN: 504,
    ExitCode.BROKER_STOPPED: 503,
}


def of_error(error: StateChannelError) -> ProblemError:
    """The problem by which another error of the library is answered."""
    if isinstance(error, ProblemError):
        return error
    status = 503 if error.retryable else _BY_EXIT_CODE.get(error.exit_code, 500)
    return ProblemError(error.code, str(error), status=status, hint=error.hint, retryable=error.retryable)


def of_outcome(
    outcome: Outcome, *, name: str = "", operation: str = "", executed_by: str | None = None
) -> ProblemError:
    """The problem by which an outcome other than success is answered; it has the fields of the outcome, too."""
    facts = outcomes.to_json(outcome) | {"answer": outcomes.answer_of(outcome).value}
    facts |= {"operation": operation or None, "executed_by": executed_by}
    if isinstance(outcome, Unknown):
        hint = f"See /v1/operations/{operation}." if operation else "Ask again."
        return ProblemError("unknown", outcome.message, status=504, hint=hint, facts=facts)
    if not isinstance(outcome, Rejected | NotFound | Undetermined):
        raise TypeError(f"{outcome!r} is not a refusal")
    again, status, message = False, 404, outcome.message
    if isinstance(outcome, Undetermined):
        again, status, message = True, 503, message or "not known yet"
    elif isinstance(outcome, Rejected):
        again, status = may_be_asked_again(outcome), 412 if outcome.reason == _GENERATION_CHANGED else 409
    hint = hint_for(outcome, name=name, operation=operation)
    return ProblemError(str(outcome.reason), message, status=status, hint=hint, retryable=again, facts=facts)


def is_success(outcome: Outcome) -> bool:
    return not isinstance(outcome, Rejected | NotFound | Undetermined | Unknown)
