"""Reads and writes snapshot files, and says of a bad one which field is wrong, what is wanted there, and what to do."""

from __future__ import annotations

from pathlib import Path

import orjson
from pydantic import ValidationError

from loaddata.bulk import uncollected
from shedders.snapshot import FORMAT, KIND, Snapshot
from shedders.snapshot_faults import SnapshotError, contradictions, sentence
from shedders.snapshot_json import load_json

SIZE_MAX_BYTES = 1 << 30


def read_snapshot(path: Path) -> Snapshot:
    """Read and check a snapshot file.

    Raises:
        SnapshotError: It cannot be read, is no JSON, breaks the format, or contradicts itself.
    """
    try:
        size_bytes = path.stat().st_size
        if size_bytes > SIZE_MAX_BYTES:
            raise SnapshotError(
                str(path), [f"it has {size_bytes} bytes, at most {SIZE_MAX_BYTES} are read"], hint="Check the path."
            )
        raw = path.read_bytes()
    except (OSError, ValueError) as error:  # ValueError: a path with a null character
        why = getattr(error, "strerror", None) or error
        raise SnapshotError(str(path), [f"it cannot be read: {why}"], hint="Check the path.") from error
    return parse_snapshot(raw, str(path))


def parse_snapshot(raw: bytes, where: str = "snapshot") -> Snapshot:
    """Check a snapshot that was read already.

    Raises:
        SnapshotError: As `read_snapshot`.
    """
    with uncollected():
        return _checked(load_json(raw, where), where)


def _checked(value: object, where: str) -> Snapshot:
    if not isinstance(value, dict) or value.get("kind") != KIND:
        raise SnapshotError(
            where,
            [f'it is no snapshot: `"kind": "{KIND}"` is missing'],
            hint="`statechannel snapshot check FILE` reads snapshots; exports of the channel are read by `audit --file`.",
        )
    found = value.get("format")
    if type(found) is int and found > FORMAT:
        hint = "It was written by a newer version; take it anew with this one, or update."
        raise SnapshotError(where, [f"format: this version reads format {FORMAT}, found {found}"], hint=hint)
    try:
        snapshot = Snapshot.model_validate(value)
    except ValidationError as error:
        raise SnapshotError(where, [sentence(one) for one in error.errors(include_url=False)]) from error
    wrong = list(contradictions(snapshot))
    if wrong:
        raise SnapshotError(where, wrong)
    return snapshot


def snapshot_bytes(snapshot: Snapshot) -> bytes:
    """The snapshot as a file: indented JSON, every field, names sorted."""
    # The models' own dictionaries are written, not copies: a model has nothing but what belongs in the file.
    options = orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE | orjson.OPT_SORT_KEYS
    return orjson.dumps(snapshot, default=vars, option=options)


def write_snapshot(snapshot: Snapshot, path: Path) -> None:
    """Write a snapshot file.

    Raises:
        SnapshotError: The file cannot be written.
    """
    try:
        path.write_bytes(snapshot_bytes(snapshot))
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or error
        raise SnapshotError(str(path), [f"it cannot be written: {why}"], hint="Check the path.") from error
