"""A log that a real engine has started cold on: what it held leniently is not what a reader holds that was there all the time."""

from typing import Any

import orjson

from statechannel.protocol.log import RecordRead, Topic
from tests.support.lone_engine import BUNDLE, CREATED, NAMESPACE, LoneEngine

BASE = "ns1/0x00000000_0xffffffff"


def proposal(name: str, version: int, base: str, state: str, **fields: Any) -> bytes:
    head = {"format": 1, "kind": "proposal", "id": name, "covers": 2, "by": {"broker": "z", "incarnation": "z-1"}}
    return orjson.dumps(head | {"version": version, "base": base, "state": state, "from": None, "to": None} | fields)


def cold_start_log(*, differs: bool) -> tuple[list[RecordRead], LoneEngine]:
    """All records from the first on, and the engine that has started cold on what the cleaner had left of them.

    Args:
        differs: Whether a rejected record was open when everybody was lost, which a lenient reader takes.
    """
    channel: list[tuple[bytes, bytes | None, int]] = [
        (b"!heartbeat", b"", 1),
        (NAMESPACE, CREATED, 1),
        (BUNDLE, proposal("p1", 2, BASE, "Assigning", to="z"), 2),
        (BUNDLE, proposal("p2", 3, "p1", "Assigned", to="z"), 3),
    ]
    if differs:
        channel.append((BUNDLE, proposal("p9", 9, "p8", "Assigning", to="y"), 4))
        channel.append((b"t/never", b"junk", 4))
    alone = LoneEngine(channel, first=1)
    alone.run(60)
    if not alone.engine.caught_up or len(alone.written(b"!cold-start")) != 1:
        raise RuntimeError("the engine has not started cold")
    return records_of(alone), alone


def records_of(alone: LoneEngine) -> list[RecordRead]:
    return [
        RecordRead(Topic.CHANNEL, 0, offset, ms, key, value) for offset, (key, value, ms) in enumerate(alone.channel)
    ]
