"""Imports into a log in memory: what `statechannel import` does on a Kafka, record by record, without one."""

from collections.abc import Callable, Iterable
from itertools import count
from random import Random

from statechannel.audit.transfer.import_plan import ImportPlan
from statechannel.audit.transfer.import_run import Importer, ImportStage, ImportWrite
from statechannel.protocol.log import RecordRead, Topic

Log = dict[int, list[tuple[bytes | None, bytes | None]]]
"""Records of each partition; the offset is the index."""


class KilledError(Exception):
    """The importing process died."""


def empty_log(partitions: int) -> Log:
    return {number: [] for number in range(partitions)}


def importer_for(plan: ImportPlan, partitions: int, process: str = "i1") -> Importer:
    ids = count()
    return Importer(
        plan,
        partitions,
        incarnation=process,
        new_id=lambda: f"{process}-{next(ids)}",
        about="a test",
        facts={},
        now_ms=lambda: 0,
    )


def read_on(importer: Importer, log: Log, partition: int) -> None:
    """The importer reads a partition to its end."""
    for offset in range(importer.position(partition), len(log[partition])):
        key, value = log[partition][offset]
        importer.take(RecordRead(Topic.CHANNEL, partition, offset, 1_000 + offset, key, value))


def survey(importer: Importer, log: Log) -> None:
    for partition in log:
        read_on(importer, log, partition)
    importer.surveyed()


def run_import(
    importer: Importer,
    log: Log,
    *,
    window: int = 4,
    rng: Random | None = None,
    before_append: Callable[[ImportWrite], None] = lambda _: None,
) -> None:
    """Carry it out.

    Args:
        rng: Reads come late by chance.
        before_append: Called before each record; raises where the process dies.
    """

    def append(writes: Iterable[ImportWrite]) -> None:
        for write in writes:
            before_append(write)
            log[write.partition].append((write.key, write.value))

    survey(importer, log)
    while importer.stage is not ImportStage.DONE:
        for partition in log:
            if importer.stage is not ImportStage.RECORDS:
                mark = importer.marks(partition)
                append([] if mark is None else [mark])
                read_on(importer, log, partition)
                continue
            while not importer.is_written(partition):
                append(importer.writes(partition, window))
                if rng is None or rng.random() < 0.7:
                    read_on(importer, log, partition)
        importer.go_on()
