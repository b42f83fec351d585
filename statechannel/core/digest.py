"""The digest of accepted states: equal digests mean equal views (record format, "Digest")."""

from __future__ import annotations

from hashlib import sha256
from typing import TYPE_CHECKING

import orjson

if TYPE_CHECKING:
    from collections.abc import Iterable

    from statechannel.core.keys import KeyState
    from statechannel.core.view import View


def digest(views: Iterable[View]) -> str:
    """SHA-256 over one line per existing key of all the partitions, sorted by the key's bytes."""
    total = sha256()
    keys = [(key.key, key) for view in views for key in view.existing()]
    keys.sort(key=lambda pair: pair[0])
    for _, key in keys:
        total.update(line(key))
    return total.hexdigest()


def line(key: KeyState) -> bytes:
    """The line of one key: `[key, version, state, from, to, id]` and a line feed."""
    return orjson.dumps([key.name, key.version, key.state, key.from_, key.to, key.accepted_id]) + b"\n"
