"""Digest of accepted states: equal digests mean equal views (records.md section 8)."""

from __future__ import annotations

from hashlib import blake2b, sha256
from typing import TYPE_CHECKING, Final, NamedTuple

import orjson

from statechannel.protocol.codec import HEARTBEAT_KEY, IMPORT_KEY, MAX_INT, decode_heartbeat, decode_import

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from typing import Any

    from statechannel.protocol.keys import KeyState
    from statechannel.protocol.log import RecordRead
    from statechannel.protocol.view import View


def digest(views: Iterable[View]) -> str:
    """SHA-256 over one line per existing key of all the partitions, sorted by the key's bytes."""
    keys = [(key.key, key) for view in views for key in view.existing()]
    keys.sort(key=lambda pair: pair[0])
    return digest_of(line(key) for _, key in keys)


def digest_of(lines: Iterable[bytes]) -> str:
    """SHA-256 over lines that are sorted by their keys already."""
    total = sha256()
    for line in lines:
        total.update(line)
    return total.hexdigest()


def line(key: KeyState) -> bytes:
    """The line of one key: `[key, version, state, from, to, id]` and a line feed."""
    return line_of(key.name, key.version, key.state, key.from_, key.to, key.accepted_id)


def line_of(
    name: str, version: int, state: str | None, from_: str | None, to: str | None, accepted_id: str | None
) -> bytes:
    return orjson.dumps([name, version, state, from_, to, accepted_id]) + b"\n"


DIGEST_BYTES: Final = 8
PARTITIONS_MAX: Final = 100_000
VERSION_BOUND_MAX: Final = MAX_INT // 4
"""Junk and hostile records must not lift a bundle to where it has no next version."""


class ViewSummary(NamedTuple):
    """What the writer of a heartbeat held at its `covers`: fields that are not judged, so that readers can compare.

    Attributes:
        keys: Number of keys with an accepted state, in this partition.
        digest: Of their lines, see `ViewDigest`.
    """

    keys: int
    digest: str

    @classmethod
    def read(cls, raw: Mapping[str, Any]) -> ViewSummary | None:
        """The summary in a heartbeat; None where it has none, as those of older versions."""
        keys, digest = (raw.get(name) for name in cls._fields)
        if type(keys) is not int or type(digest) is not str:
            return None
        return cls(keys, digest) if 0 <= keys <= MAX_INT and len(digest) == 2 * DIGEST_BYTES else None


def version_bound_in(raw: Mapping[str, Any], name: str = "highest") -> int:
    """A bound of versions that a record names; 0 where it names none, or one that is none."""
    bound = raw.get(name)
    return bound if type(bound) is int and 0 <= bound <= VERSION_BOUND_MAX else 0


def partitions_in(raw: Mapping[str, Any]) -> int | None:
    """Number of partitions over which the writer of a heartbeat or an import's mark distributes keys; None: it names none."""
    partitions = raw.get("partitions")
    return partitions if type(partitions) is int and 1 <= partitions <= PARTITIONS_MAX else None


def first_count(records: Iterable[RecordRead]) -> int | None:
    """The number of partitions in the first of these records that names one; None if none does."""
    for record in records:
        raw: Any = None
        if record.key == HEARTBEAT_KEY:
            heartbeat = decode_heartbeat(record.value)
            raw = None if heartbeat is None else heartbeat.raw
        elif record.key == IMPORT_KEY:
            raw = decode_import(record.value)
        named = None if raw is None else partitions_in(raw)
        if named is not None:
            return named
    return None


class ComparedView(NamedTuple):
    """What another broker's heartbeat says of the accepted keys at an offset, and what this reader holds there.

    Attributes:
        equal_at: The newest offset at which both were equal; -1 if they never were.
    """

    broker: str
    offset: int
    theirs: ViewSummary
    own: ViewSummary
    equal_at: int

    @property
    def is_equal(self) -> bool:
        return self.equal_at == self.offset


class ViewDigest:
    """Digest of one partition that follows its view: the exclusive or of one hash for each line, in any order."""

    def __init__(self, view: View) -> None:
        self._view = view
        view.changed = self._todo = dict.fromkeys(view.keys.values())
        self._hashes: dict[KeyState, int] = {}
        self._sum = 0

    def is_of(self, view: View) -> bool:
        """Whether it follows this view, and not one that was replaced."""
        return self._view is view

    def advance(self, keys_max: int) -> ViewSummary | None:
        """Hash a portion of the keys that have changed, at first all; the summary if none is left."""
        hashes, todo = self._hashes, self._todo
        for _ in range(min(keys_max, len(todo))):
            key, _ = todo.popitem()
            self._sum ^= hashes.pop(key, 0)
            if key.state is not None:
                hashes[key] = hashed = int.from_bytes(blake2b(line(key), digest_size=DIGEST_BYTES).digest())
                self._sum ^= hashed
        return None if todo else ViewSummary(len(hashes), f"{self._sum:0{2 * DIGEST_BYTES}x}")
