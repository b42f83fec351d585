"""Optional accelerator of statechannel: its core, the protocol and the engine, compiled from the same sources.

Install it beside `statechannel` to use it. `load` makes Python take the modules of the core from here, all of them or none: none
if `STATECHANNEL_ACCELERATOR=off`, or if the sources of the core are not those that this was compiled from.
"""

# ruff: noqa: PLC0415 - most commands need no core: they should not wait for what only its loading takes

from __future__ import annotations

import os
import sys
from importlib.machinery import EXTENSION_SUFFIXES, ExtensionFileLoader
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from importlib.machinery import ModuleSpec
    from pathlib import Path

FOLDERS = ("protocol", "engine")
STAYS_PYTHON = ("commands", "__init__")
"""Modules that are not compiled. Commands are made of what callers pass, and `statechannel.broker.arguments` looks at them after
that: compiled classes would refuse wrong types before, with less to say."""
SWITCH = "STATECHANNEL_ACCELERATOR"
IN_USE, OTHER_SOURCES = "in use", "made from other sources"
_PREFIXES = tuple(f"statechannel.{folder}." for folder in FOLDERS)
_STAYS_PYTHON = tuple(f".{name}" for name in STAYS_PYTHON)


def library_of(root: Path) -> str:
    """Name of the compiled library, by the sources of the core in the folder of the package `statechannel`."""
    from hashlib import sha256

    content = sha256()
    for path in sorted(path for folder in FOLDERS for path in (root / folder).iterdir() if path.suffix == ".py"):
        source = path.read_bytes()
        content.update(b"%s/%s %d\n%s" % (path.parent.name.encode(), path.name.encode(), len(source), source))
    return f"core_{content.hexdigest()[:16]}"


class _Finder:
    """Finds the compiled modules of the core; whether they may be used is settled when the first is wanted."""

    def __init__(self, root: str) -> None:
        self._root = root
        self._state = ""

    @property
    def state(self) -> str:
        self._state = self._state or self._settle()
        return self._state

    def _settle(self) -> str:
        from pathlib import Path

        if os.environ.get(SWITCH, "").lower() in ("0", "false", "no", "off"):
            return "switched off"
        try:
            library = f"{library_of(Path(self._root))}__mypyc"
        except OSError:  # the package is in an archive
            return OTHER_SOURCES
        return IN_USE if os.path.exists(_file(library)) else OTHER_SOURCES  # noqa: PTH110

    def find_spec(self, name: str, _path: object = None, _target: object = None) -> ModuleSpec | None:
        if not name.startswith(_PREFIXES) or name.endswith(_STAYS_PYTHON) or self.state != IN_USE:
            return None
        from importlib.util import spec_from_file_location

        file = _file(*name.split(".")[1:])
        return spec_from_file_location(name, file, loader=ExtensionFileLoader(name, file))


def _file(*names: str) -> str:
    return os.path.join(os.path.dirname(__file__), *names) + EXTENSION_SUFFIXES[0]  # noqa: PTH118, PTH120


_finders: list[_Finder] = []


def load(root: str) -> None:
    """Take the modules of the core from here, from now on.

    Args:
        root: Folder of the package `statechannel`.
    """
    if not _finders:
        _finders.append(_Finder(root))
        sys.meta_path.insert(0, _finders[0])


def state() -> str:
    """Whether this process runs the compiled core: `in use`, or why it does not."""
    return _finders[0].state if _finders else OTHER_SOURCES


def __getattr__(name: str) -> Any:
    if name == "take_plain_moves" and state() == IN_USE:
        from statechannel_accelerator.plain_moves import take_plain_moves

        return take_plain_moves
    if name == "convert" and state() == IN_USE:
        from statechannel_accelerator.messages import convert

        return convert
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
