"""The archive's folder, killed at every step: nothing twice and nothing lost for a reader of `dt=*/batch=*/*.parquet`."""

from __future__ import annotations

import shutil
from collections import Counter
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from spark.core.archive import Archive
from spark.core.schemas import ARCHIVE
from spark.core.store import Folder
from spark.errors import TableFormatError

DAYS = ("2026-03-01", "2026-03-02", "2026-03-03")


class Killed(BaseException):
    """The process dies here."""


class Kill:
    """Dies at the n-th change of the file system: before it, half-way through it, or right behind it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.at: int | None = None
        self.how = "before"
        self.done = 0
        for name in ("move_to", "remove"):
            monkeypatch.setattr(Folder, name, self._wrapped(getattr(Folder, name)))

    def _wrapped(self, real):
        def act(folder, *args):
            if self.at is None or self.done != self.at:
                self.done += 1
                return real(folder, *args)
            if self.how == "half" and not args:
                for batch in sorted(Path(folder.path).rglob("batch=*"))[-1:]:
                    shutil.rmtree(batch)  # no order is promised: here the newest goes first
            elif self.how == "behind":
                real(folder, *args)
            raise Killed

        return act

    def armed(self, at: int | None, how: str = "before") -> None:
        self.at, self.how, self.done = at, how, 0


class Rows:
    """What the archive asks of a frame, without Spark: rows of some offsets at some days."""

    def __init__(self, table: pa.Table) -> None:
        self.table = table
        self.write = self
        self._by_day = False

    def partitionBy(self, _):  # noqa: N802 - Spark's name
        self._by_day = True
        return self

    def repartitionByRange(self, *_):  # noqa: N802 - Spark's name
        return self

    def sortWithinPartitions(self, *columns):  # noqa: N802 - Spark's name
        return Rows(self.table.sort_by([(name, "ascending") for name in columns]))

    def count(self):
        return len(self.table)

    def parquet(self, uri):
        days = self.table.column("dt").unique().to_pylist() if self._by_day else [None]
        root = Folder(uri)
        for day in days:
            rows = self.table.filter(pc.equal(self.table.column("dt"), day)) if day else self.table
            folder = root / f"dt={day}" if day else root
            folder.files.create_dir(folder.path, recursive=True)
            pq.write_table(
                rows.drop_columns("dt") if "dt" in rows.column_names else rows, f"{folder.path}/part-0.parquet"
            )
        (root / "_SUCCESS").write(b"")


def rows(*offsets: tuple[int, str]) -> Rows:
    columns = {name: [None] * len(offsets) for name in ARCHIVE.names}
    columns |= {
        "partition": [0] * len(offsets),
        "offset": [o for o, _ in offsets],
        "verdict": ["accepted"] * len(offsets),
    }
    table = pa.table(columns, schema=ARCHIVE)
    return Rows(table.append_column("dt", pa.array([day for _, day in offsets], pa.string())))


BATCHES = {
    0: rows((0, DAYS[0]), (1, DAYS[0]), (2, DAYS[1])),
    1: rows((3, DAYS[0]), (4, DAYS[1]), (5, DAYS[2])),
    2: rows((6, DAYS[1]), (7, DAYS[2]), (8, DAYS[0])),
}


def read(archive: Archive) -> Counter[int]:
    """Offsets, as a reader finds them that knows nothing of the table."""
    files = sorted(Path(archive.root.path).glob("dt=*/batch=*/*.parquet"))
    return Counter(offset for file in files for offset in pq.read_table(file, partitioning=None)["offset"].to_pylist())


def once(*sequences: int) -> Counter[int]:
    return Counter(offset for sequence in sequences for offset in BATCHES[sequence].table["offset"].to_pylist())


@pytest.fixture
def kill(monkeypatch):
    return Kill(monkeypatch)


@pytest.fixture
def archive(tmp_path, kill):
    archive = Archive(str(tmp_path / "archive"))
    for sequence in (0, 1):
        assert archive.add(BATCHES[sequence], sequence) == {"accepted": 3}
    return archive


def test_what_was_added_is_there(archive):
    assert read(archive) == once(0, 1)
    assert archive.days() == [f"dt={day}" for day in DAYS]
    assert archive.batches(f"dt={DAYS[1]}") == [0, 1]


@pytest.mark.parametrize("how", ["before", "half", "behind"])
@pytest.mark.parametrize("at", range(5))
def test_killed_while_a_batch_is_added(archive, kill, at, how):
    kill.armed(at, how)
    with pytest.raises(Killed):
        archive.add(BATCHES[2], 2)
    kill.armed(None)
    again = Archive(archive.root.uri)
    again.recover(1)
    assert read(again) == once(0, 1)
    assert [name for name in again.root.names() if name.startswith("_")] == []
    again.add(BATCHES[2], 2)
    assert read(again) == once(0, 1, 2)


def test_so_many_steps_has_an_addition(archive, kill):
    """The test above kills at each of them."""
    kill.armed(None)
    archive.add(BATCHES[2], 2)
    assert kill.done == 5


def test_a_batch_whose_pointer_was_never_written_is_removed(archive):
    assert archive.recover(0) == [f"dt={day}/batch=000000000001" for day in DAYS]
    assert read(archive) == once(0)


def test_the_first_batch_goes_where_nothing_was_ever_published(tmp_path, kill):
    archive = Archive(str(tmp_path / "archive"))
    archive.add(BATCHES[0], 0)
    archive.recover(-1)
    assert read(archive) == Counter()


def test_a_pointer_that_is_gone_or_older_takes_no_archive_along(archive):
    """What lies behind it was published once, and may be cleaned away in Kafka."""
    with pytest.raises(TableFormatError):
        archive.recover(-1)
    assert compact(archive) == 2
    archive.add(BATCHES[2], 2)
    with pytest.raises(TableFormatError):
        archive.recover(0)
    assert read(archive) == once(0, 1, 2)


class Session:
    """Reads a folder of parquet files, without Spark."""

    def __init__(self) -> None:
        self.read = self

    def schema(self, _):
        return self

    def parquet(self, *files):
        tables = [pq.read_table(Folder(file).path, columns=ARCHIVE.names, partitioning=None) for file in files]
        return Rows(pa.concat_tables(tables))


def compact(archive: Archive, day: str = DAYS[0]) -> int:
    return archive.compact(Session(), f"dt={day}", ARCHIVE)


def test_closed_days_are_compacted(archive):
    assert archive.to_compact(f"dt={DAYS[2]}") == [f"dt={DAYS[0]}", f"dt={DAYS[1]}"]
    assert [compact(archive, day) for day in DAYS[:2]] == [2, 2]
    assert archive.to_compact(f"dt={DAYS[2]}") == []
    assert archive.batches(f"dt={DAYS[0]}") == [1]
    assert read(archive) == once(0, 1)
    archive.recover(1)
    archive.add(BATCHES[2], 2)
    assert read(archive) == once(0, 1, 2)
    assert archive.to_compact(f"dt={DAYS[2]}") == [f"dt={DAYS[0]}", f"dt={DAYS[1]}"]
    assert compact(archive) == 2
    assert archive.batches(f"dt={DAYS[0]}") == [2]
    assert read(archive) == once(0, 1, 2)


@pytest.mark.parametrize("how", ["before", "half", "behind"])
@pytest.mark.parametrize("at", range(8))
def test_killed_while_a_day_is_compacted(archive, kill, at, how):
    kill.armed(at, how)
    with pytest.raises(Killed):
        compact(archive)
    kill.armed(None)
    again = Archive(archive.root.uri)
    again.recover(1)
    assert read(again) == once(0, 1)
    assert [name for name in again.root.names() if name.startswith("_")] == []
    for _ in again.to_compact(f"dt={DAYS[1]}"):
        compact(again)
    assert read(again) == once(0, 1)


def test_so_many_steps_has_a_compaction(archive, kill):
    kill.armed(None)
    compact(archive)
    assert kill.done == 8


def test_killed_again_while_it_recovers(archive, kill):
    for at in range(12):
        kill.armed(4, "behind")
        with pytest.raises(Killed):
            compact(archive)
        kill.armed(at, "half")
        try:
            Archive(archive.root.uri).recover(1)
        except Killed:
            kill.armed(None)
            Archive(archive.root.uri).recover(1)
        kill.armed(None)
        assert read(archive) == once(0, 1)


def test_a_late_record_on_a_day_whose_compaction_was_cut_off(archive, kill):
    """The batch is added before anybody has recovered: the day that was put aside must not be taken for replaced."""
    kill.armed(3, "behind")
    with pytest.raises(Killed):
        compact(archive)
    kill.armed(None)
    archive.add(BATCHES[2], 2)
    Archive(archive.root.uri).recover(2)
    assert read(archive) == once(0, 1, 2)


STRAYS = [
    f"dt={DAYS[0]}/batch=000000000000/x.parquet.tmp",
    f"dt={DAYS[0]}/note #1 50%.txt",
    f"dt={DAYS[0]}/batch=000000000001 (copy)/part-0.parquet",
    f"dt={DAYS[0]}/batch=000000000001/more/part-0.parquet",
    "README.md",
    "dt=lost/part-0.parquet",
    "dt=2000-01-01",
]


@pytest.mark.parametrize("removed", ["compacted", "removed"])
@pytest.mark.parametrize("stray", STRAYS)
def test_files_of_others_are_neither_read_nor_deleted(archive, stray, removed, caplog):
    """Whatever becomes of the day that they lie in; what is moved out of the way is named."""
    root = Path(archive.root.path)
    (root / stray).parent.mkdir(parents=True, exist_ok=True)
    (root / stray).write_bytes(b"somebody's")
    rows = Counter(
        o for f in archive.stored_files() for o in pq.read_table(f.path, partitioning=None)["offset"].to_pylist()
    )
    assert rows == once(0, 1)
    if removed == "compacted":
        archive.compact_days(Session(), f"dt={DAYS[2]}", ARCHIVE)
        assert archive.batches(f"dt={DAYS[0]}") == [1]
    else:
        archive.remove(f"dt={DAYS[0]}")
        assert archive.days()[-2:] == [f"dt={DAYS[1]}", f"dt={DAYS[2]}"]
    Archive(archive.root.uri).recover(1)
    (kept,) = [path for path in root.rglob("*") if path.is_file() and path.read_bytes() == b"somebody's"]
    if kept != root / stray:
        assert stray.split("/")[1] in caplog.text
    assert not [path for path in root.glob(f"dt={DAYS[0]}/*") if not path.name.startswith("batch=")]


def test_a_compaction_that_fails_leaves_the_day_and_goes_on(archive, kill, caplog):
    class Failing(Session):
        def parquet(self, *files):
            if DAYS[0] in files[0]:
                raise OSError("[Errno 5] Input/output error")
            return super().parquet(*files)

    archive.compact_days(Failing(), f"dt={DAYS[2]}", ARCHIVE)
    assert [len(archive.batches(f"dt={day}")) for day in DAYS[:2]] == [2, 1]
    assert DAYS[0] in caplog.text
    real = Folder.move_to
    for step in range(3):
        fails = iter([*[False] * step, True])

        def move_to(folder, other, fails=fails):
            if next(fails, False):
                raise OSError("[Errno 5] Input/output error")
            real(folder, other)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Folder, "move_to", move_to)
            archive.compact_days(Session(), f"dt={DAYS[1]}", ARCHIVE)
        assert read(archive) == once(0, 1)


def test_days_that_were_written_with_a_column_too_many_are_mended(archive):
    compact(archive)
    (file,) = Path(archive.root.path).glob(f"dt={DAYS[0]}/batch=*/*.parquet")
    table = pq.read_table(file, partitioning=None)
    pq.write_table(table.append_column("batch", pa.array([0] * len(table), pa.int32())), file)
    Archive(archive.root.uri).compact_days(Session(), f"dt={DAYS[1]}", ARCHIVE)
    (file,) = Path(archive.root.path).glob(f"dt={DAYS[0]}/batch=*/*.parquet")
    assert pq.read_schema(file).names == ARCHIVE.names
    assert read(archive) == once(0, 1)
