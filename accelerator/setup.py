"""Compile the core of the source tree that this folder is in, from its sources as they are, and the fold of plain moves."""

import os
import sys
from pathlib import Path

from mypyc.build import mypycify
from setuptools import Extension, setup

HERE = Path(__file__).parent
ROOT = HERE.parent / "statechannel"
sys.path.insert(0, str(HERE))

from statechannel_accelerator import FOLDERS, STAYS_PYTHON, library_of  # noqa: E402 - of this folder

PARTS = [
    Extension(f"statechannel_accelerator.{name}", [f"statechannel_accelerator/{name}.pyx"])
    for name in ("messages", "plain_moves")
]


def core() -> list[Extension]:
    """The protocol and the engine."""
    files = [path for folder in FOLDERS for path in sorted((ROOT / folder).glob("*.py"))]
    sources = [str(path) for path in files if path.stem not in STAYS_PYTHON]
    compiled: list[Extension] = mypycify(
        ["--config-file=", "--ignore-missing-imports", *sources],
        group_name=f"statechannel_accelerator.{library_of(ROOT)}",
        opt_level="1",  # as fast as 2, and done a fifth sooner
        debug_level="0",
    )
    for extension in compiled:
        extension.name = extension.name.replace("statechannel.", "statechannel_accelerator.", 1)
    return compiled


# pip asks for the metadata first, and mypyc takes half a minute; some tests need the fold alone.
is_asked_for_metadata = not {"egg_info", "dist_info"}.isdisjoint(sys.argv)
wants_core = not is_asked_for_metadata and os.environ.get("STATECHANNEL_ACCELERATOR") != "off"
setup(ext_modules=[*PARTS, *(core() if wants_core else ())])
