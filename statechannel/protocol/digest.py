"""Digest of accepted states: equal digests mean equal views (records.md section 8)."""

from __future__ import annotations

from hashlib import sha256
from typing import TYPE_CHECKING

import orjson

if TYPE_CHECKING:
    from collections.abc import Iterable

    from statechannel.protocol.keys import KeyState
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
    """The line of a key with the given fields."""
    return orjson.dumps([name, version, state, from_, to, accepted_id]) + b"\n"
