"""Fields that this version does not know: kept, and handed on where a record is restated or answered (records.md).

A later version may write more fields in format 1. What an older one writes in between must not lose them: an assert stands
in the log for the record that it restates, and a reaction tells what became of the one that it answers.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import orjson

KNOWN = frozenset(
    {
        "action",
        "asserts",
        "base",
        "by",
        "children",
        "clean_to",
        "covers",
        "decision",
        "flow",
        "forced",
        "format",
        "from",
        "id",
        "kind",
        "lost",
        "operation",
        "reason",
        "server",
        "state",
        "to",
        "version",
        "written_at_ms",
    }
)
"""The fields of records.md; also `server`, which asserts of this version have."""
KEPT_MAX_BYTES = 1024
"""More than this of one record is not handed on: else a record near the limit of size could not be restated, and every key
in memory could be made to weigh as much."""


def unknown_in(raw: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """The fields of a record that this version does not know; None where there are none, or too much of them."""
    if KNOWN.issuperset(raw):
        return None
    fields = {name: value for name, value in raw.items() if name not in KNOWN}
    return fields if len(orjson.dumps(fields)) <= KEPT_MAX_BYTES else None
