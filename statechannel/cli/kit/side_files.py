"""The other topics of a channel beside its export: a file for each, of the same form, with digests of its own.

`export FILE --with-topics` writes them; commands that are given `--file FILE` find them by their names. They hold what the
channel's log does not: who requested what (`requests`), who was alive (`registry`), `policies` and `decisions`.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from statechannel.audit.errors import ExportFileError
from statechannel.audit.registry_story import RegistryStory
from statechannel.audit.transfer.export_file import ExportedRecords, read_export, read_header
from statechannel.audit.transfer.line import BadLine
from statechannel.audit.writers import WritersHeard
from statechannel.engine.membership import decode_member
from statechannel.protocol.log import RecordRead
from statechannel.protocol.side_record import Headers

FileBeside = Annotated[
    Path | None,
    typer.Option(
        "--file", metavar="F", help="Read this export, with the files of its other topics (`export --with-topics`)."
    ),
]
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
    """

    records: Sequence[RecordRead]
    since_ms: int
    end: int

    def headers(self) -> dict[int, Headers]:
        """Headers by offset, of those that have some; none in files of versions that did not export them."""
        return dict(self.records.headers()) if isinstance(self.records, ExportedRecords) else {}


def side_file(export: Path, role: SideRole) -> Path:
    """Name of the file of a topic beside an export: `ev.jsonl` has `ev.requests.jsonl`."""
    if not export.name:
        return export / f"{role}{_SUFFIX}"  # `.` or `/`, which is refused as an export
    return export.with_name(f"{export.stem}.{role}{export.suffix or _SUFFIX}")


def side_files(export: Path) -> dict[SideRole, Path]:
    """Those that exist; a folder or a broken link is refused by its reader, as it hides that the file is missing."""
    return {role: path for role in SideRole if os.path.lexists(path := side_file(export, role))}


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


def side_records(export: Path, role: SideRole) -> SideRecords | None:
    """The records of a topic; None: it has no file.

    Raises:
        ExportFileError: The file was edited, is malformed, or has another topic.
    """
    path = side_file(export, role)
    if not os.path.lexists(path):
        return None
    side = read_export(path)
    require_topic_of(export, role, side.header.topic)
    records, end = side.partitions.get(0), side.header.end_offsets[0]
    if not records:
        return SideRecords((), 0 if not end else side.header.exported_at_ms, end)
    first = records[0]
    return SideRecords(records, 0 if first.offset == 0 else first.timestamp_ms, end)


def story_of_file(export: Path) -> RegistryStory | None:
    """Fold of the registry's file; None: there is none.

    Raises:
        ExportFileError: The file was edited, or is malformed.
    """
    side = side_records(export, SideRole.REGISTRY)
    if side is None:
        return None
    story = RegistryStory(_EXPIRY_S)
    for record in side.records:
        info = decode_member(record.value)
        if info is not None:
            story.observe(record, info)
    return story


def writers_of_file(export: Path) -> WritersHeard | None:
    """What the registry's file shows of the processes; None: there is none."""
    story = story_of_file(export)
    return None if story is None else story.writers
