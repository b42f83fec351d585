"""State of one key in a reader, and the ring of a namespace."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

from sortedcontainers import SortedDict

from statechannel.protocol.bundle import bundle_key, children_of, range_name
from statechannel.protocol.states import State

if TYPE_CHECKING:
    from array import array
    from collections.abc import Mapping

_ASSIGNING: Final = State.ASSIGNING
_ASSIGNED: Final = State.ASSIGNED
_RELEASING: Final = State.RELEASING
_SPLITTING: Final = State.SPLITTING


class Writer(NamedTuple):
    broker: str
    incarnation: str


class KeyState:
    """The accepted state of one key, and the basis of its debt.

    Args:
        key: As bytes of the record's key, if they are at hand: shared with the view's table, which is keyed by them.

    Attributes:
        lower, upper: Hash range of a bundle; -1 for a namespace.
        state: None while the key does not exist.
        bound: `bound_for` as it was counted in the view's load.
        record_id: Id of the accepted record; of the parent's record if the state is derived.
        derived: The state was derived from a parent's record; its id is `<record_id>/<range>`.
        writer: Process that wrote the accepted record (the parent's, if derived).
        server: Process whose record made it the owner, also while Releasing or Splitting; of a split bundle the owner of its
            children. None if unknown.
        was: State before the accepted record, if this reader saw it.
        forced: The accepted record was a repair, or this is unknown (a join by an assert).
        bounds: Bounds of the children (Active, Deleted bundle).
        more: Fields of the accepted record that this version does not know (`unknown_fields`); None for most.
        intent: `children` of a Splitting record, for information: the planned split.
        offset: Offset of the accepted record; -1 if unknown (lenient join of an assert keeps the assert's).
        settled: Offset of the last record that settled the key; -1 if none did.
        purged: The newest record of the key is its tombstone.
        ring: Ring that the key belongs to (a bundle) or spans (a namespace) while it exists.
    """

    __slots__ = (
        "bound",
        "bounds",
        "derived",
        "flow",
        "forced",
        "from_",
        "intent",
        "key",
        "lower",
        "more",
        "namespace",
        "offset",
        "operation",
        "purged",
        "record_id",
        "ring",
        "server",
        "settled",
        "state",
        "to",
        "upper",
        "version",
        "was",
        "writer",
    )

    def __init__(self, namespace: str, lower: int, upper: int, key: bytes | None = None) -> None:
        self.key = (namespace if lower < 0 else bundle_key(namespace, lower, upper)).encode() if key is None else key
        self.namespace = namespace
        self.lower = lower
        self.upper = upper
        self.settled = -1
        self.bound: str | None = None
        self.purged = False
        self.forget()

    def forget(self) -> None:
        """Mark the key as nonexistent; its settling offset is kept."""
        self.state: State | None = None
        self.bound = None
        self.version = 0
        self.from_: str | None = None
        self.to: str | None = None
        self.record_id: str | None = None
        self.derived = False
        self.writer: Writer | None = None
        self.server: Writer | None = None
        self.was: State | None = None
        self.forced = False
        self.operation: str | None = None
        self.flow: str | None = None
        self.bounds: array[int] | None = None
        self.intent: tuple[str, ...] | None = None
        self.more: Mapping[str, Any] | None = None
        self.offset = -1
        self.ring: Ring | None = None

    @property
    def is_namespace(self) -> bool:
        return self.lower < 0

    @property
    def name(self) -> str:
        return self.key.decode()

    @property
    def accepted_id(self) -> str | None:
        """Id that the next proposal must name as its base."""
        return f"{self.record_id}/{range_name(self.lower, self.upper)}" if self.derived else self.record_id

    @property
    def owner(self) -> str | None:
        """Broker that serves the bundle: Assigned `to`, Releasing and Splitting `from`."""
        if self.state is _ASSIGNED:
            return self.to
        if self.state is _RELEASING or self.state is _SPLITTING:
            return self.from_
        return None

    @property
    def generation(self) -> int | None:
        """Fencing token of the owner: the version of the Assigned record by which it serves."""
        if self.state is _ASSIGNED:
            return self.version
        if self.state is _RELEASING or self.state is _SPLITTING:
            return self.version - 1
        return None

    @property
    def bound_for(self) -> str | None:
        """Broker that the bundle counts for in placement: its owner, or the destination of its move."""
        if self.state is _ASSIGNED or self.state is _ASSIGNING:
            return self.to
        if self.state is _RELEASING:
            return self.to or self.from_
        return self.from_ if self.state is _SPLITTING else None

    @property
    def children(self) -> list[str] | None:
        return None if self.bounds is None else children_of(self.bounds)

    def __repr__(self) -> str:
        return f"<{self.name} v{self.version} {self.state} {self.from_}->{self.to} {self.accepted_id}>"


class Ring:
    """The tree of one namespace: its live leaves in ring order, and its Deleted parents.

    Attributes:
        parents: Deleted parents, kept while the namespace exists.
        owned: Number of live bundles that are not Unassigned.
        highest: Highest version of the namespace and its bundles. Children of a split are above their parent, so the
            maximum never shrinks while the namespace exists.
    """

    __slots__ = ("highest", "live", "namespace", "owned", "parents")

    def __init__(self, namespace: str, version: int) -> None:
        self.namespace = namespace
        self.live: SortedDict[int, KeyState] = SortedDict()
        self.parents: list[KeyState] = []
        self.owned = 0
        self.highest = version

    def at(self, place: int) -> KeyState:
        """The live bundle of a hash: O(log n)."""
        index: int = self.live.bisect_right(place) - 1
        key: KeyState = self.live.peekitem(index)[1]
        return key
