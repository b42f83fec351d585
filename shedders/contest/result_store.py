"""Store of results: a folder with one JSON document per run, so that an interrupted comparison can be continued."""

from __future__ import annotations

import hashlib
import re
import secrets
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

import orjson
from pydantic import ValidationError

from shedders.contest.outcome import RunOutcome
from shedders.contest.runs import ContestRun, RunResult
from statechannel.errors import ExitCode, StateChannelError

FORMAT: Final = 1
_SAFE = re.compile(r"[^A-Za-z0-9@+=._,-]+")
_NAME_MAX: Final = 120


class RunsFolderError(StateChannelError):
    """Results cannot be kept in a folder."""

    def __init__(self, folder: Path, why: str) -> None:
        super().__init__(
            f"results cannot be kept in {folder}: {why}",
            hint="Name a writable folder with --out.",
            exit_code=ExitCode.BAD_EXPORT,
        )


class ResultStore:
    """Folder of results: `runs/SCENARIO/SEED/CONTENDER.json`.

    Args:
        program: Digest of the code that makes outcomes; results of other code are ignored.
        again: Ignore and overwrite existing results.

    Raises:
        RunsFolderError: The folder cannot be created.
    """

    def __init__(self, folder: Path, program: str, *, again: bool = False) -> None:
        self._folder = folder / "runs"
        self._program = program
        self._again = again
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise RunsFolderError(folder, error.strerror or str(error)) from error

    def place(self, run: ContestRun) -> Path:
        return self._folder / file_name(run.source.name) / str(run.seed) / f"{file_name(run.contender.name)}.json"

    def find(self, run: ContestRun) -> RunResult | None:
        """Stored result of the same scenario, contender and program; None: the run is needed."""
        if self._again:
            return None
        try:
            document: Any = orjson.loads(self.place(run).read_bytes())
            if not isinstance(document, Mapping) or document.get("made_of") != self._made_of(run):
                return None
            outcome = RunOutcome.model_validate(document.get("outcome"))
        except (OSError, ValueError, ValidationError):
            return None
        return RunResult(run, outcome, digest=outcome.digest(), kept=True)

    def keep(self, ran: RunResult) -> None:
        """Write a result atomically.

        Raises:
            RunsFolderError: It cannot be written.
        """
        if ran.outcome is None:
            return
        document = {
            "format": FORMAT,
            "made_of": self._made_of(ran.run),
            "digest": ran.digest,
            "outcome": ran.outcome.model_dump(mode="json"),
        }
        place = self.place(ran.run)
        scratch = place.with_name(f".{place.name}.{secrets.token_hex(4)}.part")
        try:
            place.parent.mkdir(parents=True, exist_ok=True)
            try:
                scratch.write_bytes(orjson.dumps(document, option=orjson.OPT_APPEND_NEWLINE))
                scratch.replace(place)
            finally:
                scratch.unlink(missing_ok=True)
        except OSError as error:
            raise RunsFolderError(place, error.strerror or str(error)) from error

    def _made_of(self, run: ContestRun) -> dict[str, Any]:
        contender = orjson.dumps(asdict(run.contender), option=orjson.OPT_SORT_KEYS)
        return {
            "program": self._program,
            "scenario": run.source.digest,
            "seed": run.seed,
            "contender": hashlib.sha256(contender).hexdigest(),
        }


def file_name(name: str) -> str:
    """File name of a name; different names have different file names."""
    safe = _SAFE.sub("_", name)
    if safe == name and len(name) <= _NAME_MAX and not name.startswith("."):
        return name
    return f"{safe[:_NAME_MAX].lstrip('.')}-{hashlib.sha256(name.encode()).hexdigest()[:8]}"
