"""What counts in a compacted topic: the newest record of each key, and its newest null; within a bound of bytes. Pure."""

from __future__ import annotations

from loaddata.table_view import LoadRecord


class NewestOfEach:
    """Takes records in log order, and keeps those that a compacted log would have.

    Args:
        keys_max: So many keys; `held_bytes`: so much of their values. What finds no room is left out, and counted.

    Attributes:
        left_out: Records that found no room.
    """

    def __init__(self, keys_max: int, held_bytes: int) -> None:
        self._keys_max = keys_max
        self._room_bytes = held_bytes
        self._held: dict[bytes, tuple[LoadRecord | None, LoadRecord | None]] = {}
        self.left_out = 0

    def clear(self) -> None:
        """The topic is read from its beginning again."""
        for value, _ in self._held.values():
            self._room_bytes += _size_bytes(value)
        self._held.clear()
        self.left_out = 0

    def add(self, record: LoadRecord) -> None:
        """Take one in."""
        key = record.key or b""
        known = key in self._held
        value, null = self._held.get(key, (None, None))
        more_bytes = 0 if record.value is None else _size_bytes(record) - _size_bytes(value)
        if more_bytes > self._room_bytes or (not known and len(self._held) >= self._keys_max):
            self.left_out += 1
            return
        self._room_bytes -= more_bytes
        # A null counts only if it names the report before it, so both are needed.
        self._held[key] = (value, record) if record.value is None else (record, null)

    @property
    def records(self) -> list[LoadRecord]:
        """What is kept, in log order."""
        found = [one for pair in self._held.values() for one in pair if one is not None]
        return sorted(found, key=lambda one: one.offset)


def _size_bytes(record: LoadRecord | None) -> int:
    return 0 if record is None else len(record.value or b"") + len(record.key or b"")
