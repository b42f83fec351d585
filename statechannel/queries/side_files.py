"""The other topics of a channel beside its export: a file for each, of the same form. The export's digest covers theirs.

`export FILE --with-topics` writes them; commands that are given `--file FILE` find them by their names. They hold what the
channel's log does not: who requested what (`requests`), who was alive (`registry`), `policies` and `decisions`.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING

from statechannel.audit.errors import ExportFileError
from statechannel.audit.transfer.export_file import ExportedRecords, read_export, read_header
from statechannel.audit.transfer.line import BadLine, ExportHeader
from statechannel.protocol.log import RecordRead
from statechannel.protocol.side_record import Headers

if TYPE_CHECKING:  # files are read sooner without the Kafka client
    from statechannel.queries.connection import AnswerReporter
from statechannel.stories.processes import RegistryStory, WritersHeard
from statechannel.stories.registry import heartbeats
from statechannel.stories.requests import RequestStory, stories_of

_SUFFIX = ".jsonl"
_EXPIRY_S = 6.0
"""Of processes whose heartbeats do not say their own."""


class SideRole(StrEnum):
    """The topics that are exported beside the channel's."""

    REGISTRY = "registry"
    REQUESTS = "requests"
    POLICIES = "policies"
    DECISIONS = "decisions"


@dataclass(frozen=True, slots=True)
class SideRecords:
    """The records of one topic, from its file.

    Attributes:
        since_ms: They are complete from this log time on; 0: from the beginning.
        end: Offset of the topic's next record.
        read_ms: When they were exported.
    """

    records: Sequence[RecordRead]
    since_ms: int
    end: int
    read_ms: int

    def headers(self) -> dict[int, Headers]:
        """Headers by offset, of those that have some; none in files of versions that did not export them."""
        return dict(self.records.headers()) if isinstance(self.records, ExportedRecords) else {}


def side_file(export: Path, role: SideRole) -> Path:
    """Name of the file of a topic beside an export: `ev.jsonl` has `ev.requests.jsonl`."""
    if not export.name:
        return export / f"{role}{_SUFFIX}"  # `.` or `/`, which is refused as an export
    return export.with_name(f"{export.stem}.{role}{export.suffix or _SUFFIX}")


class SideStatus(StrEnum):
    """How a file beside an export stands to it.

    Attributes:
        COVERED: It is the one that was made with the export, whose digest covers it.
        REPLACED: It was edited or rewritten, or is of another export.
        MISSING: It was made with the export.
        FOREIGN: The export was made without one.
        UNCOVERED: The export, of an earlier version, does not say what was made with it.
        UNCHAINED: Likewise, and it has no digest of its own either.
    """

    COVERED = "covered"
    REPLACED = "replaced"
    MISSING = "missing"
    FOREIGN = "foreign"
    UNCOVERED = "uncovered"
    UNCHAINED = "unchained"


def header_of(export: Path) -> ExportHeader | None:
    """The header of an export; None if it has none, which the reader of its records says."""
    try:
        return read_header(export)
    except (OSError, BadLine):
        return None


def side_status(header: ExportHeader | None, role: SideRole, side: ExportHeader | None) -> SideStatus | None:
    """How a file stands to its export; None: there is none, and none was made.

    Args:
        header: Of the export.
        side: Of the file; None: there is no file.
    """
    covered = None if header is None else header.beside
    if covered is None:
        if side is None:
            return None
        return SideStatus.UNCHAINED if side.digest is None else SideStatus.UNCOVERED
    if role not in covered:
        return None if side is None else SideStatus.FOREIGN
    if side is None:
        return SideStatus.MISSING
    return SideStatus.COVERED if side.digest == covered[role] else SideStatus.REPLACED


def side_files(export: Path) -> dict[SideRole, Path]:
    """Those that belong to the export, as far as it says so, and exist, whatever they are.

    A folder or a broken link is refused by its reader: as a missing file it would say that there is nothing.
    """
    header = header_of(export)
    covered = None if header is None else header.beside
    return {
        role: path
        for role in SideRole
        if (covered is None or role in covered) and os.path.lexists(path := side_file(export, role))
    }


