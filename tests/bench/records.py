"""A realistic log of the channel: assignments, transfers, unloads, lost races, asserts and heartbeats on many bundles."""

import random
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field

import orjson

from statechannel.protocol.bundle import bundle_key, children_of, namespace_bounds

HEARTBEAT_EVERY = 200
RACE_SHARE = 0.01
UNLOAD_SHARE = 0.05
IN_FLIGHT = 64
ASSERT_AFTER = 150
BROKERS = 20
_BASE32 = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"


@dataclass(slots=True)
class Bundle:
    """What the writers hold of one bundle: its accepted state."""

    key: bytes
    version: int
    base: str
    state: str = "Unassigned"
    source: str | None = None
    to: str | None = None
    steps: list[str] = field(default_factory=list)
    operation: str = ""
    flow: str = "assignment"


@dataclass(slots=True)
class Expected:
    """What a reader must have found in the end."""

    accepted: int = 0
    rejected: int = 0
    asserts: int = 0
    heartbeats: int = 0


class LogMaker:
    """Makes `records` records in the order and form in which brokers write them.

    Args:
        namespaces: Number of namespaces.
        bundles: Bundles of each.
        seed: The same seed makes the same log.
    """

    def __init__(self, records: int, *, namespaces: int = 10, bundles: int = 6_500, seed: int = 1) -> None:
        self._records = records
        self._random = random.Random(seed)
        self._shape = (namespaces, bundles)
        self._brokers = [f"broker-{number:02}.example:8080" for number in range(BROKERS)]
        self._incarnations = {broker: self._ulid() for broker in self._brokers}
        self._offset = 0
        self._at_ms = 1_700_000_000_000
        self._debts: deque[tuple[int, Bundle]] = deque()
        self.bundles: list[Bundle] = []
        self.expected = Expected()

    def _ulid(self) -> str:
        return "01K" + "".join(self._random.choices(_BASE32, k=23))

    def make(self) -> Iterator[tuple[bytes, bytes]]:
        """Keys and values, in log order."""
        for key, value in self._bodies():
            yield key, value
            self._offset += 1
            if self._offset == self._records:
                return

    def settle(self) -> Iterator[tuple[bytes, bytes]]:
        """What has to follow so that nothing is owed: asserts, then a clean heartbeat. May be taken again for another one."""
        while self._debts:
            _, bundle = self._debts.popleft()
            yield self._assert(bundle)
            self._offset += 1
        yield self._heartbeat()
        self._offset += 1

    def _bodies(self) -> Iterator[tuple[bytes, bytes]]:
        yield from self._namespaces()
        waiting = iter(self._random.sample(self.bundles, len(self.bundles)))
        running: list[Bundle] = []
        while True:
            while len(running) < IN_FLIGHT:
                running.append(self._begin(next(waiting, None)))
            index = self._random.randrange(len(running))
            bundle = running[index]
            yield self._step(bundle)
            if not bundle.steps:
                running[index] = running[-1]
                running.pop()
            if self._offset % HEARTBEAT_EVERY == 0:
                yield self._heartbeat()
            if self._random.random() < RACE_SHARE:
                yield self._lost_race(bundle)
            if self._debts and self._debts[0][0] < self._offset - ASSERT_AFTER:
                yield self._assert(self._debts.popleft()[1])

    def _namespaces(self) -> Iterator[tuple[bytes, bytes]]:
        count, size = self._shape
        bounds = namespace_bounds(size)
        for number in range(count):
            name = f"tenant/namespace-{number}"
            record_id = self._ulid()
            yield (
                name.encode(),
                self._value(
                    "proposal",
                    record_id,
                    version=1,
                    base=None,
                    state="Active",
                    action="create",
                    children=children_of(bounds),
                ),
            )
            self.expected.accepted += 1
            for index in range(size):
                key = bundle_key(name, bounds[index], bounds[index + 1])
                base = f"{record_id}/{key.rpartition('/')[2]}"
                self.bundles.append(Bundle(key.encode(), 1, base))

    def _begin(self, bundle: Bundle | None) -> Bundle:
        while bundle is None or bundle.steps:
            bundle = self._random.choice(self.bundles)
        bundle.operation = self._ulid()
        if bundle.state == "Unassigned":
            bundle.steps, bundle.flow = ["Assigning", "Assigned"], "assignment"
        elif self._random.random() < UNLOAD_SHARE:
            bundle.steps, bundle.flow = ["Releasing", "Unassigned"], "unload"
        else:
            bundle.steps, bundle.flow = ["Releasing", "Assigning", "Assigned"], "transfer"
        return bundle

    def _step(self, bundle: Bundle) -> tuple[bytes, bytes]:
        before, state = bundle.state, bundle.steps.pop(0)
        writer = bundle.to or bundle.source
        if state == "Releasing":
            others = [broker for broker in self._brokers if broker != bundle.to]
            bundle.source = bundle.to
            bundle.to = self._random.choice(others) if bundle.flow == "transfer" else None
            action = bundle.flow
        elif state == "Assigning":
            writer = bundle.source or self._random.choice(self._brokers)
            action = "transfer" if before == "Releasing" else "own"
            if before == "Unassigned":
                bundle.source, bundle.to = None, self._random.choice(self._brokers)
        else:
            action = "return" if state == "Assigned" else "unload"
        record_id = self._ulid()
        value = self._value(
            "proposal",
            record_id,
            writer,
            version=bundle.version + 1,
            base=bundle.base,
            state=state,
            action=action,
            **{"from": bundle.source, "to": bundle.to},
            flow=bundle.flow,
            operation=bundle.operation,
        )
        bundle.version, bundle.base, bundle.state = bundle.version + 1, record_id, state
        self.expected.accepted += 1
        return bundle.key, value

    def _lost_race(self, bundle: Bundle) -> tuple[bytes, bytes]:
        """A second proposal for the version that was just taken."""
        self._debts.append((self._offset, bundle))
        self.expected.rejected += 1
        value = self._value(
            "proposal",
            self._ulid(),
            version=bundle.version,
            base=bundle.base,
            state="Releasing",
            action="unload",
            **{"from": bundle.to, "to": None},
            flow="unload",
            operation=self._ulid(),
        )
        return bundle.key, value

    def _assert(self, bundle: Bundle) -> tuple[bytes, bytes]:
        self.expected.asserts += 1
        value = self._value(
            "assert",
            self._ulid(),
            self._brokers[0],
            version=bundle.version,
            asserts=bundle.base,
            state=bundle.state,
            **{"from": bundle.source, "to": bundle.to},
        )
        return bundle.key, value

    def _heartbeat(self) -> tuple[bytes, bytes]:
        self.expected.heartbeats += 1
        clean_to = -1 if self._debts else self._offset - 1
        return b"!heartbeat", self._value("heartbeat", self._ulid(), self._brokers[0], clean_to=clean_to)

    def _value(self, kind: str, record_id: str, broker: str | None = None, /, **fields: object) -> bytes:
        broker = broker or self._random.choice(self._brokers)
        self._at_ms += 5
        return orjson.dumps(
            {
                "format": 1,
                "kind": kind,
                "id": record_id,
                "covers": self._offset - 1,
                "by": {"broker": broker, "incarnation": self._incarnations[broker]},
                **fields,
                "written_at_ms": self._at_ms,
            }
        )
