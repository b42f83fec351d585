"""Duties alone: the bench on which debts, heartbeats and the purge are tried, one part beside stubs of the others."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, NamedTuple

import orjson

from statechannel.engine.maintenance import Maintenance
from statechannel.engine.proposals import ProposalResult
from statechannel.protocol.bundle import partition_of
from statechannel.protocol.debts import Debt
from statechannel.protocol.keys import KeyState
from statechannel.protocol.view import View
from tests.support.stub_context import StubContext

LAG_S = 40.0
"""A tenth of it is 4 s, exactly."""
DELETED_S = 50.0
STEP_S = 0.25


class Partition:
    """A replica that is caught up, as far as duties look at it."""

    def __init__(self, partition: int, partitions: int) -> None:
        self.partition, self.partitions = partition, partitions
        self.view = View(partition, partitions)
        self.timestamp_ms = 1_000_000

    @property
    def applied(self) -> int:
        return self.view.applied

    def summary(self) -> None:
        """Not all keys were hashed yet."""


class Written:
    """Takes the place of `Proposals`: notes what is written; the test ends it."""

    def __init__(self, retry_interval_s: float) -> None:
        self._retry_interval_s = retry_interval_s
        self.asserts: list[str] = []
        self.done: dict[str, Callable[[ProposalResult], None]] = {}
        self.heartbeats: list[tuple[int, dict[str, Any]]] = []
        self.nulls: list[tuple[int, bytes]] = []
        self.full = False
        self.room = 10
        self.holding_back: set[int] = set()
        self.awaiting_proof: set[int] = set()
        self._ids = 0

    def new_id(self) -> str:
        self._ids += 1
        return f"id{self._ids}"

    def patience_s(self, retry_intervals: int = 4) -> float:
        return retry_intervals * self._retry_interval_s

    def restate(self, key: KeyState, done: Callable[[ProposalResult], None]) -> str | None:
        if self.full:
            return None
        self.asserts.append(key.name)
        self.done[key.name] = done
        return self.new_id()

    def control(self, partition: int, key: bytes, fields: dict[str, Any]) -> None:
        assert key == b"!heartbeat"
        self.heartbeats.append((partition, fields))

    def purge(self, partition: int, key: bytes) -> None:
        self.nulls.append((partition, key))

    def holds_back(self, partition: int) -> bool:
        return partition in self.holding_back

    def awaits_proof(self, partition: int) -> bool:
        return partition in self.awaiting_proof


class HeardMembers(NamedTuple):
    """Members that are heard."""

    alive: dict[str, Any]
    rank: Callable[[str], int]

    @property
    def counts(self) -> dict[str, int]:
        caught_up = sum(member.caught_up for member in self.alive.values())
        return {"alive": len(self.alive), "caught_up": caught_up}


class DutiesBench:
    """Duties of `a-1`, the leader, on partitions whose logs are written record by record."""

    def __init__(self, *, at_s: float = 100.0, partitions: int = 1, **config: Any) -> None:
        limits = {"compaction_lag_s": LAG_S, "purge_deleted_after_s": DELETED_S, "pending_max": 10}
        context = StubContext(partitions=partitions, **limits | config)
        context.now.mono_s = at_s
        self.context: Any = context
        self.context.acts_as_leader = self.context.leading = True
        self.context.ready_since_s = at_s
        self.context.replicas = [Partition(number, partitions) for number in range(partitions)]
        self.context.partition_of = lambda namespace: partition_of(namespace, partitions)
        self.context.wake_soon = lambda what, gap_s: self.woken.append((what, gap_s))
        self.members: dict[str, Any] = {"a": SimpleNamespace(caught_up=True)}
        self.rank = 0
        self.context.members = HeardMembers(self.members, lambda _: self.rank)
        self.context.announced = True
        self.probes: set[int] = set()
        self.echoed: list[tuple[int, str, float]] = []
        self.written = Written(self.context.config.retry_interval_s)
        self.woken: list[tuple[object, float]] = []
        stubs: Any = (
            SimpleNamespace(writes_format=1),
            self.written,
            SimpleNamespace(written=lambda *said: self.echoed.append(said)),
            SimpleNamespace(must_probe=self.probes.__contains__),
        )
        self.duties = Maintenance(self.context, *stubs)

    def follow(self, rank: int = 0) -> None:
        """Somebody else leads."""
        self.context.acts_as_leader = self.context.leading = False
        self.rank = rank

    def join(self) -> None:
        self.members["b"] = SimpleNamespace(caught_up=False)

    def read(self, name: str, value: bytes | None = b"junk") -> KeyState:
        """A record on a key is judged."""
        replica = self.context.replicas[self.context.partition_of(name.partition("/0x")[0])]
        judgement = replica.view.read(replica.applied + 1, name.encode(), value)
        assert judgement.key is not None
        self.duties.judged(replica, judgement.key)
        return judgement.key

    def write(self, name: str, **fields: Any) -> KeyState:
        """A proposal is accepted."""
        by = {"broker": "a", "incarnation": "a-1"}
        proposal = {"format": 1, "kind": "proposal", "covers": 1_000, "by": by, **fields}
        return self.read(name, orjson.dumps(proposal))

    def settle(self, key: KeyState) -> None:
        """The key's debt is paid."""
        del self.open(key)[key]

    def open(self, key: KeyState) -> dict[KeyState, Debt]:
        debts: dict[KeyState, Debt] = self.context.replicas[self.context.partition_of(key.namespace)].view.ledger.open
        return debts

    def later(self, seconds: float) -> None:
        self.context.now.mono_s += seconds

    def paid(self) -> list[str]:
        """What a tick restates."""
        self.written.asserts.clear()
        self.duties.tick()
        return list(self.written.asserts)

    def paid_at_once(self) -> list[str]:
        """What the end of a step restates."""
        self.written.asserts.clear()
        self.duties.pay_what_was_read()
        return list(self.written.asserts)

    def beats(self) -> list[int]:
        """`clean_to` of the heartbeats that a tick writes."""
        self.written.heartbeats.clear()
        self.duties.tick()
        return [fields["clean_to"] for _, fields in self.written.heartbeats]

    def facts_of(self, event: str) -> list[dict[str, Any]]:
        return [facts for name, facts in self.context.events if name == event]


def namespaces(partition: int, count: int, partitions: int = 2) -> list[str]:
    """Names whose keys lie in a partition."""
    names = (f"t/j{number}" for number in range(1_000))
    return [name for name in names if partition_of(name, partitions) == partition][:count]
