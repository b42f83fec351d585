"""Observers of judged records, several as one, and the one that writes a verdict file (design/cli.md, `--verdicts`)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import orjson

from statechannel.audit.transfer.line import text_or_base64
from statechannel.files import new_file
from statechannel.protocol.log import RecordRead
from statechannel.protocol.view import Judgement

Observe = Callable[[RecordRead, Judgement], None]


def each_of(observers: Sequence[Observe]) -> Observe | None:
    """Several observers as one; None if there is none."""
    if len(observers) <= 1:
        return observers[0] if observers else None

    def observe(record: RecordRead, judgement: Judgement) -> None:
        for observer in observers:
            observer(record, judgement)

    return observe


def format_verdict(record: RecordRead, judgement: Judgement) -> bytes:
    """One line: version and state are the record's own, null if it is undecodable."""
    decoded = judgement.record
    return orjson.dumps(
        {
            "partition": record.partition,
            "offset": record.offset,
            **text_or_base64("key", record.key),
            "verdict": judgement.verdict.value,
            "version": None if decoded is None else decoded.version,
            "state": None if decoded is None else decoded.state.value,
        },
        option=orjson.OPT_APPEND_NEWLINE,
    )


@contextmanager
def verdict_file(path: Path) -> Iterator[Observe]:
    """Open the file for an audit; it is created only if the audit succeeds.

    Raises:
        FileUnwritableError: It cannot be written.
        NotReplaceableError: It is a device or a pipe.
    """
    with new_file(path) as file:

        def observe(record: RecordRead, judgement: Judgement) -> None:
            file.write(format_verdict(record, judgement))

        yield observe
