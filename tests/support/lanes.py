"""Which lanes a test belongs to, and whether all ran: `python -m tests.support.lanes FOLDER` sums up what runs noted there.

A mark on a test names its lanes: `@pytest.mark.lane("fast")`. Without one they follow from what it uses, else from its place.
"""

import json
import sys
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from hypothesis import settings

FAST, LIVE, EVIDENCE = LANES = ("fast", "live", "evidence")
LIVE_FOLDERS = tuple(f"tests/{folder}/" for folder in ("cli", "docs", "faults", "kafka", "spark"))
"""Where tests may use something real."""
REAL = {"kafka", "own_kafka", "lone_kafka", "browser", "session"}
"""Fixtures of those folders that start something."""
PLACES: dict[str, tuple[str, ...]] = {
    "tests/behaviour/": (EVIDENCE,),
    "tests/corpus/": (EVIDENCE,),
    "tests/explorer/": (EVIDENCE,),
    "tests/interleavings/": (EVIDENCE,),
    "tests/model/": (EVIDENCE,),
    "tests/property/": (FAST, EVIDENCE),
    "tests/simulation/": (EVIDENCE,),
    "tests/unit/core/test_accelerator.py": (EVIDENCE,),
    # What takes more than some seconds of a processor, or starts process after process.
    "tests/cli/test_bad_inputs.py": (LIVE,),
    "tests/cli/test_command_group.py": (LIVE,),
    "tests/cli/test_debug_bundle.py": (LIVE,),
    "tests/cli/test_no_kafka.py": (LIVE,),
    "tests/cli/test_secrets.py": (LIVE,),
    "tests/docs/test_contest.py": (LIVE,),
    "tests/property/test_partition_plans.py": (EVIDENCE,),
    "tests/unit/core/test_cost.py": (EVIDENCE,),
    "tests/unit/core/test_judged_logs.py": (EVIDENCE,),
    "tests/unit/kafka/test_advertised.py": (EVIDENCE,),
    "tests/unit/partitions/test_uneven_racks.py": (EVIDENCE,),
    "tests/unit/partitions/test_worsened_goals.py": (EVIDENCE,),
    "tests/unit/runtime/test_corpse.py": (EVIDENCE,),
    "tests/unit/shedders/test_conformance.py": (EVIDENCE,),
    "tests/unit/simulate/test_runner.py": (EVIDENCE,),
}
"""Lanes by how the names of files begin, of tests without fixtures of REAL; the longest beginning counts, else `fast`."""
FOLDERS = {LIVE: LIVE_FOLDERS, EVIDENCE: tuple(place for place, lanes in PLACES.items() if EVIDENCE in lanes)}
"""Where tests of a lane are; what a run of that lane alone has to read."""
SHORTENED = 4
"""A property test of two lanes tries so many times fewer examples in the lane `fast`."""
SHOWN_MAX = 50
"""Of what is missing."""


def is_without(folder: str, lanes: Sequence[str]) -> bool:
    """Whether a folder has no test of the only lane that is asked for."""
    places = FOLDERS.get(lanes[0], ("",)) if len(lanes) == 1 else ("",)
    return not any(place.startswith(folder) or folder.startswith(place) for place in places)


def is_real(item: Any) -> bool:
    """Whether a test of pytest starts Kafka, Spark or a browser, or asks for one that runs."""
    if item.get_closest_marker("kafka") is not None or item.nodeid.startswith("tests/spark/"):
        return True
    return item.nodeid.startswith(LIVE_FOLDERS) and not REAL.isdisjoint(item.fixturenames)


def lanes_of(item: Any) -> tuple[str, ...]:
    """Lanes of a test of pytest, one at least."""
    mark = item.get_closest_marker("lane")
    if mark is not None:
        unknown = [lane for lane in mark.args if lane not in LANES]
        if unknown or not mark.args:
            raise ValueError(f"{item.nodeid}: a test is in one or more of {LANES}, not in {mark.args}")
        return tuple(mark.args)
    if is_real(item):
        return (LIVE,)
    lanes = PLACES.get(max((place for place in PLACES if item.nodeid.startswith(place)), key=len, default=""), (FAST,))
    # Only what draws examples tries more of them in the second lane; all else would run twice.
    return lanes if getattr(item.obj, "is_hypothesis_test", False) else lanes[:1]


def shorten(items: Iterable[Any]) -> None:
    """Fewer examples for property tests that another lane runs in full."""
    for test in {getattr(item.obj, "__func__", item.obj) for item in items if EVIDENCE in lanes_of(item)}:
        full = getattr(test, "_hypothesis_internal_use_settings", None)
        if full is not None:
            test._hypothesis_internal_use_settings = settings(full, max_examples=max(1, full.max_examples // SHORTENED))


class LaneRecord:
    """Notes in a folder which tests a run of lanes collected, and how those ended that ran. Plugin of pytest.

    Attributes:
        collected: Lanes of each test, by its name.
        outcomes: `passed`, `failed` or `skipped`, by the name of the test.
    """

    def __init__(self, folder: Path, lanes: Sequence[str]) -> None:
        self._folder = folder
        self._lanes = list(lanes)
        self._begun_s = time.monotonic()
        self.collected: Mapping[str, Sequence[str]] = {}
        self.outcomes: dict[str, str] = {}

    def pytest_runtest_logreport(self, report: Any) -> None:
        if report.when == "call" or report.outcome != "passed":
            self.outcomes[report.nodeid] = report.outcome if self.outcomes.get(report.nodeid) != "failed" else "failed"

    def write(self) -> None:
        self._folder.mkdir(parents=True, exist_ok=True)
        took_s = time.monotonic() - self._begun_s
        noted = {"lanes": self._lanes, "took_s": took_s, "collected": self.collected, "outcomes": self.outcomes}
        (self._folder / f"{'-'.join(self._lanes)}.json").write_text(json.dumps(noted), encoding="utf-8")


def gaps(runs: Sequence[Mapping[str, Any]]) -> list[str]:
    """Lanes that did not run, and tests that those which ran left out: a sentence each."""
    ran = {lane: [run for run in runs if lane in run["lanes"]] for lane in LANES}
    collected = {name: lanes for run in runs for name, lanes in run["collected"].items()}
    return [f"the lane {lane} did not run" for lane in LANES if not ran[lane]] + [
        f"{name} did not run in the lane {lane}"
        for name, lanes in sorted(collected.items())
        for lane in lanes
        if ran[lane] and not any(name in run["outcomes"] for run in ran[lane])
    ]


def main(folder: Path) -> int:
    """Print what runs left out, how long each took, and a line such as pytest's; 1 where something is missing or failed."""
    runs = [json.loads(path.read_text(encoding="utf-8")) for path in sorted(folder.glob("*.json"))]
    missing = gaps(runs)
    for line in missing[:SHOWN_MAX]:
        print(line)
    ends: dict[str, str] = {}
    for run in runs:
        print(f"{' and '.join(run['lanes'])}: {len(run['outcomes']):,} tests in {run['took_s'] / 60:.1f} minutes")
        for name, outcome in run["outcomes"].items():
            ends[name] = min(outcome, ends.get(name, outcome))  # "failed" < "passed" < "skipped"
    counts = Counter(ends.values())
    text = ", ".join(f"{counts[outcome]} {outcome}" for outcome in sorted(counts))
    print(f"===== all lanes: {text or 'nothing ran'}, {len(missing)} missing =====")
    return int(bool(missing) or counts["failed"] > 0)


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
