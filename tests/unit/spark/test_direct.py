"""Logs that the tasks of a fold read by themselves: each record in one share, those of a namespace together, in log order."""

from __future__ import annotations

from pathlib import Path
from random import Random
from typing import Any
from zlib import crc32

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import spark.replay.direct
from spark.core.archive import Archive
from spark.core.schemas import ARCHIVE
from spark.replay.direct import RECORDS, Share, archive_reader, shares_of

KEYS = [
    *(f"tenant/ns-{number % 7}/0x{number:08x}_0x{number + 1:08x}".encode() for number in range(200)),
    *(b"tenant/ns-3", b"a/b", b"a/b/", b"a\nb/c/d", b"\xff\xfe/\x80/x", b"/", b"//"),
    *(None, b"", b"!heartbeat", b"no-slash", b"\xff"),
]
OF_NO_NAMESPACE = [None, b"", b"!heartbeat", b"no-slash", b"\xff"]


def kept(share: Share, keys: list[bytes | None] = KEYS) -> list[bytes | None]:
    return [key for key, own in zip(keys, share.own(pa.array(keys, pa.binary())).tolist(), strict=True) if own]


def namespace(key: bytes | None) -> bytes | None:
    parts = (key or b"").split(b"/", 2)
    return b"/".join(parts[:2]) if len(parts) > 1 else None


@pytest.mark.parametrize("tasks", [1, 2, 3, 6])
@pytest.mark.parametrize("sizes", [{}, {b"tenant/ns-1": 9, b"tenant/ns-2": 5, b"not/there": 1}])
def test_each_record_is_in_one_share_and_namespaces_are_whole(tasks: int, sizes: dict[bytes, int]) -> None:
    every = [kept(share) for share in shares_of(sizes, tasks)]
    assert sorted((key for keys in every for key in keys), key=repr) == sorted(KEYS, key=repr)
    homes = [{namespace(key) for key in keys} for keys in every]
    assert sum(len(home) for home in homes) == len(set().union(*homes))
    assert [key for key in every[0] if namespace(key) is None] == OF_NO_NAMESPACE


def test_a_part_of_a_column_is_divided_as_the_whole() -> None:
    share = shares_of({}, 3)[1]
    own = share.own(pa.array(KEYS, pa.binary())).tolist()
    assert share.own(pa.array(KEYS, pa.binary()).slice(50, 60)).tolist() == own[50:110]
    assert share.own(pa.array([], pa.binary())).tolist() == []


def test_large_namespaces_are_spread_evenly() -> None:
    sizes = {f"tenant/ns-{number}".encode(): size for number, size in enumerate((50, 30, 20, 19, 11, 10))}
    loads = [
        sum(size for name, size in sizes.items() if share.own(pa.array([name], pa.binary()))[0])
        for share in shares_of(sizes, 2)
    ]
    assert sorted(loads) == [69, 71]


# --- archives ------------------------------------------------------------------------------------------------------------

Row = tuple[int, int, int, bytes | None, bytes | None]


def rows_of(partition: int, offsets: range) -> list[Row]:
    return [(partition, offset, offset * 10, KEYS[offset % len(KEYS)], b"value %d" % offset) for offset in offsets]


def write(folder: Path, batch: str, name: str, rows: list[Row], **options: Any) -> Path:
    columns = dict(zip(RECORDS.names, zip(*rows, strict=True), strict=True))
    arrays = [pa.array(columns.get(field.name, [None] * len(rows)), field.type) for field in ARCHIVE]
    file = folder / batch / name
    file.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.Table.from_arrays(arrays, schema=ARCHIVE), file, row_group_size=30, **options)
    return file


def by_namespace(rows: list[Row]) -> list[Row]:
    return sorted(rows, key=lambda row: (row[0], repr(namespace(row[3])), row[1]))


