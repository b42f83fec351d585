"""Puts the figures of a contest into design/evidence/contest.md, and its pictures beside it.

python -m tests.bench.tuned --held-out --seeds 1 --out FOLDER
python -m tests.docs.contest FOLDER
"""

import re
import sys
from pathlib import Path

import orjson

from shedders.contest.comparison import ContestComparison
from shedders.contest.outcome import RunOutcome
from shedders.contest.plots import scenario_picture
from shedders.contest.tables import markdown, summary_grids

DESIGN = Path(__file__).parents[2] / "design" / "evidence"
PAGE = DESIGN / "contest.md"
PICTURES = {
    "scale-out": ("modular/avg+avg@upstream", "extensible/transfer+least-resource-usage@upstream"),
    "swap-trap": (
        "modular/range-threshold+least-resource-usage-modular@upstream",
        "modular/uniform+least-long-term-rate@upstream",
    ),
    "over-placement": (
        "modular/threshold+least-resource-usage-modular@upstream",
        "extensible/transfer+least-resource-usage@upstream",
    ),
}
"""Scenarios whose plots are on the page, and who is drawn beside ours; of the first seed."""
_BLOCK = re.compile(r"(<!-- contest -->\n).*?(<!-- end -->)", re.DOTALL)


def block(comparison: ContestComparison) -> str:
    """The tables of the page."""
    grids = summary_grids(comparison, missed_only=True)
    return f"\n{markdown(grids, level=3)}\nDigest of all figures: `{comparison.digest}`.\n\n"


def keep(folder: Path) -> None:
    """Write page and pictures."""
    comparison = ContestComparison.model_validate_json((folder / "comparison.json").read_bytes())
    text = _BLOCK.sub(lambda place: place[1] + block(comparison) + place[2], PAGE.read_text())
    pictures = {"churn": (folder / "churn.svg").read_bytes()}
    for name, others in PICTURES.items():
        outcomes = [_outcome(folder, name, one) for one in (comparison.against, *others)]
        pictures[name] = scenario_picture(outcomes, title=name).svg().encode()
    # All is there: nothing is written of a folder that lacks something.
    PAGE.write_text(text)
    for name, content in pictures.items():
        (DESIGN / "contest" / f"{name}.svg").write_bytes(content)


def _outcome(folder: Path, scenario: str, contender: str) -> RunOutcome:
    runs = (
        orjson.loads(path.read_bytes())["outcome"] for path in sorted((folder / "runs" / scenario / "1").glob("*.json"))
    )
    found = next((one for one in runs if one["contender"] == contender), None)
    if found is None:
        sys.exit(f"{folder} has no run of {contender} on {scenario} with seed 1: run the contest as the page says")
    return RunOutcome.model_validate(found)


if __name__ == "__main__":
    keep(Path(sys.argv[1]))