def require_export(path: Path) -> None:
    """Refuse a file that cannot be read as an export; that the file of a topic is missing says nothing then.

    Raises:
        ExportFileError: The file cannot be read, or does not begin as an export does.
    """
    try:
        read_header(path)
    except (OSError, BadLine):
        read_export(path)  # has the message


def require_topic_of(export: Path, role: SideRole, topic: str) -> None:
    """Refuse a file of a wrong topic: it would be read as if nothing were in it.

    Args:
        topic: By the header of the file beside the export.

    Raises:
        ExportFileError: It is not this topic of the export's channel.
    """
    try:
        wanted = f"{read_header(export).topic}-{role}"
    except (OSError, BadLine):
        return  # the reader of the export has the message
    if topic != wanted:
        raise ExportFileError(
            f"{side_file(export, role)} is an export of {topic}, not of {wanted}.",
            hint="Put the file of this channel there; `statechannel export FILE --with-topics` writes them together.",
        )


def side_records(export: Path, role: SideRole, reporter: AnswerReporter) -> SideRecords | None:
    """The records of a topic, with a note where the file is missing, or not covered by the export's digest; None: it has no file.

    Raises:
        ExportFileError: The file was edited or replaced, is malformed, or has another topic.
    """
    path, header = side_file(export, role), header_of(export)
    side = read_export(path) if os.path.lexists(path) else None
    status = side_status(header, role, None if side is None else side.header)
    if side is not None and status is not SideStatus.FOREIGN:
        require_topic_of(export, role, side.header.topic)
    if status is SideStatus.REPLACED:
        raise ExportFileError(
            f"{path} is not the file that was made with {export}: it was edited or rewritten, or is of another export."
        )
    _note_status(reporter, export, path, status, chained=header is not None and header.digest is not None)
    if side is None or status is SideStatus.FOREIGN:
        return None
    records, end, read_ms = side.partitions.get(0), side.header.end_offsets[0], side.header.exported_at_ms
    if not records:
        return SideRecords((), 0 if not end else read_ms, end, read_ms)
    first = records[0]
    return SideRecords(records, 0 if first.offset == 0 else first.timestamp_ms, end, read_ms)


def _note_status(
    reporter: AnswerReporter, export: Path, path: Path, status: SideStatus | None, *, chained: bool
) -> None:
    """Note what is not certain about a file; an export without digests has a note of its own."""
    if status is SideStatus.MISSING:
        reporter.note(
            f"note: {path} is missing: it was made with {export}, and what only it shows is not in the answer",
            once=True,
        )
    elif status is SideStatus.FOREIGN:
        reporter.note(f"note: {path} was not made with {export}, and is not read", once=True)
    elif status is SideStatus.UNCHAINED:
        reporter.note(
            f"note: {path} has no digest of its records (of an earlier version, or removed): edits cannot be detected",
            once=True,
        )
    elif status is SideStatus.UNCOVERED and chained:
        reporter.note(
            f"note: the digest of {export}, of an earlier version, does not cover the files next to it: compare theirs, too "
            "(`statechannel audit verify-export`)",
            once=True,
        )


def requests_of_file(export: Path, reporter: AnswerReporter) -> Mapping[str, RequestStory] | None:
    """Requests of their file, by id; None: there is none.

    Raises:
        ExportFileError: The file was edited, or is malformed.
    """
    side = side_records(export, SideRole.REQUESTS, reporter)
    return None if side is None else stories_of(side.records)


def story_of_file(export: Path, reporter: AnswerReporter) -> RegistryStory | None:
    """Fold of the registry's file; None: there is none.

    Raises:
        ExportFileError: The file was edited, or is malformed.
    """
    side = side_records(export, SideRole.REGISTRY, reporter)
    if side is None:
        return None
    story = RegistryStory(_EXPIRY_S)
    for record, info in heartbeats(side.records):
        story.observe(record, info)
    story.writers.read_ms = side.read_ms
    return story


def writers_of_file(export: Path, reporter: AnswerReporter) -> WritersHeard | None:
    """What the registry's file shows of the processes; None: there is none."""
    story = story_of_file(export, reporter)
    return None if story is None else story.writers
