"""An admin client of the client library that answers from what a test has written down; no broker."""

from collections.abc import Callable, Mapping
from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException

from statechannel.kafka import admin as admin_module
from statechannel.kafka import topics

ALWAYS = 10**9
"""Times that a call is refused."""


def refusal(code: int) -> KafkaException:
    return KafkaException(KafkaError(code))


def answered(value: object) -> Future[Any]:
    """The answer of a call; an exception is raised by it."""
    future: Future[Any] = Future()
    if isinstance(value, Exception):
        future.set_exception(value)
    else:
        future.set_result(value)
    return future


def node(number: int, rack: str | None = None) -> Any:
    return SimpleNamespace(id=number, host=f"kafka{number}", port=9092, rack=rack)


def part(number: int, leader: Any, replicas: tuple[int, ...] = (1,), isr: tuple[int, ...] = (1,)) -> Any:
    return SimpleNamespace(id=number, leader=leader, replicas=[node(n) for n in replicas], isr=[node(n) for n in isr])


class ScriptedAdmin:
    """A cluster.

    Attributes:
        topics: Its topics, by name.
        settings: Of each topic and node.
        refusals: By the name of a call how often it fails, and with which code.
    """

    def __init__(self) -> None:
        self.topics: dict[str, list[Any]] = {}
        self.settings: dict[str, dict[str, Any]] = {}
        self.refusals: dict[str, tuple[int, int]] = {}
        self.nodes = [node(2, "b"), node(1, "a")]
        self.controller: Any = self.nodes[0]
        self.members: list[Any] = []
        self.created: dict[str, Any] = {}
        self.calls: list[str] = []

    def _answer(self, call: str, make: Callable[[], Any]) -> Future[Any]:
        self.calls.append(call)
        left, code = self.refusals.get(call, (0, 0))
        if left:
            self.refusals[call] = (left - 1, code)
            return answered(refusal(code))
        return answered(make())

    def poll(self, _: float) -> int:
        return 0

    def describe_cluster(self, **_: object) -> Future[Any]:
        made = SimpleNamespace(cluster_id="C1", controller=self.controller, nodes=self.nodes)
        return self._answer("cluster", lambda: made)

    def describe_topics(self, wanted: Any, **_: object) -> dict[str, Future[Any]]:
        def ask(name: str) -> Future[Any]:
            if name not in self.topics:
                return answered(refusal(KafkaError.UNKNOWN_TOPIC_OR_PART))
            made = SimpleNamespace(topic_id=f"id of {name}", partitions=self.topics[name])
            return self._answer("describe", lambda: made)

        return {name: ask(name) for name in wanted.topic_names}

    def describe_configs(self, resources: list[Any], **_: object) -> dict[Any, Future[Any]]:
        def ask(name: str) -> Future[Any]:
            if name not in self.settings:
                return answered(refusal(KafkaError.UNKNOWN_TOPIC_OR_PART))
            entries = {
                key: SimpleNamespace(value=value, is_sensitive="password" in key)
                for key, value in self.settings[name].items()
            }
            return self._answer("configs", lambda: entries)

        return {one: ask(one.name) for one in resources}

    def describe_consumer_groups(self, groups: list[str], **_: object) -> dict[str, Future[Any]]:
        return {group: self._answer("groups", lambda: SimpleNamespace(members=self.members)) for group in groups}

    def create_topics(self, new: list[Any], **_: object) -> dict[str, Future[Any]]:
        for one in new:
            self.created[one.topic] = (one.num_partitions, one.replication_factor, one.config)
            nodes = tuple(range(max(1, one.replication_factor)))
            self.add(one.topic, one.config, [part(number, node(0), nodes) for number in range(one.num_partitions)])
        return {one.topic: self._answer("create", lambda: None) for one in new}

    def list_offsets(self, places: Mapping[Any, Any], **_: object) -> dict[Any, Future[Any]]:
        assert places, "the client refuses to ask for nothing"
        return {place: self._answer("offsets", lambda: SimpleNamespace(offset=0)) for place in places}

    def add(self, name: str, settings: Mapping[str, str], partitions: list[Any]) -> None:
        self.topics[name], self.settings[name] = partitions, dict(settings)


def scripted_admin(monkeypatch: pytest.MonkeyPatch) -> ScriptedAdmin:
    """In place of each admin client."""
    scripted = ScriptedAdmin()
    monkeypatch.setattr(admin_module, "AdminHandle", lambda *_: SimpleNamespace(client=scripted))
    monkeypatch.setattr(topics, "TopicCollection", lambda names: SimpleNamespace(topic_names=names))
    return scripted
