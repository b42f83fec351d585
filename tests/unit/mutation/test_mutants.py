"""The mutation tester itself: which changes it makes, and that they reach the running function."""

import json
import types
from pathlib import Path

import pytest

from tests.mutation import kept
from tests.mutation.__main__ import CORE, MODULES, ROOT
from tests.mutation.mutants import code_of, mutants_of

SOURCE = '''
LIMIT = 3


class Door:
    """A door."""

    @property
    def is_open(self) -> bool:
        return self.state == "open" and not self.locked

    def push(self, times: int = 1) -> int:
        if times < LIMIT or self.is_open:
            self.notice(times)
            log.info("pushed", often=times > 2)
            self.house.log.debug("pushed")
            log.append(times)
        if times > 9:
            raise ValueError(f"{times + 1} is too much")
        return times - 1
'''


def test_each_kind_of_change_is_made_once_where_it_can_be() -> None:
    results = {(mutant.function, mutant.kind, mutant.before, mutant.after) for mutant in mutants_of("m", SOURCE)}
    test = "times < LIMIT or self.is_open"
    assert results == {
        ("Door.is_open", "dropped condition", "self.state == 'open' and (not self.locked)", "not self.locked"),
        ("Door.is_open", "dropped condition", "self.state == 'open' and (not self.locked)", "self.state == 'open'"),
        (
            "Door.is_open",
            "swapped and/or",
            "self.state == 'open' and (not self.locked)",
            "self.state == 'open' or not self.locked",
        ),
        ("Door.is_open", "swapped comparison", "self.state == 'open'", "self.state != 'open'"),
        ("Door.is_open", "negated condition", "not self.locked", "self.locked"),
        ("Door.push", "dropped condition", test, "self.is_open"),
        ("Door.push", "dropped condition", test, "times < LIMIT"),
        ("Door.push", "swapped and/or", test, "times < LIMIT and self.is_open"),
        ("Door.push", "swapped comparison", "times < LIMIT", "times <= LIMIT"),
        ("Door.push", "removed call", "self.notice(times)", "pass"),
        ("Door.push", "removed call", "log.append(times)", "pass"),
        ("Door.push", "swapped comparison", "times > 9", "times >= 9"),
        ("Door.push", "off by one", "9", "10"),
        ("Door.push", "changed sign", "times - 1", "times + 1"),
        ("Door.push", "off by one", "1", "2"),
    }


def test_the_changed_code_is_that_of_its_function() -> None:
    space: dict[str, object] = {}
    exec(compile(SOURCE, "door.py", "exec"), space)
    door_type = space["Door"]
    assert isinstance(door_type, type)
    door = door_type()
    door.state, door.locked, door.notice = "shut", False, lambda _: None
    assert door.push(5) == 4
    (mutant,) = (item for item in mutants_of("m", SOURCE) if item.after == "times + 1")
    push = door_type.push
    assert isinstance(push, types.FunctionType)
    assert mutant.first_line == push.__code__.co_firstlineno
    push.__code__ = code_of(mutant, SOURCE, Path("door.py"))
    assert door.push(5) == 6


@pytest.mark.parametrize("name", MODULES)
def test_every_mutant_of_the_core_can_be_made_and_has_a_name_of_its_own(name: str) -> None:
    path = ROOT / CORE / f"{name}.py"
    source = path.read_text(encoding="utf-8")
    mutants = mutants_of(f"{CORE}/{name}.py", source)
    assert len({mutant.name for mutant in mutants}) == len(mutants) > 0
    for mutant in mutants[::40]:
        assert code_of(mutant, source, path).co_qualname == mutant.function


def test_every_equivalent_mutant_is_still_there() -> None:
    """Whoever changes the core takes the entries along, or they are for nothing."""
    every = {
        mutant.name
        for name in MODULES
        for mutant in mutants_of(f"{CORE}/{name}.py", (ROOT / CORE / f"{name}.py").read_text(encoding="utf-8"))
    }
    assert set(kept.reasons()) - every == set()
    assert all(why.strip() for why in kept.reasons().values())


def test_counts_are_kept_by_module(tmp_path: Path) -> None:
    path = tmp_path / "figures.json"
    rows = [
        {"module": "a", "mutant": f"a{number}", "result": word, "all": 9}
        for number, word in enumerate(("killed", "timed out", "survived", "untested", "equivalent"))
    ]
    kept.keep(rows, seed=1, sample=5, path=path)
    kept.keep([rows[0] | {"module": "b"}], seed=1, sample=5, path=path)
    assert json.loads(path.read_text())["a"]["survived"] == ["a2", "a3"]
    assert kept.table(path).splitlines()[2:] == [
        "| `a` | 9 | 5 | 1 | 2 | 50% |",
        "| `b` | 9 | 1 | 0 | 1 | 100% |",
        "| together | 18 | 6 | 1 | 3 | 60% |",
    ]
    assert kept.survivors(path) == "- ``a2``\n- ``a3``"