@pytest.fixture
def log(tmp_path: Path) -> list[Row]:
    """Two days of three batches: files that have namespaces one after the other, and one file in log order."""
    log = [*rows_of(0, range(300)), *rows_of(1, range(200))]
    first = [row for row in log if row[1] < 100]
    second = [row for row in log if 100 <= row[1] < 150]
    parts = [[row for row in first if crc32(namespace(row[3]) or b"") % 2 == part] for part in (0, 1)]
    for number, part in enumerate(parts):
        write(tmp_path, "dt=2026-03-01/batch=000000000000", f"part-{number}.parquet", by_namespace(part))
    write(tmp_path, "dt=2026-03-01/batch=000000000001", "part-0.parquet", by_namespace(second))
    write(tmp_path, "dt=2026-03-02/batch=000000000002", "part-0.parquet", [row for row in log if row[1] >= 150])
    junk = rows_of(0, range(900, 950))
    write(tmp_path, "dt=2026-03-02/batch=000000000002", "_part.parquet", junk)
    write(tmp_path, "dt=2026-03-02/batch=000000000002", ".part.parquet", junk)
    write(tmp_path, "_writing/dt=2026-03-02", "part.parquet", junk)
    return log


def read(
    folder: Path, positions: dict[int, int] | None, tasks: int = 3, columns: Any = RECORDS.names
) -> list[list[Row]]:
    reader = archive_reader(Archive(str(folder)), positions)
    return [
        [tuple(row.values()) for batch in reader(share, columns) for row in batch.to_pylist()]  # type: ignore[misc]
        for share in shares_of({}, tasks)
    ]


def test_an_archive_is_read_in_log_order(tmp_path: Path, log: list[Row]) -> None:
    every = read(tmp_path, None)
    assert sorted(row[:2] for rows in every for row in rows) == sorted(row[:2] for row in log)
    assert {row for rows in every for row in rows} == set(log)
    for rows in every:
        assert len(rows) > 50
        for partition in (0, 1):
            offsets = [row[1] for row in rows if row[0] == partition]
            assert offsets == sorted(offsets)


def test_what_no_pointer_names_is_left_out(tmp_path: Path, log: list[Row]) -> None:
    positions = {0: 170, 1: 90}
    (rows,) = read(tmp_path, positions, tasks=1)
    assert sorted(rows, key=repr) == sorted((row for row in log if row[1] < positions[row[0]]), key=repr)
    assert read(tmp_path, {0: 0}, tasks=1) == [[]]


def test_only_the_columns_asked_for_are_read(tmp_path: Path, log: list[Row]) -> None:
    columns = ["partition", "offset", "key", "value"]
    (rows,) = read(tmp_path, None, tasks=1, columns=columns)
    assert {row[2:] for row in rows} == {row[3:] for row in log}


def test_large_batches_are_read_in_the_order_of_their_files(
    tmp_path: Path, log: list[Row], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is lost where they are not sorted; the fold sees that the order is another one."""
    monkeypatch.setattr(spark.replay.direct, "SORTED_RECORDS_MAX", 60)
    (rows,) = read(tmp_path, None, tasks=1)
    assert sorted(rows, key=repr) == sorted(log, key=repr)
    offsets = [row[1] for row in rows if row[0] == 0]
    assert offsets != sorted(offsets)


def test_of_a_large_batch_only_what_is_being_read_is_held(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spark.replay.direct, "SORTED_RECORDS_MAX", 0)
    monkeypatch.setattr(spark.replay.direct, "READ_RECORDS", 10)
    for number in range(4):
        offsets = range(number * 300, number * 300 + 300)
        rows = [(*row[:4], Random(row[1]).randbytes(20_000)) for row in rows_of(0, offsets)]
        write(tmp_path, "dt=2026-03-01/batch=000000000000", f"part-{number}.parquet", rows)
    written_bytes = sum(file.stat().st_size for file in tmp_path.rglob("*.parquet"))
    reader = archive_reader(Archive(str(tmp_path)), None)
    before_bytes = pa.total_allocated_bytes()
    held_bytes = [pa.total_allocated_bytes() - before_bytes for _ in reader(Share(0, 1), RECORDS.names)]
    assert len(held_bytes) >= 120
    assert written_bytes > 24_000_000
    assert max(held_bytes) < written_bytes / 4


def test_a_damaged_page_is_an_error(tmp_path: Path) -> None:
    plain = {"compression": "none", "use_dictionary": False, "write_page_checksum": True}
    file = write(tmp_path, "dt=2026-03-01/batch=000000000000", "part.parquet", rows_of(0, range(100)), **plain)
    content = bytearray(file.read_bytes())
    content[content.index(b"value 42") + Random(1).randrange(8)] ^= 1
    file.write_bytes(content)
    with pytest.raises(OSError, match="CRC checksum"):
        read(tmp_path, None)
