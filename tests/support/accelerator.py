"""The optional accelerator, compiled from this tree, beside the Python code that it has to be equal to."""

import fcntl
import hashlib
import importlib.machinery
import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from functools import cache
from pathlib import Path
from types import ModuleType

import pytest

from statechannel.protocol import bulk_fold
from tests.support.lanes import EVIDENCE

ROOT = Path(__file__).parents[2]


def _sources(*folders: str) -> list[Path]:
    return [
        path
        for folder in folders
        for path in sorted((ROOT / folder).rglob("*"))
        if path.suffix in (".py", ".pyx", ".toml") and "build" not in path.parts
    ]


FOLD = _sources("accelerator")
CORE = [*_sources("accelerator", "statechannel/protocol", "statechannel/engine"), ROOT / "statechannel/__init__.py"]


@cache
def built(*, fold_alone: bool = False) -> Path:
    """Folder of the compiled package, kept for the next run while its sources are the same.

    Args:
        fold_alone: Without the core.
    """
    sources = FOLD if fold_alone else CORE
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if compiler is None:
        pytest.skip("no C compiler")
    content = b"".join(path.read_bytes() for path in sources) + sys.version.encode()
    kept = ROOT / ".cache" / f"accelerator-{'fold-' if fold_alone else ''}{hashlib.sha256(content).hexdigest()[:16]}"
    kept.parent.mkdir(exist_ok=True)
    with (kept.parent / "accelerator.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # it takes a while: one process of this run compiles, the others wait
        if not kept.exists():
            _build(kept, sources, "off" if fold_alone else "on")
    return kept


def _build(kept: Path, sources: list[Path], switch: str) -> None:
    with tempfile.TemporaryDirectory(dir=kept.parent) as folder:
        for path in sources:
            target = Path(folder) / path.relative_to(ROOT)
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(path, target)
        run = subprocess.run(
            [sys.executable, "setup.py", "build", "--build-lib", "built"],
            cwd=Path(folder) / "accelerator",
            env=os.environ | {"STATECHANNEL_ACCELERATOR": switch},
            capture_output=True,
            text=True,
            check=False,
        )
        assert run.returncode == 0, run.stdout + run.stderr
        (Path(folder) / "accelerator" / "built").rename(kept)


def under_compiled_core(*command: str, path: Path | None = None, **variables: str) -> str:
    """What a command of Python prints, run in a process that finds the compiled package.

    Args:
        path: Of the compiled package, if not of that of this tree.
    """
    environment = os.environ | {"STATECHANNEL_ACCELERATOR": "on"}
    run = subprocess.run(
        [sys.executable, *command],
        cwd=ROOT,
        env=environment | {"PYTHONPATH": os.pathsep.join((str(path or built()), str(ROOT)))} | variables,
        capture_output=True,
        text=True,
        timeout=500,
        check=False,
    )
    assert run.returncode == 0, run.stdout + run.stderr
    return run.stdout.strip()


@cache
def compiled(name: str = "plain_moves") -> ModuleType:
    """A module in Cython, such as the fold of plain moves, loaded past the package: it works with either core."""
    (path,) = built(fold_alone=True).glob(f"statechannel_accelerator/{name}.*.so")
    loader = importlib.machinery.ExtensionFileLoader(f"statechannel_accelerator.{name}", os.fspath(path))
    spec = importlib.util.spec_from_loader(loader.name, loader)
    module = importlib.util.module_from_spec(spec)
    loader.exec_module(module)
    return module


TAKERS: dict[str, Callable[[], object]] = {
    "python": lambda: bulk_fold._take_plain_moves,
    "compiled": lambda: compiled().take_plain_moves,
}
"""What applies plain moves, by name."""
TAKER_NAMES = ("python", pytest.param("compiled", marks=pytest.mark.lane(EVIDENCE)))
"""The same as parameters of tests: to compile takes a while."""
