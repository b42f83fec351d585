"""Loads as a file: there and back, and what is cut short, of another form or of another cluster."""

from pathlib import Path

import orjson
import pytest

from loaddata.samples.cluster_files import LoadsFileError, lines_of, read_loads_file
from loaddata.samples.partitions import PartitionLoad

LOADS = {
    ("a", 0): PartitionLoad(disk_bytes=1, bytes_in_per_s=2, bytes_out_per_s=3, cpu_units=4, completeness=1 / 3),
    ("a", 1): PartitionLoad(disk_bytes=7, completeness=1.0),
}


def written(path: Path) -> Path:
    lines = lines_of(LOADS.items(), partitions=2, cluster="c", from_ms=1, to_ms=2, source="test")
    path.write_bytes(b"".join(lines))
    return path


def test_there_and_back_also_through_a_tables_pointer(tmp_path: Path) -> None:
    folder = tmp_path / "loads" / "v=000000000003"
    folder.mkdir(parents=True)
    file = written(folder / "loads.jsonl")
    loads = read_loads_file(file)
    assert dict(loads.of) == LOADS
    assert (loads.from_ms, loads.to_ms, loads.source) == (1, 2, "test; loads.jsonl")
    with pytest.raises(LoadsFileError, match="no loads in the folder"):
        read_loads_file(tmp_path)
    (tmp_path / "loads" / "LATEST").write_bytes(orjson.dumps({"path": folder.name}))
    assert read_loads_file(tmp_path, cluster="c") == loads
    assert read_loads_file(tmp_path / "loads") == loads
    assert set(read_loads_file(file, completeness_min=0.5).of) == {("a", 1)}
    with pytest.raises(LoadsFileError, match="of the cluster c, not of d"):
        read_loads_file(file, cluster="d")


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        (b"kafka-loads/1", b"kafka-loads/2", "kafka-loads/2"),
        (b'"partitions":2', b'"partitions":3', "its first line says 3"),
        (b'"from_ms":1', b'"from_ms":-1', "line 1"),
        (b'["a",1,7', b'["a",1,-7', "line 3"),
        (b'["a",1,7', b'["a",1', "line 3"),
        (b'["a",1,7', b'["a",1,7.5', "line 3"),
        (b'["a",1,7', b"[1,1,7", "line 3"),
        (b",1.0]", b",1.5]", "line 3"),
        (b",1.0]", b",NaN]", "line 3"),
        (b'["a",1', b'["a",0', "loads of 1 partitions"),
        (b'{"format"', b"junk", "line 1"),
    ],
)
def test_files_that_cannot_be_used(tmp_path: Path, old: bytes, new: bytes, words: str) -> None:
    file = written(tmp_path / "loads.jsonl")
    content = file.read_bytes()
    assert old in content
    file.write_bytes(content.replace(old, new))
    with pytest.raises(LoadsFileError, match=words) as caught:
        read_loads_file(file)
    assert caught.value.exit_code == 7
