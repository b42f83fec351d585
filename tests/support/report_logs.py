"""Logs for reports: legal moves by the accepted state, and what strangers write between them."""

import random
from pathlib import Path

import orjson

from statechannel.audit.transfer.export_file import write_export
from statechannel.audit.transfer.line import ExportHeader
from statechannel.protocol.bundle import children_of, even_bounds, namespace_bounds, parse_key
from statechannel.protocol.log import RecordRead, Topic
from statechannel.protocol.states import State
from statechannel.protocol.view import View

START_MS = 1_790_000_000_000
HOSTILE = "</script><img src=x onerror=\"document.title='broken in'\"><!--\u202e\u0007'\"&{{7*7}}"


class LogMaker:
    """Writes one partition, and judges it as it goes, so that honest records are accepted.

    Attributes:
        records: So far.
        now_ms: Log time of the next record.
    """

    def __init__(self) -> None:
        self.records: list[RecordRead] = []
        self.now_ms = START_MS
        self.view = View(0, 1)

    def put(self, key: str, value: dict | bytes | None) -> str:
        """Append anything; returns the verdict."""
        packed = orjson.dumps(value) if isinstance(value, dict) else value
        offset = len(self.records)
        self.records.append(RecordRead(Topic.CHANNEL, 0, offset, self.now_ms, key.encode(), packed))
        return self.view.read(offset, key.encode(), packed).verdict.value

    def proposal(self, key: str, state: str, by: str = "b1", **fields: object) -> dict:
        """A proposal that builds on the accepted state."""
        held = self.view.keys.get(key.encode())
        exists = held is not None and held.state is not None
        version = held.version + 1 if exists else 1
        if state == "Deleted" and exists and held.is_namespace:
            version = held.ring.highest + 1
        return {
            "format": 1,
            "kind": "proposal",
            "id": f"r{len(self.records)}",
            "covers": len(self.records) - 1,
            "by": {"broker": by, "incarnation": f"{by}-1"},
            "version": version,
            "base": held.accepted_id if exists else None,
            "state": state,
            "from": None,
            "to": None,
            **fields,
        }

    def move(self, key: str, state: str, by: str = "b1", after_ms: int = 5, **fields: object) -> None:
        """A proposal that has to be accepted."""
        self.now_ms += after_ms
        verdict = self.put(key, self.proposal(key, state, by, **fields))
        if verdict != "accepted":
            raise AssertionError(f"{state} of {key} was to be accepted: {verdict}")

    def namespace(self, name: str, bundles: int) -> list[str]:
        ranges = children_of(namespace_bounds(bundles))
        self.move(name, "Active", children=ranges, action="create", operation=f"create-{name}")
        return [f"{name}/{bounds}" for bounds in ranges]

    def assign(self, key: str, broker: str, **fields: object) -> None:
        self.move(key, "Assigning", to=broker, action="own", flow="assignment", **fields)
        self.move(key, "Assigned", broker, to=broker, action="return", flow="assignment")

    def transfer(self, key: str, broker: str, gap_ms: int = 12, **fields: object) -> None:
        owner = self.view.get(key).owner
        self.move(key, "Releasing", owner, **{"from": owner}, to=broker, action="transfer", flow="transfer", **fields)
        self.move(
            key, "Assigning", owner, gap_ms // 2, **{"from": owner}, to=broker, action="transfer", flow="transfer"
        )
        self.move(key, "Assigned", broker, gap_ms - gap_ms // 2, **{"from": owner}, to=broker, action="return")

    def unload(self, key: str, **fields: object) -> None:
        owner = self.view.get(key).owner
        self.move(key, "Releasing", owner, **{"from": owner}, action="unload", flow="unload", **fields)
        self.move(key, "Unassigned", owner, **{"from": owner}, action="unload", flow="unload")

    def split(self, key: str, parts: int = 2, took_ms: int = 40) -> list[str]:
        owner, where = self.view.get(key).owner, parse_key(key.encode())
        children = children_of(even_bounds(parts, where.lower, where.upper))
        self.move(
            key, "Splitting", owner, **{"from": owner}, action="split", flow="split", reason="10,250 messages a second"
        )
        self.move(key, "Deleted", owner, took_ms, **{"from": owner}, children=children, action="split", flow="split")
        return [f"{where.namespace}/{child}" for child in children]

    def lose(self, key: str, broker: str, heard_ago_ms: int, leader: str = "b1") -> None:
        """The owner is gone; the leader forces the bundle to another."""
        lost = self.view.get(key).owner
        heard = {"broker": lost, "incarnation": f"{lost}-1", "last_heard_ms": self.now_ms - heard_ago_ms}
        self.move(key, "Assigning", leader, to=broker, forced=True, lost=heard, action="repair", flow="repair")
        self.move(key, "Assigned", broker, to=broker, action="return", flow="repair")

    def beat(self, broker: str, process: int = 1, after_ms: int = 1_000) -> None:
        """A heartbeat of the broker that leads."""
        self.now_ms += after_ms
        by = {"broker": broker, "incarnation": f"{broker}-{process}"}
        offset = len(self.records)
        beat = {"format": 1, "kind": "heartbeat", "id": f"h{offset}", "covers": offset - 1, "clean_to": offset - 1}
        if self.put("!heartbeat", beat | {"by": by}) != "control":
            raise AssertionError("a heartbeat was to be a control record")

    def live(self) -> list[str]:
        return sorted(key.name for key in self.view.live())

    def export(self, path: Path, topic: str = "bundle-state") -> Path:
        header = ExportHeader(topic, {0: len(self.records)}, self.now_ms)
        write_export(path, header, self.records, now_ms=lambda: self.now_ms + 1_000)
        return path


def eventful(seed: int = 7, moves: int = 150) -> LogMaker:
    """Two namespaces, three brokers, an hour: transfers, unloads, splits, a lost broker, a re-created namespace, junk."""
    log, chance = LogMaker(), random.Random(seed)
    brokers = ["b1", "b2", "b3"]
    old = log.namespace("acme/old", 2)
    log.assign(old[0], "b3")
    log.unload(old[0], reason="namespace to be deleted")
    log.move("acme/old", "Deleted", after_ms=1_000, action="delete")
    for key in log.namespace("acme/orders", 8) + log.namespace("acme/bills", 4) + log.namespace("acme/old", 2):
        log.now_ms += 400
        log.assign(key, brokers[hash_free(key) % 3])
    for number in range(moves):
        log.now_ms += chance.randrange(2_000, 40_000)
        key = chance.choice([record for record in log.live() if log.view.get(record).owner])
        kind = chance.random()
        if kind < 0.6:
            others = [broker for broker in brokers if broker != log.view.get(key).owner]
            log.transfer(
                key, chance.choice(others), chance.randrange(4, 60), reason="Overloaded", operation=f"op-{number}"
            )
        elif kind < 0.7:
            log.unload(key, reason="asked by an operator")
            log.now_ms += chance.randrange(50, 5_000)
            log.assign(key, chance.choice(brokers))
        elif kind < 0.78:
            log.split(key)
        else:
            stale = log.proposal(key, "Releasing", chance.choice(brokers), to="b9") | {"version": 1, "from": "b2"}
            log.put(key, stale | {"reason": "I think that it is mine"})
    log.now_ms += 9_000
    for key in [record for record in log.live() if log.view.get(record).owner == "b2"]:
        log.lose(key, chance.choice(["b1", "b3"]), heard_ago_ms=8_000)
    owned = [record for record in log.live() if log.view.get(record).state is State.ASSIGNED]
    log.unload(owned[0], reason="its last one")
    log.now_ms += 20_000
    log.put("!heartbeat", b"{}")
    return log


def troubled() -> LogMaker:
    """Four bundles: b1 leads, b2 is lost and repaired, Kafka is away for 30 s, b1 comes back as a new process, b3 leads."""
    log = LogMaker()
    bundles = log.namespace("acme/orders", 4)
    for bundle, broker in zip(bundles, ("b1", "b2", "b2", "b3"), strict=True):
        log.assign(bundle, broker)
    for _ in range(10):
        log.beat("b1")
    for bundle in bundles[1:3]:
        log.lose(bundle, "b3", heard_ago_ms=6_000)
    log.beat("b1")
    log.beat("b1", 2, after_ms=30_000)
    log.transfer(bundles[0], "b3", gap_ms=2_500, reason="shutdown")
    for _ in range(5):
        log.beat("b3")
    return log


def hostile() -> LogMaker:
    """Everything that anybody may write holds markup, and looks like a template."""
    log = LogMaker()
    bundles = log.namespace("acme/orders", 2)
    log.assign(bundles[0], "b1", reason=HOSTILE, operation=HOSTILE)
    log.transfer(bundles[0], "b2", reason=HOSTILE, operation=HOSTILE)
    log.move(bundles[0], "Releasing", "b2", **{"from": "b2"}, action=HOSTILE, flow=HOSTILE, reason=HOSTILE)
    log.put(bundles[0], log.proposal(bundles[0], "Assigned", to="b1", reason=HOSTILE, operation=HOSTILE))
    log.put(HOSTILE, {"format": 1})
    log.put(f"acme/{HOSTILE}", b"junk")
    log.put(bundles[1], HOSTILE.encode())
    return log


def hash_free(text: str) -> int:
    """A number by the text that is the same in every process."""
    return sum(text.encode())


def log_of_two(later_ms: int, *, vouched: bool) -> LogMaker:
    """A bundle is assigned, and later, perhaps after a heartbeat, one of another namespace."""
    log = LogMaker()
    log.assign(log.namespace("t/n", 1)[0], "b1")
    log.now_ms += later_ms
    if vouched:
        log.beat("b1")
    log.assign(log.namespace("t/m", 1)[0], "b1")
    return log
