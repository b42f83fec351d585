"""A log of one partition and its view, written record by record; a record fits the accepted state if nothing else is said."""

from typing import Any

import orjson

from statechannel.protocol.keys import KeyState
from statechannel.protocol.verdict import Verdict
from statechannel.protocol.view import View


class ViewLog:
    """Namespace `t/n` with bundles of these ranges; with none it is not created.

    Attributes:
        writer: Broker that writes where none is named.
    """

    def __init__(self, *ranges: str, version: int = 1, writer: str = "b1") -> None:
        self.view = View(0, 1)
        self.writer = writer
        if ranges:
            self.create(version, children=ranges)

    def put(self, key: bytes | None, value: bytes | None) -> Verdict:
        return self.view.read(self.view.applied + 1, key, value).verdict

    def write(self, key: str, *, writer: str | None = None, **fields: Any) -> Verdict:
        """A proposal; `writer` is a broker or one of its processes."""
        writer = writer or self.writer
        by = {"broker": writer.partition("-")[0], "incarnation": writer if "-" in writer else f"{writer}-1"}
        head: dict[str, Any] = {"format": 1, "kind": "proposal", "covers": self.view.applied, "by": by}
        if "/0x" in key:
            head |= {"from": None, "to": None}
        return self.put(key.encode(), orjson.dumps(head | fields))

    def create(self, version: int = 1, base: str | None = None, *, id_: str = "ns", children: Any) -> None:
        fields = {"id": id_, "version": version, "base": base, "state": "Active", "children": list(children)}
        assert self.write("t/n", **fields) is Verdict.ACCEPTED

    def propose(self, key: str, state: str, from_: str | None = None, to: str | None = None, **more: Any) -> Verdict:
        """The next move of a bundle."""
        held = self.key(key)
        fields = {"id": f"m{self.view.applied}", "version": held.version + 1, "base": held.accepted_id, "state": state}
        return self.write(key, **fields | {"from": from_, "to": to} | more)

    def move(self, key: str, state: str, from_: str | None = None, to: str | None = None, **more: Any) -> KeyState:
        """The same, accepted."""
        verdict = self.propose(key, state, from_, to, **more)
        assert verdict is Verdict.ACCEPTED, verdict
        return self.key(key)

    def own(self, key: str, broker: str | None = None) -> KeyState:
        broker = broker or self.writer
        self.move(key, "Assigning", to=broker)
        return self.move(key, "Assigned", to=broker, writer=broker)

    def key(self, name: str) -> KeyState:
        return self.view.get(name)
