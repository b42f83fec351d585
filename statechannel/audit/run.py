"""The audit of an export file: the rules are `statechannel.core.auditor`'s, this puts the question together."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from enum import StrEnum
from pathlib import Path
from typing import Any

from statechannel.audit.as_of import AsOf
from statechannel.audit.errors import AuditQuestionError
from statechannel.audit.export_file import ExportFile
from statechannel.audit.verdict_file import Observe, verdict_file
from statechannel.core import auditor
from statechannel.core.inputs import RecordRead
from statechannel.core.view import Judgement

DEFAULT_COMPACTION_LAG_MS = 3_600_000
_EVERY = 5_000


class Read(StrEnum):
    """How a log is read."""

    FULL = "full"
    JOIN = "join"
    AUTO = "auto"


def audit_export(
    export: ExportFile,
    *,
    read: Read = Read.AUTO,
    as_of: AsOf | None = None,
    compaction_lag_ms: int = DEFAULT_COMPACTION_LAG_MS,
    verdicts: Path | None = None,
    observers: Sequence[Observe] = (),
    progress: Callable[[int], None] = lambda _: None,
) -> dict[str, Any]:
    """Audit an export file.

    Args:
        as_of: The moment looked at; None: the end of the log.
        compaction_lag_ms: `min.compaction.lag.ms` of the topic.
        verdicts: File to write a line a record to; only for a full read.
        observers: Told every strictly judged record, in log order.
        progress: Told the number of strictly judged records, now and then.

    Raises:
        AuditQuestionError: A full read, or verdicts, of a log with gaps; verdicts of a join read.
        ExportFileError: The verdicts cannot be written.
    """
    if verdicts is not None and read is Read.JOIN:
        raise AuditQuestionError(
            "Verdicts are had of a full read only, not of --read join.",
            hint="A joining reader has no verdict on what it takes leniently; leave out --verdicts or --read join.",
        )
    with ExitStack() as stack:
        told = list(observers)
        if verdicts is not None:
            told.append(stack.enter_context(verdict_file(verdicts)))
        try:
            return auditor.audit(
                dict(export.partitions),
                end_offsets=dict(export.header.end_offsets),
                read=Read.FULL if verdicts is not None else read,
                now_ms=export.header.exported_at_ms,
                compaction_lag_ms=compaction_lag_ms,
                as_of=as_of,
                observe=_all(told, progress),
            )
        except ValueError as error:
            raise AuditQuestionError(
                f"{export.path} cannot be read in full: {error}.",
                hint="--verdicts needs a full read." if verdicts else "Use --read join, or auto.",
            ) from error


def _all(observers: Sequence[Observe], progress: Callable[[int], None]) -> Observe:
    number = 0

    def observe(record: RecordRead, judgement: Judgement) -> None:
        nonlocal number
        number += 1
        for observer in observers:
            observer(record, judgement)
        if number % _EVERY == 0:
            progress(number)

    return observe
