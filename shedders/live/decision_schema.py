"""The JSON Schema (draft 2020-12) of the records of `NAME-decisions`: `python -m shedders.live.decision_schema FILE`."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from shedders.live.decision_record import RECORDS
from shedders.schemas import DRAFT


def schema_text() -> str:
    """What design/decision.schema.json holds."""
    schema = RECORDS.json_schema(mode="validation")
    schema["title"] = "A record of the topic of decisions"
    return json.dumps({"$schema": DRAFT, **schema}, indent=2, sort_keys=True) + "\n"


def main(arguments: list[str]) -> int:
    """Write it to the file named, else to standard output."""
    if arguments:
        Path(arguments[0]).write_text(schema_text(), encoding="utf-8")
    else:
        sys.stdout.write(schema_text())
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
