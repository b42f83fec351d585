"""A pytest plugin that runs mutants instead of tests: all is imported and collected once, then there is a fork for each mutant.

First all tests run once, watched: which functions of the modules each calls, and how long it takes. A mutant then meets only
the tests that call its function, the cheapest first, until one fails twice in a row: tests in real time fail now and then on a
busy machine, and that kills no mutant. One that outlasts its time is killed as well: a loop without end.
"""

from __future__ import annotations

import gc
import json
import os
import pickle
import random
import signal
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import FrameType, FunctionType
from typing import Any

import pytest
from _pytest.runner import runtestprotocol
from hypothesis import settings

from .mutants import Mutant, code_of, mutants_of

KILLED, SURVIVED, TIMED_OUT, UNTESTED = "killed", "survived", "timed out", "untested"
_TIMES = 10
_LEAST_S = 60.0
Place = tuple[str, int]


def pytest_configure(config: pytest.Config) -> None:
    """Examples are the same for every mutant, and none is kept."""
    settings.register_profile("mutation", settings.get_profile("suite"), derandomize=True, database=None)
    settings.load_profile("mutation")


def pytest_runtestloop(session: pytest.Session) -> bool:
    """Everything is collected: watch, then run each mutant."""
    job = json.loads(os.environ["MUTATION_JOB"])
    root = Path(job["root"])
    sources = {name: (root / name).read_text(encoding="utf-8") for name in job["modules"]}
    watched = _forked(lambda: _watch(session.items, {str(root / name): name for name in sources}), 3_600.0)
    if not isinstance(watched, dict):
        raise pytest.UsageError(f"the tests do not pass without any mutant: {watched}")
    chosen: list[tuple[Mutant, int]] = []
    for name, source in sources.items():
        every = mutants_of(name, source)
        some = random.Random(f"{job['seed']} {name}").sample(every, min(len(every), job["sample"]))
        chosen += [(one, len(every)) for one in some if job["only"] in one.name]
    random.Random(job["seed"]).shuffle(chosen)  # so that whatever there is time for is a sample of all
    until_s = time.monotonic() + 60 * job["minutes"] if job["minutes"] else float("inf")
    results: list[dict[str, Any]] = []
    for mutant, count in chosen:
        began_s = time.monotonic()
        if began_s > until_s:
            break
        name = mutant.module
        tests = _tests(session.items, watched, (name, mutant.first_line))
        word, by = _outcome(mutant, sources[name], root / name, tests, watched)
        results.append(
            {"mutant": mutant.name, "module": name, "line": mutant.line, "result": word, "by": by, "all": count}
        )
        sys.stderr.write(f"{word:9} {time.monotonic() - began_s:5.1f} s  line {mutant.line}: {mutant.name}  [{by}]\n")
        sys.stderr.flush()
        Path(job["out"]).write_text(json.dumps(results), encoding="utf-8")
    return True


def _outcome(
    mutant: Mutant, source: str, path: Path, tests: Sequence[pytest.Item], watched: dict[str, Any]
) -> tuple[str, str]:
    if not tests:
        return UNTESTED, ""
    within_s = max(_LEAST_S, _TIMES * sum(watched[one.nodeid][0] for one in tests))
    found = _forked(lambda: _meet(mutant, source, path, tests), within_s)
    if found is None:
        return TIMED_OUT, ""
    return (KILLED, str(found)) if found else (SURVIVED, f"{len(tests)} tests")


def _tests(items: Sequence[pytest.Item], watched: dict[str, Any], place: Place) -> list[pytest.Item]:
    meant = [one for one in items if one.nodeid in watched and place in watched[one.nodeid][1]]
    return sorted(meant, key=lambda one: watched[one.nodeid][0])


def _forked(work: Callable[[], Any], within_s: float) -> Any:
    """What a fork of this process found; None where its time ran out."""
    ours, theirs = os.pipe()
    child = os.fork()
    if child == 0:
        os.setpgid(0, 0)
        os.close(ours)
        with open(os.devnull, "wb") as nowhere:  # noqa: PTH123
            os.dup2(nowhere.fileno(), 1)
            os.dup2(nowhere.fileno(), 2)
        try:
            found: Any = work()
        except BaseException as error:
            found = repr(error)
        with os.fdopen(theirs, "wb") as pipe:
            pickle.dump(found, pipe)
        os._exit(0)
    os.close(theirs)
    ended = threading.Timer(within_s, os.killpg, (child, signal.SIGKILL))
    ended.start()
    try:
        with os.fdopen(ours, "rb") as pipe:
            content = pipe.read()
    finally:
        ended.cancel()
        os.waitpid(child, 0)
    return pickle.loads(content) if content else None


def _run(item: pytest.Item, nextitem: pytest.Item | None) -> bool:
    """Whether a test passed, at the second time at the latest."""
    reports = (runtestprotocol(item, log=False, nextitem=nextitem) for _ in range(2))
    return any(not any(report.failed for report in one) for one in reports)


def _watch(items: Sequence[pytest.Item], paths: dict[str, str]) -> dict[str, tuple[float, set[Place]]] | str:
    seen: set[Place] = set()

    def look(frame: FrameType, _event: str, _: Any) -> None:  # of calls only: it asks for nothing inside of them
        name = paths.get(frame.f_code.co_filename)
        if name is not None:
            seen.add((name, frame.f_code.co_firstlineno))

    found: dict[str, tuple[float, set[Place]]] = {}
    for number, item in enumerate(items):
        seen.clear()
        began_s = time.monotonic()
        threading.settrace(look)
        sys.settrace(look)
        passed = _run(item, items[number + 1] if number + 1 < len(items) else None)
        sys.settrace(None)
        threading.settrace(None)  # type: ignore[arg-type]
        if not passed:
            return item.nodeid
        found[item.nodeid] = time.monotonic() - began_s, set(seen)
    return found


def _meet(mutant: Mutant, source: str, path: Path, tests: Sequence[pytest.Item]) -> str:
    """Name of the test that fails; empty where all pass."""
    code = code_of(mutant, source, path)
    changed = 0
    for one in gc.get_objects():
        if type(one) is FunctionType and one.__code__.co_filename == code.co_filename:
            held = one.__code__
            if held.co_qualname == code.co_qualname and held.co_firstlineno == code.co_firstlineno:
                one.__code__ = code
                changed += 1
    if not changed:
        return "(its function is not there)"
    for number, item in enumerate(tests):
        if not _run(item, tests[number + 1] if number + 1 < len(tests) else None):
            return item.nodeid
    return ""
