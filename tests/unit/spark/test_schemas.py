"""Columns and the tuples that fill them agree, name by name and in order."""

from spark.channel.fold import Before, Line
from spark.core.schemas import LINE, STATE
from statechannel.protocol.view_rows import KeyRow


def test_a_row_of_the_view_is_a_key_row_behind_its_partition():
    assert STATE.names == ["partition", *(name.rstrip("_") for name in KeyRow._fields)]


def test_a_row_of_the_archive_has_all_that_is_said_of_a_record():
    before = [f"before_{name.rstrip('_')}" for name in Before._fields]
    assert LINE.names == [*(name.rstrip("_") for name in Line._fields if name != "before"), *before]
