"""`python -m tests.mutation`: samples mutants of the core and says which no test notices."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from .kept import EQUIVALENT, keep, reasons

ROOT = Path(__file__).parents[2]
CORE = "statechannel"
MODULES = (
    "protocol/resolver", "protocol/view", "protocol/bundle", "protocol/debts", "engine/lease", "engine/presence",
    "engine/membership", "engine/proposals", "engine/reactions", "engine/controls", "engine/silence",
    "engine/closing_marks", "engine/maintenance", "engine/context",
    "protocol/joiner", "protocol/replica", "engine/cold_start", "protocol/cold_start_marks", "protocol/overruling",
)  # fmt: skip
"""The last five are those of joins."""
TESTS = (
    "tests/unit/core", "tests/scenarios", "tests/property/test_core_fold.py", "tests/property/test_core_join.py",
    "tests/property/test_core_machine.py", "tests/simulation/test_simulator.py",
)  # fmt: skip
LEFT_OUT = "not test_seeds and not hash_seed and not planted and not mib and not deep_json and not command"
"""By `-k`: what takes long, or asks other processes, which have no mutant."""


def main() -> int:
    """Run, show, keep."""
    parser = argparse.ArgumentParser(prog="python -m tests.mutation", description=__doc__)
    parser.add_argument("modules", nargs="*", default=MODULES, metavar="MODULE", help="default: all")
    parser.add_argument("--sample", type=int, default=25, help="mutants a module (25)")
    parser.add_argument("--seed", type=int, default=16, help="of the sample (16)")
    parser.add_argument("--only", default="", help="mutants whose names hold this text")
    parser.add_argument("--keep", action="store_true", help="write the counts to design/mutation-figures.json")
    parser.add_argument("--minutes", type=float, default=0.0, help="run no mutant after so long, however many are left")
    parser.add_argument(
        "--tests", nargs="*", default=TESTS, metavar="PATH", help="instead of all that concern the core"
    )
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        return _run(given, Path(folder) / "results.json")


def _run(given: argparse.Namespace, out: Path) -> int:
    job = {
        "root": str(ROOT),
        "modules": [f"{CORE}/{name}.py" for name in given.modules],
        "sample": given.sample,
        "seed": given.seed,
        "only": given.only,
        "minutes": given.minutes,
        "out": str(out),
    }
    words = [sys.executable, "-m", "pytest", "-q", "-p", "tests.mutation.plugin", "-p", "no:cacheprovider", "-s"]
    words += ["-p", "no:randomly", "-k", LEFT_OUT, *given.tests]
    environment = {**os.environ, "MUTATION_JOB": json.dumps(job), "PYTHONHASHSEED": "0"}
    code = subprocess.run(words, cwd=ROOT, env=environment, check=False, stdout=subprocess.DEVNULL).returncode
    if code not in (0, 5):
        return code
    results = json.loads(out.read_text(encoding="utf-8"))
    equivalent = reasons(EQUIVALENT)
    for one in results:
        if one["mutant"] in equivalent and one["result"] == "survived":
            one["result"] = "equivalent"
    if given.keep:
        keep(results, seed=given.seed, sample=given.sample)
    left = [one for one in results if one["result"] in ("survived", "untested")]
    for one in left:
        sys.stdout.write(f"{one['result']}: line {one['line']}: {one['mutant']}\n")
    alive = [one for one in results if one["result"] != "equivalent"]
    killed = len(alive) - len(left)
    sys.stdout.write(f"{killed} of {len(alive)} mutants that are none of the equivalent ones were killed\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
