"""The generated parts of the documentation equal what the code says now."""

import pytest

from tests.docs.__main__ import DESIGN, PAGES, page_text
from tests.docs.blocks import BLOCKS, registry_fields
from tests.docs.generate import ROOT, names_in, pages, rendered
from tests.docs.reaction_table import SITUATIONS, rows
from tests.support.strategies import install


@pytest.mark.parametrize("name", PAGES)
def test_a_page_that_is_made_as_a_whole_is_as_generated(name, monkeypatch):
    install(monkeypatch)
    assert (DESIGN / name).read_text(encoding="utf-8") == page_text(name), "run `make docs`"


@pytest.mark.parametrize("page", pages(), ids=lambda page: str(page.relative_to(ROOT)))
def test_page_is_as_generated(page):
    text = page.read_text(encoding="utf-8")
    assert text == rendered(text), "run `make docs`"
    assert text.count("<!-- generated: ") == len(names_in(text)), "a generated part does not end"


def test_every_generated_part_is_used():
    used = {name for page in pages() for name in names_in(page.read_text(encoding="utf-8"))}
    assert used == set(BLOCKS)


def test_registry_page_explains_every_field_and_no_other():
    text = (ROOT / "design/registry.md").read_text(encoding="utf-8")
    rows_ = [line.split("|")[1] for line in text.splitlines() if line.startswith("| `")]
    explained = {name.strip(" `") for cell in rows_ for name in cell.split(",")}
    assert set(registry_fields()) == {name for name in explained if "." not in name}


def test_every_reaction_ends_whatever_its_hook_does():
    """Whether the hook returns, raises or hangs, something is written about each state that names this broker."""
    found = rows()
    assert len(found) == len(SITUATIONS) + 1
    assert all(row.returns and row.raises and row.hangs for row in found), found
