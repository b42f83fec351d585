"""Access to a channel: settings, client, names of topics."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from typing import Any, Protocol

from statechannel.kafka.client_settings import ClientSettings, to_client, to_topics
from statechannel.kafka.topic_policy import ChannelTopics
from statechannel.settings import Settings

_LEAST_S = 5.0
"""Kafka's first answer may normally take this long."""


@dataclass(frozen=True, slots=True)
class Connection:
    """Everything that a question or command needs to access a channel.

    Attributes:
        reporter: Gets notes and progress.
        context: Name of the context in use; empty if none is.
        notified: People know already that Kafka is slow to answer.
    """

    settings: Settings
    client: ClientSettings
    topics: ChannelTopics
    reporter: AnswerReporter
    context: str = ""
    notified: bool = False

    @property
    def place(self) -> str:
        """Where the channel is, for people."""
        return f"channel {self.topics.channel} at {self.cluster}"

    @property
    def cluster(self) -> str:
        """The Kafka cluster, for people."""
        return (
            f"{self.client.bootstrap_servers} (context {self.context})"
            if self.context
            else self.client.bootstrap_servers
        )

    @property
    def place_fields(self) -> dict[str, Any]:
        """Where the channel is, for programs."""
        return {
            "channel": self.topics.channel,
            "bootstrap_servers": self.client.bootstrap_servers,
            "context": self.context or None,
        }

    @property
    def timeout_s(self) -> float:
        """Longest wait of one call to Kafka."""
        return self.settings.kafka.command_timeout_s

    def within(self, most_s: float | None) -> Connection:
        """The same for a command with a time limit: no call to Kafka waits much longer than the limit."""
        if most_s is None or self.timeout_s <= max(most_s, _LEAST_S):
            return self
        kafka = self.settings.kafka.model_copy(update={"command_timeout_s": max(most_s, _LEAST_S)})
        return replace(self, settings=self.settings.model_copy(update={"kafka": kafka}))


def connection_to(settings: Settings, reporter: AnswerReporter, context: str = "") -> Connection:
    """The connection of settings that name Kafka's servers."""
    return Connection(settings, to_client(settings), to_topics(settings), reporter, context)


class AnswerReporter(Protocol):
    """Tells a person or a program that asks what happens meanwhile."""

    def note(self, sentence: str, *, once: bool = False) -> None:
        """Note what limits the answer.

        Args:
            once: Leave it out if this answer has it already: several of its parts read one file.
        """

    def progress(
        self, doing: str, total: int | None, *, unit: str = ""
    ) -> AbstractContextManager[Callable[[int], None]]:
        """Show progress; yields a function that takes how much is done."""

    def waiting(self, doing: str, at_most_s: float) -> AbstractContextManager[Callable[[str], None]]:
        """Show a wait; yields a function to call repeatedly, with a remark."""


class Notes:
    """For programs: keeps the notes of an answer, and shows no progress."""

    def __init__(self) -> None:
        self.sentences: list[str] = []

    def note(self, sentence: str, *, once: bool = False) -> None:
        if not once or sentence not in self.sentences:
            self.sentences.append(sentence)

    @contextmanager
    def progress(self, doing: str, total: int | None, *, unit: str = "") -> Iterator[Callable[[int], None]]:
        del doing, total, unit
        yield lambda _: None

    @contextmanager
    def waiting(self, doing: str, at_most_s: float) -> Iterator[Callable[[str], None]]:
        del doing, at_most_s
        yield lambda _: None
