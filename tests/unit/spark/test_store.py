"""Snapshots with a pointer: only from where its writer found it is it moved, and what was left behind is gone at the next try."""

from __future__ import annotations

import os
from dataclasses import asdict
from pathlib import Path
from urllib.parse import quote

import orjson
import pytest

from spark.channel import table as channel
from spark.channel.plan import Missing, ReadingPosition, place_fields
from spark.core.store import Folder, Pointer, SnapshotStore
from spark.errors import TableChangedError, TableFormatError
from spark.load import table as load
from spark.partitions import table as samples
from statechannel.errors import ExitCode


def publish(store: SnapshotStore, base: Pointer | None, text: str = "x") -> Pointer:
    _, folder = store.begin(base)
    (folder / "part.parquet").write(text.encode())
    return store.publish(base, {"text": text})


@pytest.fixture
def store(tmp_path):
    return SnapshotStore(str(tmp_path / "view"), 3, lambda meta: meta["text"])


def test_sequences_grow_by_one(store):
    first = publish(store, None)
    second = publish(store, first, "y")
    assert (first.sequence, second.sequence) == (0, 1)
    assert store.latest() == second == Pointer(1, {"text": "y"})
    assert (store.folder(1) / "part.parquet").read() == b"y"


@pytest.mark.parametrize("stale", ["none", "older"])
def test_two_writers_on_one_table(store, stale):
    first = publish(store, None)
    newest = publish(store, first)
    with pytest.raises(TableChangedError) as caught:
        store.publish(None if stale == "none" else first, {})
    assert caught.value.exit_code == ExitCode.JOB_IN_USE
    assert store.latest() == newest


def test_who_comes_late_does_not_clear_what_counts(store):
    first = publish(store, None)
    publish(store, first, "newest")
    with pytest.raises(TableChangedError):
        store.begin(first)
    assert (store.folder(1) / "part.parquet").read() == b"newest"


def test_a_writer_that_died_before_the_pointer_leaves_nothing(store):
    first = publish(store, None)
    _, folder = store.begin(first)
    (folder / "half.parquet").write(b"left over")
    assert store.latest() == first
    sequence, again = store.begin(first)
    assert (sequence, again.names()) == (1, [])


def test_a_writer_that_died_in_the_pointer_leaves_the_old_one(store, monkeypatch):
    first = publish(store, None)

    def die(*_):
        raise OSError("killed")

    monkeypatch.setattr(Folder, "write", die)
    with pytest.raises(OSError, match="killed"):
        store.publish(first, {})
    monkeypatch.undo()
    assert store.latest() == first
    (store.root / ".LATEST.1.part").write(b"half of a poin")
    assert store.latest() == first
    assert publish(store, first).sequence == 1


def test_so_many_snapshots_are_kept(store):
    base = None
    for _ in range(6):
        base = publish(store, base)
    assert store.root.names() == ["LATEST", "v=000000000003", "v=000000000004", "v=000000000005"]


UNSOUND = ({"format": 2}, {"sequence": "x"}, {"sequence": -1}, {"meta": None})
UNSOUND_TEXTS = [orjson.dumps({"format": 1, "sequence": 0, "meta": {"text": ""}} | part) for part in UNSOUND]


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"7", b"{}", b'{"format":1,"meta":{}}', *UNSOUND_TEXTS])
def test_a_pointer_that_is_none(store, content):
    (store.root / "LATEST").write(content)
    with pytest.raises(TableFormatError) as caught:
        store.latest()
    assert caught.value.exit_code == ExitCode.TABLE_UNUSABLE


@pytest.mark.parametrize("name", ["plain", "with blank", "with%20percent", "ümlaut", "a#b?c"])
def test_names_of_folders(tmp_path, name):
    store = SnapshotStore(str(tmp_path / name))
    publish(store, None)
    assert (tmp_path / name / "LATEST").exists()
    for place in (tmp_path.as_uri(), f"file:{quote(str(tmp_path))}"):
        assert SnapshotStore(f"{place}/{quote(name)}").latest() == store.latest()


