"""Channel of a simulated cluster: the real core folds one record after the other, and must accept each.

One partition, one log, no delay: the time until a record is read is part of the costs of a trace. Agreement of concurrent
writers is not simulated here, but by `statechannel.sim`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from statechannel.engine.cluster_view import BundleSeen, PartitionBundles, part_of
from statechannel.errors import StateChannelError
from statechannel.protocol.bundle import bounds_at, children_of, namespace_bounds
from statechannel.protocol.codec import encode
from statechannel.protocol.keys import KeyState
from statechannel.protocol.states import State
from statechannel.protocol.verdict import Verdict
from statechannel.protocol.view import View
from statechannel.sim.drafts import Scribe

if TYPE_CHECKING:
    from statechannel.protocol.view import Judgement

_WRITER = "simulation"


class RefusedError(StateChannelError):
    """The core refuses a record of the simulator: a bug of the simulator, never of a strategy."""


class BundleArrival(NamedTuple):
    """An accepted record that gave a bundle to a broker, as `shedders.balancer.cluster_inputs` reads it."""

    bundle: str
    state: State
    from_: str | None
    to: str | None
    offset: int
    partition: int = 0


class ContestChannel:
    """See the module.

    Attributes:
        view: The fold.
        offset: Of the last record.
    """

    def __init__(self) -> None:
        self.view = View(0, 1)
        self.offset = -1
        self._scribe = Scribe(_WRITER, _WRITER)
        self._part: PartitionBundles | None = None
        self._seen: list[BundleSeen] = []

    def create(self, namespace: str, bounds: Sequence[int]) -> list[str]:
        """Create a namespace; its bundles in the order of the ring.

        Args:
            bounds: Ascending from 0 to the end of the ring.
        """
        key = KeyState(namespace, -1, -1)
        fields = self._scribe.proposal(key, self.offset, {"state": State.ACTIVE, "children": children_of(bounds)})
        self._append(key.key, fields)
        return [f"{namespace}/{range_}" for range_ in children_of(bounds)]

    def assign(self, bundle: str, broker: str) -> BundleArrival:
        """Assign a bundle without an owner to a broker."""
        self._write(bundle, {"state": State.ASSIGNING, "from": None, "to": broker})
        self._write(bundle, {"state": State.ASSIGNED, "from": None, "to": broker})
        return BundleArrival(bundle, State.ASSIGNED, None, broker, self.offset)

    def transfer(self, bundle: str, to: str) -> BundleArrival:
        """A bundle goes from its owner to another broker."""
        source = self._key(bundle).owner
        self._write(bundle, {"state": State.RELEASING, "from": source, "to": to})
        self._write(bundle, {"state": State.ASSIGNING, "from": source, "to": to})
        self._write(bundle, {"state": State.ASSIGNED, "from": source, "to": to})
        return BundleArrival(bundle, State.ASSIGNED, source, to, self.offset)

    def unload(self, bundle: str) -> None:
        """Unload a bundle, which has no owner then."""
        source = self._key(bundle).owner
        self._write(bundle, {"state": State.RELEASING, "from": source, "to": None})
        self._write(bundle, {"state": State.UNASSIGNED, "from": source, "to": None})

    def lose(self, bundle: str) -> None:
        """Its owner is gone: the repair takes the bundle from it."""
        self._write(bundle, {"state": State.UNASSIGNED, "from": self._key(bundle).owner, "to": None, "forced": True})

    def split(self, bundle: str, positions: Sequence[int]) -> list[str]:
        """A bundle is cut; its children, in the order of the ring, stay with its owner."""
        key = self._key(bundle)
        owner, children = key.owner, children_of(bounds_at(key.lower, key.upper, sorted(positions)))
        self._write(bundle, {"state": State.SPLITTING, "from": owner, "to": None})
        self._write(bundle, {"state": State.DELETED, "from": owner, "to": None, "children": children})
        return [f"{key.namespace}/{range_}" for range_ in children]

    def seen(self) -> Sequence[BundleSeen]:
        """Live bundles, as a member's picture has them; the same list as long as nothing has changed."""
        before = self._part
        self._part = part_of(0, self.view, before)
        if self._part is not before:
            self._seen = list(self._part.seen.values())
        return self._seen

    def load(self) -> Mapping[str, int]:
        """Bundles by broker."""
        return self.view.load

    def _key(self, bundle: str) -> KeyState:
        key = self.view.get(bundle)
        if key is None:
            raise RefusedError(f"bundle {bundle} not found", hint="This is a bug in the simulator.")
        return key

    def _write(self, bundle: str, fields: dict[str, object]) -> None:
        key = self._key(bundle)
        self._append(key.key, self._scribe.proposal(key, self.offset, fields))

    def _append(self, key: bytes, fields: dict[str, object]) -> None:
        self.offset += 1
        judgement: Judgement = self.view.read(self.offset, key, encode(fields))
        if judgement.verdict is not Verdict.ACCEPTED:
            raise RefusedError(
                f"record {self.offset} of {key.decode()} is {judgement.verdict}", hint="This is a bug in the simulator."
            )


def bounds_of(bundles: int, bounds: Sequence[int]) -> Sequence[int]:
    """Bounds of a namespace: those given, else equal parts."""
    return bounds or namespace_bounds(bundles)
