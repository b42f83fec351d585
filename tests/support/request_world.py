"""Logs of the requests topic in memory: with coordinators of several brokers, or as commands read them."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from statechannel.broker.requests import RequestCoordinator
from statechannel.engine.commands import Command, Outcome
from statechannel.engine.inputs import PartitionOpened
from statechannel.operations.request_record import Progress, Reply, Request, decode, encode
from statechannel.operations.table import ExtensionAsk
from statechannel.protocol.log import RecordRead, Topic
from statechannel.settings.groups_engine import RequestSettings
from statechannel.stories.requests import RequestStory, stories_of

BUNDLE = "a/b/0x00000000_0xffffffff"


@dataclass
class Around:
    """One broker's picture of the cluster."""

    broker: str
    alive: dict[str, str]
    incarnation: str = "i1"
    leading: bool = False
    deputizing: bool = False
    acting: bool = True
    owners: dict[str, str] = field(default_factory=dict)

    def owner_of(self, name: str) -> str | None:
        return self.owners.get(name)

    def is_alive(self, broker: str, incarnation: str | None = None) -> bool:
        return broker in self.alive and incarnation in (None, self.alive[broker])


class World:
    """A log in memory, read by every desk."""

    def __init__(self, *brokers: str, leading: str | None = None) -> None:
        self.log: list[RecordRead] = []
        self.alive = dict.fromkeys(brokers, "i1")
        self.around = {broker: Around(broker, self.alive, leading=broker == leading) for broker in brokers}
        self.given: dict[str, list[tuple[Command | ExtensionAsk, Callable[[Outcome], None]]]] = {
            broker: [] for broker in brokers
        }
        self.refusal: Callable[[Request], Outcome | None] = lambda _: None
        self.desks = {broker: self.desk(broker) for broker in brokers}
        self.read = dict.fromkeys(brokers, 0)
        self.now_s = 0.0
        self.time_ms = 1_000_000

    def desk(self, broker: str, **settings: float) -> RequestCoordinator:
        def submit(command: Command | ExtensionAsk, tell: Callable[[Outcome], None]) -> None:
            self.given[broker].append((command, tell))

        desk = RequestCoordinator(
            self.around[broker],
            append=self.append,
            submit=submit,
            ask_extension=submit,
            refusal=lambda request: self.refusal(request),  # noqa: PLW0108 - a test sets it later
            settings=RequestSettings.model_construct(**settings),
        )
        desk.opened(PartitionOpened(Topic.REQUESTS, 0, 0, len(self.log)))
        return desk

    def append(self, identifier: str, value: bytes | None) -> None:
        self.log.append(RecordRead(Topic.REQUESTS, 0, len(self.log), self.time_ms, identifier.encode(), value))

    def ask(self, identifier: str, command: str, timeout_s: float = 30, **args: object) -> None:
        self.append(identifier, encode(Request(identifier, command, 0, args, "test"), timeout_s=timeout_s))

    def turn(self, *brokers: str) -> None:
        """Each broker reads what is new, then looks at what is due."""
        self.now_s += 0.1
        for broker in brokers or tuple(self.desks):
            desk = self.desks[broker]
            while self.read[broker] < len(self.log):
                desk.read(self.log[self.read[broker]])
                self.read[broker] += 1
            desk.review(self.now_s)

    def turns(self, count: int = 4) -> None:
        for _ in range(count):
            self.turn()

    def replies(self, identifier: str) -> list[Reply]:
        results = [decode(record.value, 0) for record in self.log]
        return [item for item in results if isinstance(item, Reply) and item.id == identifier]

    def executions(self) -> dict[str, list[Command | ExtensionAsk]]:
        return {broker: [command for command, _ in given] for broker, given in self.given.items() if given}

    def claims(self) -> list[str]:
        """Ids of the requests that were claimed, in the order of the log."""
        items = [decode(record.value, 0) for record in self.log]
        return [item.id for item in items if isinstance(item, Progress) and item.stage == "claimed"]


def logged(*items: Request | Progress | Reply, at_ms: int = 0, step_ms: int = 1) -> list[RecordRead]:
    """Records of the topic; requests have a minute."""
    return [
        RecordRead(Topic.REQUESTS, 0, number, at_ms + step_ms * number, item.id.encode(), encode(item, timeout_s=60.0))
        for number, item in enumerate(items)
    ]


def stories(*items: Request | Progress | Reply, at_ms: int = 0, step_ms: int = 1) -> Mapping[str, RequestStory]:
    """Stories of these, by id."""
    return stories_of(logged(*items, at_ms=at_ms, step_ms=step_ms))
