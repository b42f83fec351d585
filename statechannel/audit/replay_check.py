"""Verdicts recorded in an export, and whether this version judges the same: for logs that an earlier version has written.

The file is read several times, and never held in memory.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from hashlib import blake2b
from importlib import metadata
from itertools import chain, tee
from pathlib import Path
from typing import IO, Any, NamedTuple

from statechannel.audit.engine import DEFAULT_COMPACTION_LAG_MS, ProgressBar
from statechannel.audit.errors import ExportFileError
from statechannel.audit.local import audit_export, read_log
from statechannel.audit.transfer.export_file import ExportFile, write_export
from statechannel.audit.transfer.line import LINK_BYTES, ExportLine, RecordedReplay, end_of_verdicts
from statechannel.files import UnreadableFileError, load_json, opened
from statechannel.protocol.log import RecordRead
from statechannel.protocol.verdict import Verdict
from statechannel.protocol.view import Judgement

_NOT_JUDGED = 0xFF
_VERDICTS = tuple(Verdict)
_LINE_MAX_BYTES = 1 << 20
_END = end_of_verdicts("")[:11]


class RecordedVerdict(NamedTuple):
    """What an earlier replay said of one record."""

    partition: int
    offset: int
    verdict: str | None


@dataclass(frozen=True, slots=True)
class VerdictDifference:
    """A record that this version judges differently.

    Attributes:
        recorded, now: The verdicts; None: not judged.
        why: Why this version judges so, as a sentence.
    """

    partition: int
    offset: int
    key: str
    recorded: str | None
    now: str | None
    why: str


@dataclass(frozen=True, slots=True)
class ReplayComparison:
    """Result of a check.

    Attributes:
        compared: Records with a recorded verdict; `differing` of them have another one now.
        first: The first that differs, in the order of partitions and offsets.
        digest, fast_digest: Of the accepted states by this version: judged one by one, and by the fast path of replays.
        recorded_digest: None: none was recorded.
        software: The version that recorded; empty if it is unknown.
    """

    records: int
    compared: int
    differing: int
    first: VerdictDifference | None
    digest: str
    fast_digest: str
    recorded_digest: str | None
    software: str

    @property
    def same(self) -> bool:
        digests = {self.digest, self.fast_digest, self.recorded_digest or self.digest}
        return self.differing == 0 and len(digests) == 1


def _up_to(lines: Iterator[RecordedVerdict], record: RecordRead) -> Iterator[tuple[RecordedVerdict, bool]]:
    """The lines before a record, which are not judged, and its own."""
    for line in lines:
        own = (line.partition, line.offset) == (record.partition, record.offset)
        yield line, own
        if own:
            return


def record_verdicts(path: Path, progress: ProgressBar) -> RecordedReplay:
    """Add the verdict of each record to an export that was just made, and the digest of the accepted states to its header.

    The digest of the file covers them, so it is another one afterwards.

    Raises:
        ExportFileError: The file is malformed, or cannot be written.
    """
    export = read_log(path, progress, made_here=True)
    with tempfile.TemporaryFile(prefix="statechannel-verdicts-") as codes:
        answer, counts = _judge(export, codes, progress)
        software = metadata.version("statechannel")
        recorded = RecordedReplay(software, answer["digest"], dict(sorted(counts.items())), covered=True)
        codes.seek(0)
        lines, again = tee(_lines(export))

        def verdict_of(_: RecordRead) -> str | None:
            code = codes.read(1)[0]
            return None if code == _NOT_JUDGED else _VERDICTS[code].value

        write_export(
            path,
            replace(export.header, replay=recorded),
            (line.record for line in lines),
            now_ms=lambda: export.header.exported_at_ms,
            headers_of=lambda _: next(again).headers,
            verdict_of=verdict_of,
        )
    return recorded


def _lines(export: ExportFile) -> Iterator[ExportLine]:
    return chain.from_iterable(export.partitions[number].lines() for number in sorted(export.partitions))


def _judge(export: ExportFile, codes: IO[bytes], progress: ProgressBar) -> tuple[dict[str, Any], dict[str, int]]:
    """Judge all records; writes one byte for each, in the order of the file."""
    numbers = {verdict: number for number, verdict in enumerate(_VERDICTS)}
    counts: dict[str, int] = {}
    lines = _places(export)

    def observe(record: RecordRead, judgement: Judgement) -> None:
        for _, own in _up_to(lines, record):
            codes.write(bytes([numbers[judgement.verdict] if own else _NOT_JUDGED]))
        counts[judgement.verdict.value] = counts.get(judgement.verdict.value, 0) + 1

    with progress("judging", export.records, unit="records") as advance:
        answer = audit_export(export, observers=[observe], progress=advance)
    for _ in lines:
        codes.write(bytes([_NOT_JUDGED]))
    return answer, counts


def _places(export: ExportFile) -> Iterator[RecordedVerdict]:
    for number in sorted(export.partitions):
        for record in export.partitions[number]:
            yield RecordedVerdict(record.partition, record.offset, None)


def compare_replay(
    path: Path,
    *,
    verdicts: Path | None,
    digest: str | None,
    progress: ProgressBar,
    compaction_lag_ms: int = DEFAULT_COMPACTION_LAG_MS,
) -> ReplayComparison:
    """Replay an export, and compare with what was recorded in it, or in a file of its own.

    Args:
        verdicts: Verdict file that an earlier version wrote (`audit --verdicts`); None: those in the export.
        digest: Of the accepted states, as an earlier version printed it; None: that in the export.

    Raises:
        ExportFileError: A file cannot be read, is malformed, or the two do not belong together.
    """
    export = read_log(path, progress)
    recorded = export.header.replay
    compared = differing = 0
    first: VerdictDifference | None = None

    def note(line: RecordedVerdict, now: Judgement | None, record: RecordRead | None) -> None:
        nonlocal compared, differing, first
        judged = None if now is None else now.verdict.value
        if line.verdict is None and (now is None or recorded is None):
            return
        compared += 1
        if line.verdict == judged:
            return
        differing += 1
        if first is None:
            key = "" if record is None or record.key is None else record.key.decode(errors="replace")
            why = "this version does not judge it" if now is None else now.why
            first = VerdictDifference(line.partition, line.offset, key, line.verdict, judged, why)

    with _recorded(export, verdicts) as lines:

        def observe(record: RecordRead, judgement: Judgement) -> None:
            for line, own in _up_to(lines, record):
                note(line, judgement if own else None, record if own else None)

        with progress("judging", export.records, unit="records") as advance:
            answer = audit_export(export, compaction_lag_ms=compaction_lag_ms, observers=[observe], progress=advance)
        for line in lines:
            note(line, None, None)
    with progress("replaying", export.records, unit="records") as advance:
        fast = audit_export(export, compaction_lag_ms=compaction_lag_ms, progress=advance)
    known = digest if digest is not None else None if recorded is None else recorded.digest
    software = "" if recorded is None or verdicts is not None else recorded.software
    return ReplayComparison(
        export.records, compared, differing, first, answer["digest"], fast["digest"], known, software
    )


@contextmanager
def _recorded(export: ExportFile, verdicts: Path | None) -> Iterator[Iterator[RecordedVerdict]]:
    if verdicts is None:
        yield (RecordedVerdict(line.record.partition, line.record.offset, line.verdict) for line in _lines(export))
        return
    try:
        with opened(verdicts) as file:
            yield _from_file(verdicts, file, _places(export))
    except UnreadableFileError as error:
        raise ExportFileError(f"{verdicts} {error}.", hint="Check the path.") from error


_OTHER_EXPORT = "Give the verdict file that was made of this export: `audit --file FILE --verdicts VERDICTS`."


def _from_file(path: Path, file: IO[bytes], places: Iterator[RecordedVerdict]) -> Iterator[RecordedVerdict]:
    """Verdicts of a verdict file, which has a line for each record, and their digest."""
    number, digest = 0, blake2b(digest_size=LINK_BYTES)
    for number, place in enumerate(places, start=1):
        line = file.readline(_LINE_MAX_BYTES)
        digest.update(line)
        if not line or line.startswith(_END):
            text = f"{path} ends after {number - 1:,} lines, and the export goes on."
            raise ExportFileError(text, line=number, hint=_OTHER_EXPORT)
        fields = _parsed(path, line, number)
        if (fields.partition, fields.offset) != (place.partition, place.offset):
            text = (
                f"{path}, line {number}: it is of offset {fields.offset} of partition {fields.partition}, and the export has "
                f"offset {place.offset} of partition {place.partition} there."
            )
            raise ExportFileError(text, line=number, hint=_OTHER_EXPORT)
        yield fields
    end = file.readline(_LINE_MAX_BYTES)
    if file.read(1) or not (end.startswith(_END) or not end):
        raise ExportFileError(f"{path} goes on after the end of the export.", line=number + 1, hint=_OTHER_EXPORT)
    if end and end != end_of_verdicts(digest.hexdigest()):
        raise ExportFileError(f"{path} was edited: its digest does not match.", line=number + 1, hint=_OTHER_EXPORT)


def _parsed(path: Path, line: bytes, number: int) -> RecordedVerdict:
    try:
        fields = load_json(line)
    except ValueError as error:
        raise ExportFileError(f"{path}, line {number}: not JSON: {error}.", line=number, hint=_OTHER_EXPORT) from None
    named: Callable[[str], Any] = fields.get if isinstance(fields, dict) else lambda _: None
    partition, offset, verdict = named("partition"), named("offset"), named("verdict")
    if not (type(partition) is int and type(offset) is int and isinstance(verdict, str)):
        text = f"{path}, line {number}: it has no `partition`, `offset` and `verdict`, as a line of a verdict file has."
        raise ExportFileError(text, line=number, hint=_OTHER_EXPORT)
    return RecordedVerdict(partition, offset, verdict)
