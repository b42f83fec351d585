"""The form of Pulsar's answers: paths that stay encoded, as Pulsar reads them, and its own body for what is refused."""

from __future__ import annotations

from collections.abc import Mapping
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote

import orjson

from statechannel.http_api.problems import PROBLEM_JSON, REASONS

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

ROOTS: Final = ("/admin/", "/lookup/")
REASON_HEADER: Final = "Statechannel-Reason"
"""Header of a refusal with its stable code: `reason` of Pulsar's body is a sentence."""
PULSAR_STATUSES: Final[Mapping[str, int]] = {
    "bad-name": HTTPStatus.PRECONDITION_FAILED,
    "bad-split": HTTPStatus.PRECONDITION_FAILED,
    "no-such-path": HTTPStatus.NOT_IMPLEMENTED,
    "unknown-bundle": HTTPStatus.PRECONDITION_FAILED,
    "wrong-method": HTTPStatus.NOT_IMPLEMENTED,
}
"""Statuses by which Pulsar answers what the admin API answers by another one."""
_NOT_SUPPORTED: Final = "not-supported"


class PulsarForm:
    """Gives requests for Pulsar's paths, and what is refused of them, the form that Pulsar's clients know; others pass.

    Args:
        app: The application with the routes, and with all checks.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or not scope["path"].startswith(ROOTS):
            await self._app(scope, receive, send)
            return
        # A slash within the name of a topic is `%2F`: once decoded it would separate parts of the path.
        encoded = scope.get("raw_path") or quote(scope["path"]).encode()
        form = _Sender(send, scope["method"])
        path = encoded.decode("latin-1").removesuffix("/")
        await self._app({**scope, "path": path}, receive, form.send)


class _Sender:
    """Passes one answer on; a problem document becomes Pulsar's."""

    def __init__(self, send: Send, method: str) -> None:
        self._send = send
        self._method = method
        self._start: Message | None = None
        self._body = bytearray()

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start" and _is_problem(message):
            self._start = message
        elif self._start is None:
            await self._send(message)
        else:
            self._body += message.get("body", b"")
            if not message.get("more_body", False):
                start, body = pulsar_refusal(self._start, self._body, self._method)
                await self._send(start)
                await self._send({"type": "http.response.body", "body": body})


def _is_problem(start: Message) -> bool:
    return any(
        name.lower() == b"content-type" and value == PROBLEM_JSON.encode() for name, value in start.get("headers", ())
    )


def pulsar_refusal(start: Message, body: bytes | bytearray, method: str) -> tuple[Message, bytes]:
    """Start and body of Pulsar's answer, from those of a problem document: `{"reason": SENTENCE}`."""
    problem: Mapping[str, Any] = orjson.loads(body) if body else {"reason": "bad-request", "message": "", "hint": ""}
    reason, status = problem["reason"], start["status"]
    sentence, hint = problem["message"], problem["hint"]
    if hint == REASONS["bad-request"].hint:  # these paths are not in that description
        hint = REASONS[_NOT_SUPPORTED].hint
    if PULSAR_STATUSES.get(reason) == HTTPStatus.NOT_IMPLEMENTED:
        reason, hint = _NOT_SUPPORTED, REASONS[_NOT_SUPPORTED].hint
        sentence = unsupported_sentence(method)
    status = PULSAR_STATUSES.get(problem["reason"], status)
    content = orjson.dumps({"reason": f"{sentence}. {hint}" if hint else sentence})
    replaced = {b"content-type", b"content-length", b"allow"}
    kept = [(name, value) for name, value in start["headers"] if name.lower() not in replaced]
    own = [
        (b"content-type", b"application/json"),
        (b"content-length", str(len(content)).encode()),
        (REASON_HEADER.lower().encode(), reason.encode("ascii", "replace")),
    ]
    return {**start, "status": int(status), "headers": [*kept, *own]}, content


def unsupported_sentence(method: str) -> str:
    """What is answered to a method of a path that this cluster does not have."""
    return f"{method[:20]} of this path of Pulsar is not supported"
