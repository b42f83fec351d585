"""The optional accelerator, compiled from this tree, beside the Python code that it has to be equal to."""

from __future__ import annotations

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

ROOT = Path(__file__).parents[2]
SOURCES = ROOT / "accelerator"
BUILD = ("-c", "from setuptools import setup; setup()", "build_ext", "--inplace")


@cache
def built() -> Path:
    """Folder of the compiled package, kept for the next run while its sources are the same."""
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if compiler is None:
        pytest.skip("no C compiler")
    sources = sorted(path for path in SOURCES.rglob("*") if path.suffix in (".py", ".pyx", ".toml"))
    content = b"".join(path.read_bytes() for path in sources) + sys.version.encode()
    kept = ROOT / ".cache" / f"accelerator-{hashlib.sha256(content).hexdigest()[:16]}"
    if not kept.exists():
        kept.parent.mkdir(exist_ok=True)
        with tempfile.TemporaryDirectory(dir=kept.parent) as folder:
            work = Path(folder) / "accelerator"
            for path in sources:
                target = work / path.relative_to(SOURCES)
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(path, target)
            run = subprocess.run([sys.executable, *BUILD], cwd=work, capture_output=True, text=True, check=False)
            assert run.returncode == 0, run.stderr
            try:
                work.rename(kept)
            except OSError:  # another process of this run was first
                assert kept.exists()
    return kept


@cache
def compiled() -> ModuleType:
    """The compiled module, loaded past the package and its switch."""
    (path,) = built().glob("statechannel_accelerator/plain_moves*.so")
    loader = importlib.machinery.ExtensionFileLoader("statechannel_accelerator.plain_moves", os.fspath(path))
    spec = importlib.util.spec_from_loader(loader.name, loader)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    loader.exec_module(module)
    return module


TAKERS: dict[str, Callable[[], object]] = {
    "python": lambda: bulk_fold._take_plain_moves,
    "compiled": lambda: compiled().take_plain_moves,
}
"""What applies plain moves, by name."""
