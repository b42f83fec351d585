"""Versioned folders with a pointer that is written last: what a reader sees is always whole.

A table lies in `ROOT/v=<sequence>/`; `ROOT/LATEST` names the one that counts, with what its writer says of it (offsets, digest).
Spark writes the folder; the pointer is moved in one step, after everything else. A writer that died before that leaves a folder
that no pointer names, and the next attempt at the same sequence removes it. One that died after it has finished. Each small file
that the next start needs has a copy in the folder that it is about: `v=<sequence>/_LATEST`. Where disks may lose what was not
synced, all that a pointer names is synced before it.

Paths are those of `pyarrow.fs`: a plain path, or a URI (`file://`, `hdfs://`, `s3://`).
"""

from __future__ import annotations

import logging
import os
import re
import uuid
from collections.abc import Callable
from copy import copy
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import orjson
from pyarrow import fs

from spark.errors import TableChangedError, TableFormatError

FORMAT = 1
POINTER = "LATEST"
_PATTERN = re.compile(r"([\\*?{}\[\]])")
_SNAPSHOT = re.compile(r"v=[0-9]{12}")
_RUN = re.compile(r"run-[0-9a-f]{32}")
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Pointer:
    """What `LATEST` says.

    Attributes:
        sequence: Number of the snapshot; it grows by one with each, whatever became of checkpoints.
    """

    sequence: int
    meta: dict[str, Any]


class Folder:
    """A folder of any file system that pyarrow knows; a TableFormatError where the place is none."""

    def __init__(self, place: str) -> None:
        self.uri = as_uri(place)
        try:
            self.files, self.path = fs.FileSystem.from_uri(self.uri)
        except ValueError as error:
            raise TableFormatError(place, str(error)) from error

    def __truediv__(self, name: str) -> Folder:
        below = copy(self)
        below.uri, below.path = f"{self.uri}/{name}", f"{self.path}/{name}"
        return below

    @property
    def place(self) -> str:
        """Its name where Spark writes: Hadoop's paths are URIs without escapes."""
        return f"file://{self.path}" if self.uri.startswith("file:") else self.uri

    @property
    def pattern(self) -> str:
        """Its name where Spark reads: brackets and stars would be patterns there."""
        return as_pattern(self.place)

    def names(self) -> list[str]:
        """Names of what lies in it, sorted; none where it does not exist, or is a file."""
        try:
            infos = self.files.get_file_info(fs.FileSelector(self.path, allow_not_found=True))
        except NotADirectoryError:
            return []
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
        except (FileNotFoundError, NotADirectoryError):
            return None

    def write(self, content: bytes) -> None:
        """Make it a file of this content in one step: a reader sees the old one or the new one."""
        parent, _, name = self.path.rpartition("/")
        self.files.create_dir(parent, recursive=True)
        scratch = f"{parent}/.{name}.{os.getpid()}.part"
        with self.files.open_output_stream(scratch) as stream:
            stream.write(content)
        self._sync(scratch)
        self.files.move(scratch, self.path)
        self._sync(parent)

    def move_to(self, other: Folder) -> None:
        """Give it another name on the same file system."""
        self.files.move(self.path, other.path)
        self._sync(*Path(other.path).parents[:2])  # the folder of the other one may be new

    def sync(self) -> None:
        """Have all that lies in it on the disk."""
        if self.exists():
            self._sync(*Path(self.path).rglob("*"), self.path)

    def _sync(self, *paths: str | Path) -> None:
        # Object stores have what they have acknowledged.
        for path in paths if isinstance(self.files, fs.LocalFileSystem) else ():
            number = os.open(path, os.O_RDONLY)
            try:
                os.fsync(number)
            finally:
                os.close(number)


def as_pattern(place: str) -> str:
    return _PATTERN.sub(r"\\\1", place)


def new_checkpoint(uri: str) -> str:
    """A new folder below this one, as Spark names it, for one run of a query; those of earlier runs are removed.

    The tables say where the jobs go on: a checkpoint is scratch to them.
    """
    root = Folder(uri)
    root.files.create_dir(root.path, recursive=True)
    for name in root.names():
        if _RUN.fullmatch(name):
            (root / name).remove()
    return (root / f"run-{uuid.uuid4().hex}").place


class SnapshotStore:
    """Snapshots of one table.

    Args:
        keep: Number of snapshots that readers who are still at it can rely on.
        check: Reads what is needed of a pointer's `meta`; a pointer is damaged where that fails.
    """

    def __init__(self, uri: str, keep: int = 10, check: Callable[[dict[str, Any]], object] = dict.copy) -> None:
        self.root = Folder(uri)
        self.keep = max(1, keep)
        self._check = check

    def latest(self, *, mend: bool = False) -> Pointer | None:
        """The snapshot that counts; None before the first. A pointer that was lost or damaged is taken from its copy.

        Args:
            mend: Write it again then; for the table's own job.

        Raises:
            TableFormatError: The pointer is not one of this version's.
        """
        content = (self.root / POINTER).read()
        if (pointer := self._parsed(content)) is not None:
            return pointer
        spare = self.copy_of(POINTER)
        if (pointer := self._parsed(spare)) is not None:
            _log.warning("%s has no sound pointer: its copy in snapshot %d counts", self.root.uri, pointer.sequence)
            if mend and spare:
                (self.root / POINTER).write(spare)
        elif content is not None or spare is not None:
            raise TableFormatError(self.root.uri, "its pointer cannot be read")
        return pointer

    def _parsed(self, content: bytes | None) -> Pointer | None:
        """The pointer; None for any other content."""
        try:
            loaded = orjson.loads(content or b"")
            if (version := loaded["format"]) == FORMAT:
                self._check(loaded["meta"])
                return Pointer(sequence, loaded["meta"]) if (sequence := loaded["sequence"]) >= 0 else None
        except (AttributeError, LookupError, TypeError, ValueError):
            return None
        raise TableFormatError(self.root.uri, f"its pointer has format {version!r}, not {FORMAT}")

    def copy_of(self, name: str) -> bytes | None:
        """The newest copy of a small file; None where there is none."""
        folders = (self.root / folder for folder in reversed(self.root.names()) if _SNAPSHOT.fullmatch(folder))
        return next((copy for folder in folders if (copy := (folder / f"_{name}").read()) is not None), None)

    def write(self, name: str, content: bytes, sequence: int) -> None:
        """Write a small file, then its copy in the folder of the snapshot that it is about."""
        for place in (self.root / name, self.folder(sequence) / f"_{name}"):
            place.write(content)

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
        self.folder(pointer.sequence).sync()
        self.write(POINTER, orjson.dumps(content, option=orjson.OPT_INDENT_2), pointer.sequence)
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
            if _SNAPSHOT.fullmatch(name) and name <= _name(newest - self.keep):
                (self.root / name).remove()


def _name(sequence: int) -> str:
    return f"v={sequence:012d}"


def as_uri(place: str) -> str:
    """A path, or a URI, as a URI; that of a file has one form.

    Raises:
        TableFormatError: It is neither.
    """
    try:
        parts = urlsplit(place)
        is_file = parts.scheme == "file" and not parts.netloc
        if is_file:
            place = unquote(parts.path, errors="strict")
        elif "://" in place:
            return place.rstrip("/")
        place.encode()
        uri = Path(place).expanduser().resolve().as_uri()
    except (ValueError, RuntimeError) as error:
        raise TableFormatError(place, str(error)) from error
    if is_file and (parts.query or parts.fragment or not parts.path.startswith("/")):
        raise TableFormatError(place, "the path of a file URI begins with /, and has `?` and `#` as %3F and %23")
    return uri
