"""Admin client: its creation, retries, time-outs and error messages; and the bounds of partitions."""

from __future__ import annotations

import sys
import threading
import time
import weakref
from collections import deque
from collections.abc import Iterable
from concurrent.futures import TimeoutError as FutureTimeoutError
from contextlib import suppress
from math import inf
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar

from confluent_kafka import KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._listoffsets import OffsetSpec
from tenacity import Retrying, retry_if_exception, stop_before_delay, wait_random_exponential

from statechannel.kafka.client_settings import make_client
from statechannel.kafka.errors import (
    TopicMissingError,
    is_access_denied,
    is_topic_missing,
    is_transient,
    kafka_error_of,
    more_specific,
    translate,
)

if TYPE_CHECKING:
    from collections.abc import Callable
    from concurrent.futures import Future

    from statechannel.kafka.client_settings import ClientSettings

Answer = TypeVar("Answer")

_FIRST_PAUSE_S: Final = 0.05
_LONGEST_PAUSE_S: Final = 0.5
_LEAST_S: Final = 0.001
_LOOK_S: Final = 0.1
REFUSED_AFTER_S: Final = 3.0
"""Limit of retries after a refused authentication: a starting Kafka broker may not know its users yet."""


class Refusals:
    """Detects that Kafka refuses this client, which the library treats as an outage and retries for ever."""

    def __init__(self) -> None:
        self._since_s: float | None = None
        self.last: KafkaError | None = None

    def note(self, error: KafkaError) -> None:
        self.last = error
        if is_access_denied(error) and self._since_s is None:
            self._since_s = time.monotonic()

    def wait(self, future: Future[Any], timeout_s: float, poll: Callable[[], object]) -> Any:
        """Result of a call.

        Args:
            poll: Serves the client's error callback.

        Raises:
            KafkaException: As the call raised it; or the refusal, once it has lasted for `REFUSED_AFTER_S`.
            concurrent.futures.TimeoutError: The time is up.
        """
        ends_s = time.monotonic() + timeout_s
        while True:
            left_s = ends_s - time.monotonic()
            try:
                return future.result(timeout=min(_LOOK_S, max(_LEAST_S, left_s)))
            except FutureTimeoutError:
                if left_s <= _LOOK_S:
                    raise
            poll()
            refused = self._since_s is not None and time.monotonic() - self._since_s > REFUSED_AFTER_S
            if refused and self.last is not None and is_access_denied(self.last):
                raise KafkaException(self.last)


def ask_patiently(ask: Callable[[float], Answer], *, timeout_s: float, topic_grace_s: float) -> Answer:
    """The first answer that is one; what the last try raised, if there is none in time.

    Args:
        ask: One attempt; receives the remaining seconds, and raises errors of the client library.
        timeout_s: Bound of all tries together.
        topic_grace_s: Time from the first answer that a topic is missing during which only that broker may not know it: a
            Kafka that is slow may give no answer at all for longer.
    """
    began_s, known_s = time.monotonic(), inf

    def passes(problem: BaseException) -> bool:
        nonlocal known_s
        if is_transient(problem):
            return True
        if not is_topic_missing(problem):
            return False
        known_s = min(known_s, time.monotonic() + topic_grace_s)
        return time.monotonic() < known_s

    tries = Retrying(
        retry=retry_if_exception(passes),
        stop=stop_before_delay(timeout_s),
        wait=wait_random_exponential(multiplier=_FIRST_PAUSE_S, max=_LONGEST_PAUSE_S),
        reraise=True,
    )
    return tries(lambda: ask(max(_LEAST_S, began_s + timeout_s - time.monotonic())))


_ANSWER_SLACK_S = 5.0
"""What a call's future may take beyond the time-out that the client library was given."""

_ATTEMPTS: Final = 3
_LEAST_ATTEMPT_S: Final = 10.0


STATISTICS_MS: Final = 100


