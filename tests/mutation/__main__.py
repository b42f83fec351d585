"""`python -m tests.mutation`: samples mutants of each layer and says which no test notices."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from .kept import EQUIVALENT, keep, reasons

ROOT = Path(__file__).parents[2]
CORE = "statechannel"


class Target(NamedTuple):
    """Modules, without package and ending, and the tests that are to notice their mutants."""

    modules: tuple[str, ...]
    tests: tuple[str, ...]


def _unit(folder: str, *names: str) -> tuple[str, ...]:
    return tuple(f"tests/unit/{folder}/test_{name}.py" for name in names)


TARGETS = (
    Target(
        (
            "protocol/resolver", "protocol/view", "protocol/bundle", "protocol/debts", "engine/lease", "engine/presence",
            "engine/membership", "engine/proposals", "engine/reactions", "engine/controls",
            "engine/maintenance", "engine/context",
            "protocol/joiner", "protocol/replica", "engine/cold_start", "protocol/cold_start_marks",
            "protocol/overruling",
        ),
        (
            "tests/unit/core", "tests/scenarios", "tests/property/test_core_fold.py",
            "tests/property/test_core_join.py", "tests/property/test_core_machine.py",
            "tests/simulation/test_simulator.py",
        ),
    ),
    Target(("kafka/topic_watch",), _unit("kafka", "topic_watch", "watch_rounds")),
    Target(("kafka/reader",), _unit("kafka", "reader", "lost_position", "stall", "seen_ends", "patience")),
    Target(("kafka/partition_consumer",), _unit("kafka", "partition_consumer", "stall", "light_writer")),
    Target(("kafka/partition_count",), _unit("kafka", "partition_count", "partitions_named")),
    Target(("kafka/tail",), _unit("kafka", "tail", "stall", "patience", "append_and_wait")),
    Target(("kafka/light_topic",), _unit("kafka", "light_writer", "light_reader", "stall")),
    Target(("kafka/election",), _unit("kafka", "election_progress")),
    Target(("kafka/writer",), _unit("kafka", "writer_bookkeeping")),
    Target(("kafka/addresses",), _unit("kafka", "addresses")),
    Target(("kafka/advertised",), _unit("kafka", "advertised")),
    Target(("kafka/topic_policy", "kafka/topics"), _unit("kafka", "topic_policy", "light_policy", "topic_admin", "patience")),
    Target(
        ("kafka/client_settings", "kafka/property_rules", "kafka/errors"),
        (*_unit("kafka", "client_settings", "errors", "client_log", "addresses"), *_unit("runtime", "kafka_limits")),
    ),
    Target(
        ("broker/requests", "broker/handlers", "operations/outcomes", "operations/request_record", "operations/table"),
        (
            *_unit("runtime", "requests", "request_limits", "request_record", "outcomes", "handlers", "engine_surroundings"),
            "tests/property/test_runtime_requests.py",
        ),
    ),
    Target(("broker/changes",), (*_unit("runtime", "changes", "interrupted_changes", "bounds"), *_unit("router", "router"))),
    Target(
        ("broker/driver", "broker/inbox", "clocks"),
        _unit("runtime", "driver", "inbox_portions", "engine_clock", "bounds"),
    ),
    Target(
        ("broker/hook_runner", "broker/hooks"),
        _unit("runtime", "hooks", "late_hooks", "hooks_first_stretch"),
    ),
    Target(("broker/loop_thread",), _unit("runtime", "loop_thread")),
    Target(("broker/supervision",), _unit("runtime", "supervision", "blocked_loop")),
    Target(("broker/endings", "broker/request_writer"), _unit("runtime", "endings")),
    Target(("broker/topic_follower",), (*_unit("runtime", "topic_follower"), *_unit("loaddata", "following"))),
    Target(("broker/observe/topic_conditions",), _unit("runtime", "topic_conditions")),
    Target(
        ("broker/arguments", "broker/next_steps", "operations/checks"),
        _unit("runtime", "argument_checks", "hook_arguments", "next_steps"),
    ),
    Target(("router/router",), _unit("router", "router")),
    Target(("api/guard",), _unit("runtime", "guard")),
    Target(
        ("api/extensions", "api/member", "api/channel"),
        (
            *_unit("runtime", "extensions", "arguments", "opening", "tickets", "other_loops"),
            *_unit("testkit", "member", "kit"),
        ),
    ),
    Target(
        (
            "audit/difference", "audit/engine", "audit/gap_list", "audit/gaps", "audit/history", "audit/incidents",
            "audit/moments", "audit/observers", "audit/origins", "audit/overlaps", "audit/ownership",
            "audit/rejections", "audit/replay_check", "audit/verify", "audit/views", "stories/incident", "stories/processes",
        ),
        ("tests/unit/audit", "tests/property/test_audit_parts.py", "tests/property/test_audit_gaps.py"),
    ),
)  # fmt: skip
MODULES = tuple(name for target in TARGETS for name in target.modules)
LEFT_OUT = (
    "not test_seeds and not hash_seed and not planted and not mib and not deep_json "
    "and not test_the_command and not every_command and not whatever_is_asked "
    "and not [uvloop and not [debug and not [eager"
)
"""By `-k`: what takes long, asks other processes, which have no mutant, or repeats a test on another kind of event loop."""


def main() -> int:
    """Run, show, keep."""
    parser = argparse.ArgumentParser(prog="python -m tests.mutation", description=__doc__)
    parser.add_argument("modules", nargs="*", default=MODULES, metavar="MODULE", help="or a layer: kafka; default: all")
    parser.add_argument("--sample", type=int, default=25, help="mutants a module (25)")
    parser.add_argument("--seed", type=int, default=16, help="of the sample (16)")
    parser.add_argument("--only", default="", help="mutants whose names hold this text")
    parser.add_argument("--keep", action="store_true", help="write the counts to design/evidence/mutation-figures.json")
    parser.add_argument("--minutes", type=float, default=0.0, help="run no mutant after so long, however many are left")
    parser.add_argument("--tests", nargs="*", metavar="PATH", help="instead of all of the layer")
    given = parser.parse_args()
    if unknown := set(given.modules) - {*MODULES, *(name.split("/")[0] for name in MODULES)}:
        parser.error(f"no such module: {', '.join(sorted(unknown))}")
    results: list[dict[str, Any]] = []
    for target in TARGETS:
        modules = [name for name in target.modules if name in given.modules or name.split("/")[0] in given.modules]
        if modules:
            with tempfile.TemporaryDirectory() as folder:
                out = Path(folder) / "results.json"
                code = _run(given, modules, given.tests or target.tests, out)
                if code not in (0, 5):
                    return code
                if out.exists():
                    results += json.loads(out.read_text(encoding="utf-8"))
    return _report(given, results)


def _run(given: argparse.Namespace, modules: Sequence[str], tests: Sequence[str], out: Path) -> int:
    job = {
        "root": str(ROOT),
        "modules": [f"{CORE}/{name}.py" for name in modules],
        "sample": given.sample,
        "seed": given.seed,
        "only": given.only,
        "minutes": given.minutes,
        "out": str(out),
    }
    words = [sys.executable, "-m", "pytest", "-q", "-p", "tests.mutation.plugin", "-p", "no:cacheprovider", "-s"]
    words += ["-p", "no:randomly", "-k", LEFT_OUT, *tests]
    environment = {**os.environ, "MUTATION_JOB": json.dumps(job), "PYTHONHASHSEED": "0"}
    environment.setdefault("STATECHANNEL_TEST_WAIT_S", "5")  # most that fail wait for something in vain
    return subprocess.run(words, cwd=ROOT, env=environment, check=False, stdout=subprocess.DEVNULL).returncode


def _report(given: argparse.Namespace, results: list[dict[str, Any]]) -> int:
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
