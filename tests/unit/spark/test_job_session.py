"""What a job refuses before it starts anything."""

import pytest

from spark.core.job_session import apart, only_job, refuse_foreign
from spark.errors import SparkJobError, TableFormatError
from statechannel.errors import ExitCode


@pytest.mark.parametrize(("checkpoint", "table"), [("a/t", "a/t"), ("a/t/c", "a/t"), ("a/t", "file:{here}/a/t/view/")])
def test_a_checkpoint_in_the_table_is_refused(monkeypatch, tmp_path, checkpoint, table):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SparkJobError, match="lie in one another") as error:
        apart(checkpoint, table.format(here=tmp_path))
    assert error.value.exit_code == 2


def test_folders_beside_each_other_are_fine():
    apart("tables/checkpoints/channel", "tables/channel")
    apart("s3://bucket/tables/checkpoints/channel", "s3://bucket/tables/channel")
    apart("tables/channel-2", "tables/channel")


def test_a_folder_that_cannot_be_made_is_told(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(SparkJobError, match="cannot be used") as error, only_job("j", [tmp_path / "file" / "table"]):
        pass
    assert error.value.exit_code == ExitCode.TABLE_UNUSABLE


def test_a_table_of_another_job_is_refused(tmp_path):
    refuse_foreign(str(tmp_path / "t"), "table-view", "views")
    (tmp_path / "t" / "views").mkdir(parents=True)
    with pytest.raises(TableFormatError, match="not a table of table-view"):
        refuse_foreign(str(tmp_path / "t"), "table-view", "views")
