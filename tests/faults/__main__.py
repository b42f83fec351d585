"""`make faults`: real faults on real processes, run after run, until the time is over (design/evidence/faults.md)."""

import argparse
import asyncio
import contextlib
import logging
import random
import shutil
import signal
import sys
import tempfile
import time
import traceback
from pathlib import Path
from typing import Any

import orjson

from tests.faults import report
from tests.faults.plan import KINDS, Plan, make_plan
from tests.faults.run import Run, RunResult, SetUpError

RUN_S_MAX = 900.0


def main(argv: list[str] | None = None) -> int:
    """0: no violation; 1: at least one; 2: wrong arguments, or a run that did not come to its end; 130: interrupted."""
    options = _options(argv)
    folder = Path(options.out or tempfile.mkdtemp(prefix="statechannel-faults-")).resolve()
    folder.mkdir(parents=True, exist_ok=True)
    first = options.seed if options.seed is not None else random.SystemRandom().randrange(1_000_000)
    until_s = time.monotonic() + options.minutes * 60
    results: list[dict[str, Any]] = []
    print(f"seed {first}, evidence in {folder}", flush=True)
    seed, summary = first, report.summarise(results)
    while (options.runs and len(results) < options.runs) or (not options.runs and time.monotonic() < until_s):
        try:
            results.append(_run_seed(seed, folder, options))
        except asyncio.CancelledError:
            print(f"run {seed} was ended before its time; what it left is in {folder}", flush=True)
            return 130
        summary = report.write(folder, results)
        seed += 1
    print(report.as_text(summary))
    if summary["violations"]:
        print(f"replay one: make faults ARGS='--runs 1 --seed {summary['seeds_with_violations'][0]}'")
        return 1
    return 2 if summary["seeds_that_could_not_begin"] else 0


def _run_seed(seed: int, folder: Path, options: argparse.Namespace) -> dict[str, Any]:
    lease = {"on": True, "off": False}.get(options.lease)
    plan = make_plan(seed, steps=options.steps, only=tuple(options.only), nodes=options.nodes, lease=lease)
    mine = folder / f"run-{seed}"
    shutil.rmtree(mine, ignore_errors=True)
    mine.mkdir(parents=True)
    print(f"run {seed}: {plan.nodes} Kafka, {len(plan.brokers)} brokers, lease {plan.lease_s}", flush=True)
    outcome: dict[str, Any]
    try:
        with (mine / "driver.log").open("w") as log, contextlib.redirect_stderr(log):
            logging.basicConfig(stream=log, level=logging.INFO, force=True)
            result = asyncio.run(_within(plan, mine))
        outcome = {"plan": plan.facts(), "violations": result.violations, "figures": result.figures}
        outcome["seconds"] = result.seconds
    except SetUpError as error:
        outcome = {"plan": plan.facts(), "violations": {}, "figures": {}, "seconds": 0.0, "not_begun": str(error)}
        print(f"  could not begin: {error}", flush=True)
    except Exception as error:
        # The driver's own fault, or a Kafka that did not start again: said, and no reason to end the campaign.
        (mine / "driver-failed.txt").write_text(traceback.format_exc())
        outcome = {
            "plan": plan.facts(),
            "violations": {},
            "figures": {},
            "seconds": 0.0,
            "not_begun": f"failed: {error!r}",
        }
        print(f"  the driver failed: {error!r}", flush=True)
    (mine / "result.json").write_bytes(orjson.dumps(outcome, option=orjson.OPT_INDENT_2))
    with (folder / "runs.jsonl").open("ab") as out:
        out.write(orjson.dumps(outcome, option=orjson.OPT_APPEND_NEWLINE))
    for rule, problems in outcome["violations"].items():
        for problem in problems[:5]:
            print(f"  VIOLATION {rule}: {problem}", flush=True)
    if not (outcome["violations"] or outcome.get("not_begun") or options.keep):
        shutil.rmtree(mine)
    return outcome


async def _within(plan: Plan, folder: Path) -> RunResult:
    task = asyncio.current_task()
    assert task is not None
    loop = asyncio.get_running_loop()
    asked = asyncio.Event()

    def end() -> None:
        if not asked.is_set() and not task.cancelling():  # what the run has started is being ended: not to be disturbed
            task.cancel()
        asked.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, end)
    try:
        async with asyncio.timeout(RUN_S_MAX):
            return await Run(plan, folder, lambda line: print(line, flush=True)).run()
    finally:
        if asked.is_set():  # also where ending it failed, or it was ending anyway: no next run begins
            raise asyncio.CancelledError


def _options(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="make faults ARGS=...", description=__doc__)
    parser.add_argument("--minutes", type=float, default=10.0, help="begin runs for this long")
    parser.add_argument("--runs", type=int, default=0, help="so many runs instead")
    parser.add_argument("--seed", type=int, help="of the first run; the next ones count on")
    parser.add_argument("--steps", type=int, default=6, help="rounds of a run")
    parser.add_argument(
        "--only", nargs="*", default=[], choices=sorted(KINDS), metavar="KIND", help="only these faults"
    )
    parser.add_argument("--nodes", type=int, choices=(1, 3), help="Kafka nodes; else a quarter of the runs has three")
    parser.add_argument("--lease", choices=("on", "off"), help="else every second run")
    parser.add_argument("--out", help="folder for the evidence")
    parser.add_argument("--keep", action="store_true", help="keep the evidence of runs without violations, too")
    parser.add_argument("--list", action="store_true", help="list the kinds of faults")
    options = parser.parse_args(argv)
    if options.list:
        for kind, fault in sorted(KINDS.items()):
            print(f"{kind:20} {(fault.__doc__ or '').strip()}")
        sys.exit(0)
    return options


if __name__ == "__main__":
    sys.exit(main())