DAMAGES = [None, b"", b"{", b"\0" * 40, b'{"format": 1, "meta": {}}', b'{"format": 1, "sequence": 0, "meta": {}}']


@pytest.mark.parametrize("content", DAMAGES)
def test_a_pointer_that_was_lost_or_damaged_comes_back_from_beside_its_snapshot(store, content, caplog):
    newest = publish(store, publish(store, None))
    (Folder(store.folder(2).uri) / "half.parquet").write(b"of a writer that died")
    for name in ("v=notes.txt", "v=000000000009"):
        (store.root / name).write(b"somebody's")
    (Path(store.root.path) / "v=²").mkdir()
    pointer = Path(store.root.path) / "LATEST"
    whole = pointer.read_bytes()
    pointer.unlink()
    if content is not None:
        pointer.write_bytes(content)
    assert SnapshotStore(store.root.uri, 3, lambda meta: meta["text"]).latest() == newest
    assert pointer.exists() is (content is not None), "a reader writes nothing"
    caplog.clear()
    assert store.latest(mend=True) == newest
    (record,) = caplog.records
    assert str(pointer.parent) in record.getMessage()
    assert pointer.read_bytes() == whole
    assert store.latest() == newest
    assert len(caplog.records) == 1
    assert publish(store, newest).sequence == 2


@pytest.mark.parametrize("copy", [b"", b"{", b"null"])
def test_a_table_whose_pointer_and_copy_are_lost_is_not_begun_anew(store, copy):
    publish(store, None)
    (store.root / "LATEST").remove()
    (store.folder(0) / "_LATEST").write(copy)
    with pytest.raises(TableFormatError):
        store.latest(mend=True)


NEEDED = {
    channel.read_meta: {
        "topic": "t",
        "topic_id": "x",
        "partitions": {"0": place_fields(ReadingPosition())},
        "incomplete": [asdict(Missing(0, 1, 2, 3, 4, None))],
        "digest": "d",
        **dict.fromkeys(("keys", "bundles", "debts"), 0),
    },
    load.positions_of: {"topics": {"t": {"topic_id": "x", "position": 1, "log_clock_ms": 2}}},
    samples.positions_of: {"topic_id": "x", "positions": {"0": 1}},
}


@pytest.mark.parametrize("read", NEEDED, ids=lambda read: read.__module__)
def test_a_pointer_that_lacks_what_its_job_needs_is_damaged(tmp_path, read):
    store = SnapshotStore(str(tmp_path), check=read)
    newest = store.publish(None, NEEDED[read])
    assert store.latest() == newest
    others = [meta for meta in NEEDED.values() if meta is not newest.meta]
    for meta in (*others, *({k: v for k, v in newest.meta.items() if k != name} for name in newest.meta), [], "x"):
        (store.root / "LATEST").write(orjson.dumps({"format": 1, "sequence": 0, "meta": meta}))
        assert store.latest() == newest, meta


def test_a_pointer_of_a_newer_version_is_never_set_back(store):
    publish(store, publish(store, None))
    (store.root / "LATEST").write(orjson.dumps({"format": 2, "sequence": 1, "meta": {}}))
    with pytest.raises(TableFormatError, match="format 2"):
        store.latest(mend=True)


def test_what_a_pointer_names_is_on_the_disk_before_it(store, monkeypatch):
    synced, sync = [], os.fsync
    monkeypatch.setattr(os, "fsync", lambda fd: (synced.append(Path(f"/proc/self/fd/{fd}").readlink()), sync(fd)))
    publish(store, None)
    names = [path.name for path in synced]
    data, pointer = names.index("part.parquet"), next(n for n, name in enumerate(names) if name.startswith(".LATEST"))
    assert data < pointer
    assert names[pointer + 1] == "view"
