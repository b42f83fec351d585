"""JSON Schemas (draft 2020-12) made from the models: `python -m shedders.schemas`.

Those of snapshots and plans lie in this package; that of decision records is a page of design/, since only readers need it.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from shedders.decisions.record import RECORDS
from shedders.snapshots.model import Snapshot
from shedders.snapshots.plan_document import PlanDocument

DRAFT = "https://json-schema.org/draft/2020-12/schema"
FOLDER = Path(__file__).parent
DECISIONS = FOLDER.parent / "design" / "reference" / "decision.schema.json"


def schemas() -> dict[str, str]:
    """Text of each schema in this package, by the name of its file."""
    plan: dict[str, Any] = TypeAdapter(PlanDocument).json_schema(mode="serialization")
    plan["title"] = "Plan"
    return {"snapshot.schema.json": _text(Snapshot.model_json_schema()), "plan.schema.json": _text(plan)}


def decision_schema() -> str:
    """Text of design/reference/decision.schema.json: a record of `NAME-decisions`."""
    schema = RECORDS.json_schema(mode="validation")
    schema["title"] = "A record of the topic of decisions"
    return _text(schema)


def _text(schema: dict[str, Any]) -> str:
    return json.dumps({"$schema": DRAFT, **schema}, indent=2, sort_keys=True) + "\n"


def main() -> int:
    """Write the files."""
    for name, text in schemas().items():
        (FOLDER / name).write_text(text, encoding="utf-8")
    DECISIONS.write_text(decision_schema(), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
