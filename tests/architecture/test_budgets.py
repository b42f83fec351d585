"""The product and its tests do not outgrow their budgets of lines."""

from pathlib import Path

from tests.architecture.budgets import SPARE_LINES, exceeded, present, spare, stored


def test_no_folder_exceeds_its_budget():
    """Where a folder needs more, move lines of another folder's budget to it; `product` does not grow."""
    assert exceeded(stored(), present()) == {}


def test_what_was_saved_leaves_the_budget():
    """`python -m tests.architecture.budgets` lowers the budgets."""
    assert spare(stored(), present()) == {}


def test_a_folder_that_grew_or_is_new_is_seen(tmp_path: Path):
    (tmp_path / "shedders" / "fold").mkdir(parents=True)
    (tmp_path / "shedders" / "fold" / "a.py").write_text("a = 1\n" * 7)
    (tmp_path / "shedders" / "top.py").write_text("a = 1\n")
    now = present(tmp_path)
    assert now == {
        "product": {"lines": 8, "files": 2},
        "shedders": {"lines": 1, "files": 1},
        "shedders/fold": {"lines": 7, "files": 1},
    }
    assert exceeded(now, now) == {}
    assert exceeded({**now, "shedders/fold": {"lines": 6, "files": 1}}, now) == {"shedders/fold lines": "7 of 6"}
    expected = {"shedders/fold lines", "shedders/fold files"}
    assert set(exceeded({"product": now["product"], "shedders": now["shedders"]}, now)) == expected
    assert spare({**now, "gone": {"lines": 0, "files": 0}}, now) == {"gone": 0}
    assert spare({**now, "product": {"lines": 9 + SPARE_LINES, "files": 2}}, now) == {"product": 1 + SPARE_LINES}
