"""What Kafka's limits do to the clients of a process: records that it refuses for good, and throttling by quotas."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Any, Final, NamedTuple

TEXT_MAX = 300


class RefusalReason(StrEnum):
    """Why Kafka does not take a record, however often it is sent: also the reason of the operation's rejection."""

    TOO_LARGE = "record-too-large"
    DENIED = "write-denied"
    INVALID = "record-refused"


class AppendRefusal(NamedTuple):
    """Kafka's permanent refusal of a record: it lasts until a limit, a right or a rule is changed.

    Attributes:
        code: Kafka's name of the error, such as `MSG_SIZE_TOO_LARGE`.
        message: A sentence with code, size, limit and the name of the setting, as far as they are known.
    """

    reason: RefusalReason
    code: str
    topic: str
    message: str


class RefusedRecords(NamedTuple):
    """The newest refusal, and how many there were with its topic and code; wall clock."""

    newest: AppendRefusal
    times: int
    since_ms: int
    at_ms: int

    def fields(self) -> dict[str, Any]:
        refusal = self.newest
        return {
            "reason": refusal.reason.value,
            "code": refusal.code,
            "topic": refusal.topic,
            "message": refusal.message[:TEXT_MAX],
            "times": self.times,
            "since_ms": self.since_ms,
            "at_ms": self.at_ms,
        }


class ClientKind(StrEnum):
    PRODUCER = "producer"
    CONSUMER = "consumer"
    ADMIN = "admin"


QUOTAS = {
    ClientKind.PRODUCER: "producer_byte_rate or request_percentage",
    ClientKind.CONSUMER: "consumer_byte_rate or request_percentage",
    ClientKind.ADMIN: "controller_mutation_rate or request_percentage",
}
"""Kafka does not say which quota of a client it is."""


LIMIT_HINTS: Final[Mapping[str, str]] = {
    RefusalReason.TOO_LARGE: "raise the limit that is named: the client property message.max.bytes at each broker, one after the "
    "other, or max.message.bytes of the topic (kafka-configs.sh --alter, while brokers run). `statechannel doctor` compares both "
    "with what the channel needs.",
    RefusalReason.DENIED: "`statechannel acl check --role broker` lists the rights that are missing; one that is granted counts "
    "at once, without a restart.",
    RefusalReason.INVALID: "`statechannel doctor` compares the settings of the topics with the required ones; they can be "
    "changed while brokers run (kafka-configs.sh --alter).",
}
"""What to do about records that Kafka refuses for good, by the reason: also the hints of requests that end with it."""


class ThrottledClient(NamedTuple):
    """The client that Kafka throttles most: it delays requests of a client that exceeds a quota.

    Attributes:
        throttled_ms: For how long of the last `window_ms`.
        since_ms, at_ms: When it began, and when this was measured; wall clock.
    """

    client: str
    kind: ClientKind
    throttled_ms: int
    window_ms: int
    since_ms: int
    at_ms: int

    def fields(self) -> dict[str, Any]:
        return {**self._asdict(), "kind": self.kind.value}
