"""Unknown fields of newer versions: kept, and passed on in asserts and reactions (records.md).

A later version may write more fields in format 1. Records of older versions must not lose them: an assert replaces
the record that it restates, and a reaction continues the one that it answers.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import orjson

KNOWN: Final = frozenset(
    {
        "action",
        "asserts",
        "base",
        "by",
        "children",
        "clean_to",
        "covers",
        "decision",
        "digest",
        "flow",
        "forced",
        "format",
        "from",
        "highest",
        "id",
        "keys",
        "kind",
        "lost",
        "operation",
        "partitions",
        "reason",
        "server",
        "state",
        "to",
        "version",
        "written_at_ms",
    }
)
"""The fields of records.md; also `server`, which asserts of this version have."""
KEPT_MAX_BYTES: Final = 1024
"""Maximum size of unknown fields that are passed on: otherwise a record near the size limit could not be restated, and each key
could need that much memory."""


def unknown_in(raw: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """The unknown fields of a record; None without any, or if they are too large."""
    if KNOWN.issuperset(raw):
        return None
    fields = {name: value for name, value in raw.items() if name not in KNOWN}
    return fields if len(orjson.dumps(fields)) <= KEPT_MAX_BYTES else None
