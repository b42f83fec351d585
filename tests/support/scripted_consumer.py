"""A consumer of the client library that hands out what a test has written down; no broker."""

from collections import deque
from typing import Any

from confluent_kafka import KafkaError, KafkaException, Message, TopicPartition

NO_OFFSET = -1001


def record(offset: int, value: bytes = b"v", **more: Any) -> Message:
    """A record of topic `c`, partition 0."""
    return Message("c", 0, offset, b"k", value, timestamp=(2, 7), **more)


def event(code: int, offset: int = NO_OFFSET) -> Message:
    """What the client says in place of a record: an error, or the end of the partition."""
    return Message("c", 0, offset, None, None, error=KafkaError(code))


def end(offset: int = NO_OFFSET) -> Message:
    """The end of the partition."""
    return event(KafkaError._PARTITION_EOF, offset)


class ScriptedConsumer:
    """Hands out `script`, as one fetch where nothing else is there; None: a poll that brings nothing.

    Attributes:
        marks: First offset and end, or the code of an error; None: no answer.
        times: Answers to the question for a time.
        places: Each place that it was given, with the offset.
        asked: Time-outs and counts of the calls, by their names.
        held: What it has now.
    """

    def __init__(self) -> None:
        self.script: deque[Message | None] = deque()
        self.marks: tuple[int, int] | int | None = (0, 3)
        self.times: list[Any] = []
        self.places: list[tuple[str, int, int]] = []
        self.held: list[tuple[str, int, int]] = []
        self.asked: dict[str, list[Any]] = {}
        self.closed = 0

    def _note(self, call: str, *what: Any) -> None:
        self.asked.setdefault(call, []).append(what[0] if len(what) == 1 else what)

    def assign(self, places: list[TopicPartition]) -> None:
        self.held = [(place.topic, place.partition, place.offset) for place in places]
        self.places += self.held

    def unassign(self) -> None:
        self.held = []

    def get_watermark_offsets(self, place: TopicPartition, timeout: float) -> tuple[int, int] | None:
        self._note("marks", place.topic, place.partition, timeout)
        if isinstance(self.marks, int):
            raise KafkaException(KafkaError(self.marks))
        return self.marks

    def offsets_for_times(self, places: list[TopicPartition], timeout: float) -> list[Any]:
        self._note("times", *[(place.topic, place.partition, place.offset) for place in places], timeout)
        return self.times

    def poll(self, timeout_s: float) -> Message | None:
        self._note("poll", timeout_s)
        return self.script.popleft() if self.script else None

    def consume(self, count: int, timeout_s: float) -> list[Message]:
        self._note("consume", count, timeout_s)
        messages = []
        while len(messages) < count and self.script and self.script[0] is not None:
            messages.append(self.script.popleft())
        return messages  # type: ignore[return-value]

    def close(self) -> None:
        self.closed += 1
