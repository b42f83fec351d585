"""Logs that the tasks of a fold read by themselves: each reads all of it, and keeps the namespaces that are its own.

A record that passes through Spark is copied field by field into a row, into the shuffle, out of it, and into Arrow's columns
for Python, which takes about as long as judging it. pyarrow reads a record of an archive in a tenth of this time, and the
channel's own client one of a topic in a third. Up to some number of tasks it is cheaper that all of them read everything. It
needs workers on this machine: those of a cluster lack the client, and read from farther away.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from heapq import heapify, heapreplace
from itertools import groupby
from typing import TYPE_CHECKING, Any, Final
from zlib import crc32

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from spark.core.store import Folder

if TYPE_CHECKING:
    from pyarrow import fs

    from spark.core.archive import Archive, StoredFile

RECORDS: Final = pa.schema(
    [
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("timestamp_ms", pa.int64()),
        ("key", pa.binary()),
        ("value", pa.binary()),
    ]
)
"""A record. A note of a reader (`fold.NOTE_PARTITION`) has its split's place for an offset and its content for a value."""

SORTED_RECORDS_MAX: Final = 250_000
"""The files of a batch that has no more records than these are sorted together; of a larger one they are read in turn."""

_NAMESPACE: Final = "^(?P<name>[^/]*/[^/]*)"
READ_RECORDS: Final = 16_384
"""Records of a batch, about: what is done once a batch costs nothing then."""

_READ_BYTES: Final = 1 << 20

Records = Iterator[pa.RecordBatch]


@dataclass(frozen=True, slots=True)
class Share:
    """What one of the tasks keeps of a log: some namespaces whole. The first one also keeps records of no namespace.

    Attributes:
        planned: Task of each namespace that is known to be large; those of the others follow from their names.
    """

    task: int
    tasks: int
    planned: Mapping[bytes, int] = field(default_factory=dict)

    def own(self, keys: pa.Array) -> np.ndarray[Any, Any]:
        names = pc.struct_field(pc.extract_regex(keys, _NAMESPACE), [0]).dictionary_encode()
        own = [self._task_of(name) == self.task for name in names.dictionary.to_pylist()]
        codes = pc.fill_null(names.indices, len(own)).to_numpy(zero_copy_only=False)
        kept: np.ndarray[Any, Any] = np.array([*own, self.task == 0], dtype=bool)[codes]
        return kept

    def _task_of(self, name: bytes) -> int:
        planned = self.planned.get(name)
        return crc32(name) % self.tasks if planned is None else planned


def shares_of(sizes: Mapping[bytes, int], tasks: int) -> list[Share]:
    """Shares of about the same size.

    Args:
        sizes: Records of each namespace, or of the large ones; about, since nothing but the speed depends on it.
    """
    loads = [(0, task) for task in range(tasks)]
    heapify(loads)
    planned = {}
    for name, size in sorted(sizes.items(), key=lambda item: (-item[1], item[0])):
        load, task = loads[0]
        planned[name] = task
        heapreplace(loads, (load + size, task))
    return [Share(task, tasks, planned) for task in range(tasks)]


@dataclass(frozen=True, slots=True)
class DirectLog:
    """A log that workers read.

    Attributes:
        read: The records of a share in log order, in columns of `RECORDS`: at least those that are named.
        sizes: Records of the large namespaces, about.
    """

    read: Callable[[Share, Sequence[str]], Records]
    sizes: Callable[[], Mapping[bytes, int]]


def archive_reader(archive: Archive, positions: Mapping[int, int] | None) -> Callable[[Share, Sequence[str]], Records]:
    """Reader of an archive as it is now.

    Args:
        positions: Offset of each partition from which on records do not count; None: all count.
    """
    files, uri = archive.stored_files(), archive.root.uri
    limits = None if positions is None else dict(positions)

    def read(share: Share, columns: Sequence[str]) -> Records:
        for batch in _archived(Folder(uri).files, files, pa.schema([RECORDS.field(name) for name in columns])):
            own = share.own(batch.column("key"))
            if limits is not None:
                own &= _below(batch, limits)
            yield batch if own.all() else batch.filter(pa.array(own))

    return read


def _archived(place: fs.FileSystem, files: Iterable[StoredFile], schema: pa.Schema) -> Records:
    for _, each in groupby(files, key=lambda file: file.batch):
        with ExitStack() as opened:
            batch = [opened.enter_context(_file(place, file.path)) for file in each]
            if sum(file.metadata.num_rows for file in batch) <= SORTED_RECORDS_MAX:
                whole = pa.concat_tables(file.read(schema.names, use_threads=False) for file in batch)
                yield from _in_order(whole).cast(schema).to_batches()
                continue
            for file in batch:
                for rows in file.iter_batches(READ_RECORDS, columns=schema.names, use_threads=False):
                    yield rows.cast(schema)


def _file(place: fs.FileSystem, path: str) -> pq.ParquetFile:
    # With `pre_buffer`, the default, a file holds all that was read of it until it is closed.
    try:
        return pq.ParquetFile(
            path, filesystem=place, pre_buffer=False, buffer_size=_READ_BYTES, page_checksum_verification=True
        )
    except pa.ArrowInvalid as error:
        raise OSError(f"{path}: {error}") from error


def _in_order(table: pa.Table) -> pa.Table:
    """By partition and offset: a batch has its namespaces one after the other."""
    partitions, offsets = (table.column(name).to_numpy() for name in ("partition", "offset"))
    rises = (partitions[1:] > partitions[:-1]) | ((partitions[1:] == partitions[:-1]) & (offsets[1:] > offsets[:-1]))
    return table if rises.all() else table.take(pa.array(np.lexsort((offsets, partitions))))


def _below(batch: pa.RecordBatch, positions: Mapping[int, int]) -> np.ndarray[Any, Any]:
    partitions, offsets = (batch.column(name).to_numpy(zero_copy_only=False) for name in ("partition", "offset"))
    counts = np.zeros(batch.num_rows, dtype=bool)
    for number in np.unique(partitions).tolist():
        counts |= (partitions == number) & (offsets < positions.get(number, 0))
    return counts
