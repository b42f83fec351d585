"""Our strategies by entry point, for tests and benches that must not depend on what happens to be installed."""

import tomllib
from collections.abc import Mapping
from functools import cache
from importlib.metadata import EntryPoint, EntryPoints
from pathlib import Path

import pytest

from shedders.model import strategy
from statechannel.cli import main

ROOT = Path(__file__).parents[2]


@cache
def declared() -> Mapping[str, Mapping[str, str]]:
    """The entry points of this working tree, by group and name."""
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    return tomllib.loads(text)["project"]["entry-points"]


def points(group: str, **more: str) -> EntryPoints:
    """Entry points of a group, with some more."""
    both = {**declared().get(group, {}), **more}
    return EntryPoints(EntryPoint(name, value, group) for name, value in both.items())


def install(monkeypatch: pytest.MonkeyPatch, **more: Mapping[str, str]) -> None:
    """Make them, and more of the groups `shedding`, `placement` and `split`, the ones that are installed."""

    def entry_points(*, group: str) -> EntryPoints:
        return points(group, **more.get(group.rpartition(".")[2], {}))

    monkeypatch.setattr(strategy, "entry_points", entry_points)
    monkeypatch.setattr(main, "_registered", lambda: {point.name: point for point in points(main.COMMANDS_GROUP)})
