"""Figures of plans that the documentation shows: design/evidence/partitions-figures.json, by what made them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

KEPT = Path(__file__).parents[2] / "design" / "evidence" / "partitions-figures.json"


def kept(path: Path = KEPT) -> dict[str, Any]:
    figures: dict[str, Any] = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    return figures


def keep(name: str, figures: Any, path: Path = KEPT) -> None:
    """Put these in the place of those that were kept under the name."""
    path.write_text(json.dumps(kept(path) | {name: figures}, indent=1, sort_keys=True) + "\n", encoding="utf-8")
