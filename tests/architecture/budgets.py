"""Lines and files of each folder of the product, and of the tests, against `budgets.json`, which may only shrink.

`python -m tests.architecture.budgets` lowers the budgets to what is there. Where a folder needs more, another one pays: its
budget is lowered by hand in the same commit. The budget of the whole `product` never grows.
"""

import json
import sys
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

from tests.architecture.house_rules import PACKAGES, ROOT

STORED = Path(__file__).with_name("budgets.json")
STEP_LINES = 100
"""Budgets are multiples of it, so that a small repair needs no new one."""
SPARE_LINES = 200
"""Lines that a folder may be below its budget before the budget is lowered."""

Budgets = Mapping[str, Mapping[str, int]]


def present(root: Path = ROOT) -> dict[str, dict[str, int]]:
    """Lines and files of each folder, and `product` and `tests` in all."""
    lines, files = Counter[str](), Counter[str]()
    for package in (*PACKAGES, "tests"):
        for file in sorted((root / package).rglob("*.py")):
            parts = file.relative_to(root).parts
            folder = "/".join(parts[:2]) if len(parts) > 2 and package != "tests" else package
            names = {folder} if package == "tests" else {folder, "product"}
            count = len(file.read_bytes().splitlines())
            for name in names:
                lines[name] += count
                files[name] += 1
    return {name: {"lines": lines[name], "files": files[name]} for name in sorted(lines)}


def exceeded(allowed: Budgets, now: Budgets) -> dict[str, str]:
    """Folders without a budget, or with more than it."""
    return {
        f"{folder} {unit}": f"{count} of {allowed.get(folder, {}).get(unit, 0)}"
        for folder, counts in now.items()
        for unit, count in counts.items()
        if count > allowed.get(folder, {}).get(unit, 0)
    }


def spare(allowed: Budgets, now: Budgets) -> dict[str, int]:
    """Folders that have become so much smaller that their budget is to be lowered."""
    left = {folder: counts["lines"] - now.get(folder, {}).get("lines", 0) for folder, counts in allowed.items()}
    return {folder: count for folder, count in left.items() if count > SPARE_LINES or folder not in now}


def stored() -> Budgets:
    """The budgets."""
    return dict(json.loads(STORED.read_text(encoding="utf-8")))


def main() -> int:
    """Lower the budgets."""
    now = present()
    if over := exceeded(stored(), now):
        sys.stdout.write(f"not written, as these exceed their budgets: {json.dumps(over, indent=1)}\n")
        return 1
    for counts in now.values():
        counts["lines"] = -(-counts["lines"] // STEP_LINES) * STEP_LINES
    rows = (f" {json.dumps(folder)}: {json.dumps(counts)}" for folder, counts in now.items())
    STORED.write_text("{\n" + ",\n".join(rows) + "\n}\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
