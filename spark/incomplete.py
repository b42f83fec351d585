"""What a pointer says of records that were cleaned away before the archive came to them. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict
from typing import Any

from spark.plan import Missing, Reading, Step, Why


def incomplete(before: Iterable[Mapping[str, Any]], steps: Mapping[int, Step]) -> list[dict[str, Any]]:
    """The entries behind a batch.

    Args:
        before: Those of the pointer before it.
        steps: What was done with each partition of the batch.
    """
    entries = [dict(one) for one in before]
    for number, step in sorted(steps.items()):
        if step.missing is not None:
            _add(entries, step.missing)
        if step.why in (Why.GAP, Why.AGAIN) and step.place.reading is Reading.STRICT:
            for one in _open(entries, number):
                one["strict_from"] = step.place.strict_from
    return entries


def _open(entries: Iterable[dict[str, Any]], partition: int) -> list[dict[str, Any]]:
    return [one for one in entries if one["partition"] == partition and one["strict_from"] is None]


def _add(entries: list[dict[str, Any]], missing: Missing) -> None:
    """While nobody has vouched the stretch grows: a backlog has a gap in each batch."""
    growing = _open(entries, missing.partition)
    if growing:
        growing[-1] |= {"to_offset": missing.to_offset, "to_ms": missing.to_ms}
    else:
        entries.append(asdict(missing))
