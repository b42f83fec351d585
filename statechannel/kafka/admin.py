"""Admin client: its creation, time-outs, and error messages."""

from __future__ import annotations

import sys
import threading
import weakref
from collections import deque
from concurrent.futures import TimeoutError as FutureTimeoutError
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient

from statechannel.kafka.errors import kafka_error_of, more_specific, translate
from statechannel.kafka.retries import Answer, Refusals, ask_patiently

if TYPE_CHECKING:
    from collections.abc import Callable
    from concurrent.futures import Future

    from statechannel.kafka.client_settings import ClientSettings

_ANSWER_SLACK_S = 5.0
"""What a call's future may take beyond the time-out that the client library was given."""


class AdminHandle:
    """Keeps an admin client while the handle is referenced.

    The library answers in a thread of the client, where Python may collect garbage, and aborts the process if the client is
    freed there (confluentinc/confluent-kafka-python#2129). So another thread destroys the client when its handle is gone.
    What the client has not answered by then stays without an answer: no future may be waited for without its handle.

    Args:
        on_error: Callback for asynchronous client errors. It must not reference the handle, which would then leak.

    Attributes:
        client: The client; of no use without the handle.

    Raises:
        KafkaAdapterError: The settings are not what the client library takes.
    """

    def __init__(self, settings: ClientSettings, on_error: Callable[[KafkaError], Any] | None = None) -> None:
        config: dict[str, Any] = settings.admin_config()
        if on_error is not None:
            config["error_cb"] = on_error
        try:
            self.client = AdminClient(config)
        except (KafkaException, TypeError, ValueError) as error:
            raise translate(error, "making the admin client", secrets=settings.secrets()) from None
        weakref.finalize(self, _destroy_aside, self.client).atexit = False


_abandoned: deque[AdminClient] = deque()
"""Clients to be destroyed; they stay here where no thread can be started, such as when the interpreter ends."""


def _destroy_aside(client: AdminClient) -> None:
    _abandoned.append(client)
    if not sys.is_finalizing():
        with suppress(RuntimeError):
            threading.Thread(target=_destroy_abandoned, name="destroy-admin-clients", daemon=True).start()


def _destroy_abandoned() -> None:
    while True:
        try:
            client = _abandoned.popleft()
        except IndexError:
            return
        client.__exit__(None, None, None)


class BoundedAdmin:
    """Admin calls with time-outs, and errors that name the cause.

    Args:
        timeout_s: Bound of one call, its retries included.
    """

    def __init__(self, settings: ClientSettings, *, timeout_s: float = 20.0) -> None:
        self._settings = settings
        self._timeout_s = timeout_s
        self._refusals = Refusals()
        self._handle = AdminHandle(settings, self._refusals.note)
        self._admin = self._handle.client

    def _patiently(self, call: Callable[[float], Answer]) -> Answer:
        """Raises the error of the last try, as ours."""
        try:
            return ask_patiently(call, timeout_s=self._timeout_s, topic_grace_s=0.0)
        except CallFailedError as failure:
            raise failure.translated from None

    def _wait(self, future: Future[Any], doing: str) -> Any:
        """Result of a call.

        Raises:
            CallFailedError: To be handled, or retried by `_patiently`.
        """
        try:
            return self._refusals.wait(future, self._timeout_s + _ANSWER_SLACK_S, lambda: self._admin.poll(0))
        except (KafkaException, FutureTimeoutError) as error:
            self._admin.poll(0)  # serves error_cb
            code = kafka_error_of(error) or KafkaError(KafkaError._TIMED_OUT)  # noqa: SLF001 (public code)
            cause = more_specific(code, self._refusals.last)
            raise CallFailedError(code, translate(cause or code, doing, secrets=self._settings.secrets())) from None


class CallFailedError(KafkaException):
    """An admin call failed: the library's error, and ours."""

    def __init__(self, error: KafkaError, translated: Exception) -> None:
        super().__init__(error)
        self.translated = translated
        self.code = error.code()
