"""What is kept of mutation runs: mutants that change nothing, with the reason, and the counts that the documentation shows."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

EQUIVALENT = Path(__file__).with_name("equivalent.json")
FIGURES = Path(__file__).parents[2] / "design" / "evidence" / "mutation-figures.json"


def reasons(path: Path = EQUIVALENT) -> dict[str, str]:
    """Why a mutant is none, by its name."""
    found: dict[str, str] = json.loads(path.read_text(encoding="utf-8"))
    return found


def keep(results: Sequence[Mapping[str, Any]], *, seed: int, sample: int, path: Path = FIGURES) -> None:
    """Put the counts of these modules in the place of their earlier ones."""
    held = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    for module in dict.fromkeys(one["module"] for one in results):
        mine = [one for one in results if one["module"] == module]
        counts = Counter(one["result"] for one in mine)
        held[module] = {
            "all": mine[0]["all"],
            "seed": seed,
            "sample": sample,
            "run": len(mine),
            "killed": counts["killed"] + counts["timed out"],
            "equivalent": counts["equivalent"],
            "survived": [one["mutant"] for one in mine if one["result"] in ("survived", "untested")],
        }
    path.write_text(json.dumps(dict(sorted(held.items())), indent=1) + "\n", encoding="utf-8")


def table(path: Path = FIGURES) -> str:
    """The counts, for the documentation."""
    held = json.loads(path.read_text(encoding="utf-8"))
    lines = [
        "| module | mutants | run | equivalent | killed | of those that are not equivalent |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    sums = Counter[str]()
    for module, one in held.items():
        row = Counter({name: one[name] for name in ("all", "run", "equivalent", "killed")})
        sums += row
        lines.append(_line(f"`{module}`", row))
    return "\n".join([*lines, _line("together", sums)])


def _line(name: str, row: Counter[str]) -> str:
    meant = row["run"] - row["equivalent"]
    share = f"{row['killed'] / meant:.0%}" if meant else "-"
    return f"| {name} | {row['all']} | {row['run']} | {row['equivalent']} | {row['killed']} | {share} |"


def equivalent_table() -> str:
    """The mutants that change nothing, with the reasons."""
    return _list(reasons().items())


def survivors(path: Path = FIGURES) -> str:
    """Those that no test noticed."""
    held = json.loads(path.read_text(encoding="utf-8"))
    return "\n".join(f"- {_code(name)}" for one in held.values() for name in one["survived"]) or "none"


def _list(rows: Iterable[tuple[str, str]]) -> str:
    return "\n".join(f"- {_code(name)}: {why}" for name, why in rows) or "none"


def _code(name: str) -> str:
    return f"``{name}``"