class AdminHandle:
    """Keeps an admin client while the handle is referenced.

    The library answers in a thread of the client, where Python may collect garbage, and aborts the process if the client is
    freed there (confluentinc/confluent-kafka-python#2129). So another thread destroys the client when its handle is gone.
    What the client has not answered by then stays without an answer: no future may be waited for without its handle.

    Args:
        on_error: Callback for asynchronous client errors. It must not reference the handle, which would then leak.
        on_statistics: Callback for the library's statistics, as JSON, every `STATISTICS_MS`; likewise.

    Raises:
        KafkaAdapterError: The settings are not what the client library takes.
    """

    def __init__(
        self,
        settings: ClientSettings,
        on_error: Callable[[KafkaError], Any] | None = None,
        on_statistics: Callable[[str], Any] | None = None,
    ) -> None:
        config: dict[str, Any] = settings.admin_config()
        if on_statistics is not None:
            config |= {"stats_cb": on_statistics, "statistics.interval.ms": STATISTICS_MS}
        if on_error is not None:
            config["error_cb"] = on_error
        self._client = make_client(AdminClient, config, settings, "making the admin client")
        weakref.finalize(self, _destroy_aside, self._client).atexit = False

    @property
    def client(self) -> AdminClient:
        """The client, of no use without the handle. What is due is served first: the library renews tokens only when polled."""
        self._client.poll(0)
        return self._client


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

    An attempt has a third of the time (10 seconds at least), and the next has a new client: the library's may wait in vain for
    a group's coordinator that it looked for while Kafka started.

    Args:
        timeout_s: Bound of one call, its retries included.
    """

    def __init__(self, settings: ClientSettings, *, timeout_s: float = 20.0) -> None:
        self._settings = settings
        self._timeout_s = timeout_s
        self._attempt_s = min(timeout_s, max(_LEAST_ATTEMPT_S, timeout_s / _ATTEMPTS))
        self._refusals = Refusals()
        self._handle = AdminHandle(settings, self._refusals.note)

    @property
    def _admin(self) -> AdminClient:
        return self._handle.client

    def _patiently(self, call: Callable[[float], Answer]) -> Answer:
        """Raises the error of the last try, as ours."""

        def attempt(left_s: float) -> Answer:
            try:
                return call(min(left_s, self._attempt_s))
            except CallFailedError as failure:
                if failure.is_unanswered:
                    self._handle = AdminHandle(self._settings, self._refusals.note)
                raise

        try:
            return ask_patiently(attempt, timeout_s=self._timeout_s, topic_grace_s=0.0)
        except CallFailedError as failure:
            raise failure.translated from None

    def _wait(self, future: Future[Any], doing: str) -> Any:
        """Result of a call.

        Raises:
            CallFailedError: To be handled, or retried by `_patiently`.
        """
        try:
            return self._refusals.wait(future, self._attempt_s + _ANSWER_SLACK_S, lambda: self._admin.poll(0))
        except (KafkaException, FutureTimeoutError) as error:
            self._admin.poll(0)  # serves error_cb
            code = kafka_error_of(error) or KafkaError(KafkaError._TIMED_OUT)  # noqa: SLF001 (public code)
            cause = more_specific(code, self._refusals.last)
            raise CallFailedError(code, translate(cause or code, doing, secrets=self._settings.secrets())) from None


class CallFailedError(KafkaException):
    def __init__(self, error: KafkaError, translated: Exception) -> None:
        super().__init__(error)
        self.translated = translated
        self.code = error.code()

    @property
    def is_unanswered(self) -> bool:
        """Whether the time-out of the call passed without an answer."""
        return self.code == KafkaError._TIMED_OUT  # noqa: SLF001 (public code)


Place = tuple[str, int]
"""Topic name and partition."""

_SLACK_S = 2.0


class OffsetBounds(NamedTuple):
    """Current bounds of a partition.

    Attributes:
        low: First available offset.
        high: End offset, one after the last record.
    """

    low: int
    high: int


class BoundsAsker:
    """Query of bounds through one long-lived admin client."""

    def __init__(self, settings: ClientSettings, *, timeout_s: float = 10.0) -> None:
        self._settings = settings
        self._timeout_s = timeout_s
        self._errors: deque[KafkaError] = deque(maxlen=1)
        self._admin = AdminHandle(settings, self._errors.append)

    def ask(self, places: Iterable[Place]) -> dict[Place, OffsetBounds]:
        """The bounds of each.

        Raises:
            KafkaUnavailableError: Kafka did not answer in time.
            TopicMissingError: A topic or partition does not exist, or has no leader.
        """
        wanted = list(places)
        self._errors.clear()
        try:
            return ask_patiently(lambda left_s: self._ask(wanted, left_s), timeout_s=self._timeout_s, topic_grace_s=0.0)
        except (KafkaException, FutureTimeoutError) as error:
            names = ", ".join(sorted({topic for topic, _ in wanted}))
            kafka_error = kafka_error_of(error)
            if kafka_error is not None and kafka_error.code() == KafkaError._NOENT:  # noqa: SLF001 - a public code
                raise TopicMissingError(
                    f"a partition of {names} has no leader",
                    hint="Create the topics with `statechannel init`, or wait until the Kafka cluster has come up.",
                ) from None
            problem = more_specific(kafka_error, self._errors[-1] if self._errors else None) or error
            raise translate(problem, f"querying the bounds of {names}", secrets=self._settings.secrets()) from None

    def _ask(self, wanted: list[Place], left_s: float) -> dict[Place, OffsetBounds]:
        partitions = [TopicPartition(topic, number) for topic, number in wanted]
        try:
            # The beginning first: what is deleted in between only makes it too low.
            low = self._offsets(partitions, OffsetSpec.earliest(), left_s)  # type: ignore[no-untyped-call]
            high = self._offsets(partitions, OffsetSpec.latest(), left_s)  # type: ignore[no-untyped-call]
        except KafkaException:
            self._admin.client.poll(0)  # serves error_cb
            # After a change of leaders the client goes on asking with the epoch that it knew, and is refused for ever.
            self._admin = AdminHandle(self._settings, self._errors.append)
            raise
        return {place: OffsetBounds(low[place], high[place]) for place in wanted}

    def _offsets(self, partitions: list[TopicPartition], spec: Any, left_s: float) -> dict[Place, int]:
        futures = self._admin.client.list_offsets(dict.fromkeys(partitions, spec), request_timeout=left_s)
        return {
            (place.topic, place.partition): int(future.result(timeout=left_s + _SLACK_S).offset)
            for place, future in futures.items()
        }
