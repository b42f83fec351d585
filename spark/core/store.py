"""Versioned folders with a pointer that is written last: what a reader sees is always whole.

A table lies in `ROOT/v=<sequence>/`; `ROOT/LATEST` names the one that counts, with what its writer says of it (offsets, digest).
Spark writes the folder; the pointer is moved in one step, after everything else. A writer that died before that leaves a folder
that no pointer names, and the next attempt at the same sequence removes it. One that died after it has finished.

Paths are those of `pyarrow.fs`: a plain path, or a URI (`file://`, `hdfs://`, `s3://`).
"""

from __future__ import annotations

import os
import re
import uuid
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import orjson
from pyarrow import fs

from spark.errors import TableChangedError, TableFormatError

FORMAT = 1
POINTER = "LATEST"
_PATTERN = re.compile(r"([\\*?{}\[\]])")
_RUN = "run-"


@dataclass(frozen=True, slots=True)
class Pointer:
    """What `LATEST` says.

    Attributes:
        sequence: Number of the snapshot; it grows by one with each, whatever became of checkpoints.
    """

    sequence: int
    meta: dict[str, Any]


class Folder:
    """A folder of any file system that pyarrow knows."""

    def __init__(self, uri: str) -> None:
        self.uri = _as_uri(uri)
        self.files, self.path = fs.FileSystem.from_uri(self.uri)

    def __truediv__(self, name: str) -> Folder:
        return Folder(f"{self.uri}/{name}")

    @property
    def place(self) -> str:
        """Its name where Spark writes: Hadoop's paths are URIs without escapes."""
        return f"file://{self.path}" if self.uri.startswith("file:") else self.uri

    @property
    def pattern(self) -> str:
        """Its name where Spark reads: brackets and stars would be patterns there."""
        return _PATTERN.sub(r"\\\1", self.place)

    def names(self) -> list[str]:
        """Names of what lies in it, sorted; none where it does not exist."""
        infos = self.files.get_file_info(fs.FileSelector(self.path, allow_not_found=True))
        return sorted(info.base_name for info in infos)

    def exists(self) -> bool:
        """Whether it, or a file of this name, is there."""
        return bool(self.files.get_file_info(self.path).type != fs.FileType.NotFound)

    def remove(self) -> None:
        """Take it away with all that it holds; nothing where there is nothing."""
        kind = self.files.get_file_info(self.path).type
        if kind == fs.FileType.Directory:
            self.files.delete_dir(self.path)
        elif kind != fs.FileType.NotFound:
            self.files.delete_file(self.path)

    def read(self) -> bytes | None:
        """Content of the file of this name; None where there is none."""
        try:
            with self.files.open_input_stream(self.path) as stream:
                content: bytes = stream.read()
                return content
        except FileNotFoundError:
            return None

    def write(self, content: bytes) -> None:
        """Make it a file of this content in one step: a reader sees the old one or the new one."""
        parent, _, name = self.path.rpartition("/")
        self.files.create_dir(parent, recursive=True)
        scratch = f"{parent}/.{name}.{os.getpid()}.part"
        with self.files.open_output_stream(scratch) as stream:
            stream.write(content)
        self.files.move(scratch, self.path)

    def move_to(self, other: Folder) -> None:
        """Give it another name on the same file system."""
        self.files.move(self.path, other.path)


def new_checkpoint(uri: str) -> str:
    """A new folder below this one, as Spark names it, for one run of a query; those of earlier runs are removed.

    For jobs whose table says where they go on: a checkpoint is scratch to them.
    """
    root = Folder(uri)
    for name in root.names():
        if name.startswith(_RUN):
            (root / name).remove()
    return (root / f"{_RUN}{uuid.uuid4().hex}").place


class SnapshotStore:
    """Snapshots of one table.

    Args:
        keep: Number of snapshots that readers who are still at it can rely on.
    """

    def __init__(self, uri: str, keep: int = 10) -> None:
        self.root = Folder(uri)
        self.keep = max(1, keep)

    def latest(self) -> Pointer | None:
        """The snapshot that counts; None before the first.

        Raises:
            TableFormatError: The pointer is not one of this version's.
        """
        content = (self.root / POINTER).read()
        if content is None:
            return None
        try:
            loaded = orjson.loads(content)
            if loaded["format"] != FORMAT:
                raise TableFormatError(self.root.uri, f"its pointer has format {loaded['format']!r}, not {FORMAT}")
            return Pointer(int(loaded["sequence"]), loaded["meta"])
        except (orjson.JSONDecodeError, KeyError, TypeError, ValueError) as error:
            raise TableFormatError(self.root.uri, f"its pointer cannot be read: {error}") from error

    def folder(self, sequence: int) -> Folder:
        return self.root / _name(sequence)

    def begin(self, base: Pointer | None) -> tuple[int, Folder]:
        """The next sequence and its folder, empty: leftovers of a writer that died are removed.

        Raises:
            TableChangedError: Another writer has published since `base` was read; that folder may be the one that counts.
        """
        self.check_newest(base)
        sequence = 0 if base is None else base.sequence + 1
        folder = self.folder(sequence)
        folder.remove()
        return sequence, folder

    def publish(self, base: Pointer | None, meta: dict[str, Any]) -> Pointer:
        """Make the snapshot behind `base` the one that counts, and drop those that are too old.

        Raises:
            TableChangedError: Another writer has published since `base` was read: two writers on one table.
        """
        self.check_newest(base)
        pointer = Pointer(0 if base is None else base.sequence + 1, meta)
        content = {"format": FORMAT, "sequence": pointer.sequence, "path": _name(pointer.sequence), "meta": meta}
        (self.root / POINTER).write(orjson.dumps(content, option=orjson.OPT_INDENT_2))
        self._drop_older(pointer.sequence)
        return pointer

    def check_newest(self, base: Pointer | None) -> None:
        """Check that no other writer has published since `base` was read.

        Raises:
            TableChangedError: Another writer has.
        """
        newest = self.latest()
        if (newest is None) != (base is None) or (newest and base and newest.sequence != base.sequence):
            raise TableChangedError(self.root.uri, None if newest is None else newest.sequence)

    def _drop_older(self, newest: int) -> None:
        for name in self.root.names():
            number = name.removeprefix("v=")
            if name.startswith("v=") and number.isdigit() and int(number) <= newest - self.keep:
                (self.root / name).remove()


def _name(sequence: int) -> str:
    return f"v={sequence:012d}"


def _as_uri(place: str) -> str:
    if urlsplit(place).scheme and "://" in place:
        return place.rstrip("/")
    return Path(place).expanduser().resolve().as_uri()
