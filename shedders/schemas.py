"""Makes the JSON Schemas of snapshots and plans (draft 2020-12) from the models: `python -m shedders.schemas`."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from shedders.plan_document import PlanDocument
from shedders.snapshot import Snapshot

DRAFT = "https://json-schema.org/draft/2020-12/schema"
FOLDER = Path(__file__).parent


def schemas() -> dict[str, str]:
    """Text of each schema file, by its name."""
    plan: dict[str, Any] = TypeAdapter(PlanDocument).json_schema(mode="serialization")
    plan["title"] = "Plan"
    return {
        "snapshot.schema.json": _text(Snapshot.model_json_schema()),
        "plan.schema.json": _text(plan),
    }


def _text(schema: dict[str, Any]) -> str:
    return json.dumps({"$schema": DRAFT, **schema}, indent=2, sort_keys=True) + "\n"


def main() -> int:
    """Write the files beside the models."""
    for name, text in schemas().items():
        (FOLDER / name).write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
