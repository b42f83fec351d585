"""Reads and writes snapshot files, and says of a bad one which field is wrong, what is wanted there, and what to do."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from difflib import get_close_matches
from itertools import pairwise
from math import isfinite
from pathlib import Path
from typing import Any, get_args

import orjson
from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from shedders.snapshot import IN_FLIGHT, KIND, BundlePart, Snapshot
from statechannel.core.bundle import FULL_UPPER, is_namespace, parse_key, topic_hash
from statechannel.errors import StateChannelError

BAD_FILE = 7
"""Exit code: the same as for other malformed files (`statechannel.cli.exit_codes`)."""

SIZE_MAX_BYTES = 1 << 30
SHOWN_MAX = 10
_PLAIN = re.compile(r"[A-Za-z_][A-Za-z0-9_-]*", re.ASCII)
_FOUND_MAX = 60
_DIGITS_MAX = 18


class SnapshotError(StateChannelError):
    """A snapshot cannot be read, or says what cannot be.

    Attributes:
        problems: One sentence for each thing that is wrong.
    """

    def __init__(self, where: str, problems: Sequence[str], *, hint: str = "") -> None:
        shown = [*problems[:SHOWN_MAX]]
        if len(problems) > SHOWN_MAX:
            shown.append(f"... and {len(problems) - SHOWN_MAX} more")
        text = f"{where}: {shown[0]}" if len(problems) == 1 else f"{where} has faults:\n  " + "\n  ".join(shown)
        super().__init__(
            text,
            hint=hint or "design/snapshot.md explains every field; shedders/snapshot.schema.json is its JSON Schema.",
            exit_code=BAD_FILE,
        )
        self.problems = problems


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
    except OSError as error:
        raise SnapshotError(str(path), [f"it cannot be read: {error.strerror}"], hint="Check the path.") from error
    return parse_snapshot(raw, str(path))


def parse_snapshot(raw: bytes, where: str = "snapshot") -> Snapshot:
    """Check a snapshot that was read already.

    Raises:
        SnapshotError: As `read_snapshot`.
    """
    value = _json(raw, where)
    if not isinstance(value, dict) or value.get("kind") != KIND:
        raise SnapshotError(
            where,
            [f'it is no snapshot: `"kind": "{KIND}"` is missing'],
            hint="`statechannel snapshot check FILE` reads snapshots; exports of the channel are read by `audit --file`.",
        )
    try:
        snapshot = Snapshot.model_validate(value)
    except ValidationError as error:
        raise SnapshotError(where, [_sentence(one) for one in error.errors(include_url=False)]) from error
    wrong = list(contradictions(snapshot))
    if wrong:
        raise SnapshotError(where, wrong)
    return snapshot


def snapshot_bytes(snapshot: Snapshot) -> bytes:
    """The snapshot as a file: indented JSON, every field, names sorted."""
    return orjson.dumps(
        snapshot.model_dump(), option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE | orjson.OPT_SORT_KEYS
    )


def write_snapshot(snapshot: Snapshot, path: Path) -> None:
    """Write a snapshot file.

    Raises:
        SnapshotError: The file cannot be written.
    """
    try:
        path.write_bytes(snapshot_bytes(snapshot))
    except OSError as error:
        raise SnapshotError(str(path), [f"it cannot be written: {error.strerror}"], hint="Check the path.") from error


def _json(raw: bytes, where: str) -> Any:
    try:
        return json.loads(
            raw.decode(),
            object_pairs_hook=_object,
            parse_constant=_no_constant,
            parse_float=_finite,
            parse_int=_short_int,
        )
    except UnicodeDecodeError as error:
        raise SnapshotError(where, [f"it is not UTF-8: byte {error.start}"]) from error
    except RecursionError as error:
        raise SnapshotError(where, ["it is nested too deeply"]) from error
    except ValueError as error:  # JSON errors are among them
        raise SnapshotError(where, [f"it is not JSON: {error}"]) from error


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        names = sorted(name for name, _ in pairs)
        twice = next(name for name, after in pairwise(names) if name == after)
        raise ValueError(f"the name {twice!r} stands twice in one object")
    return found


def _no_constant(text: str) -> Any:
    raise ValueError(f"{text} is no number of JSON; numbers must be finite")


def _finite(text: str) -> float:
    value = float(text)
    if not isfinite(value):
        raise ValueError(f"the number {_cut(text)} is too large; numbers must be finite")
    return value


def _short_int(text: str) -> int:
    # Longer ones cannot be written again, and mean nothing anywhere in the format.
    if len(text) > _DIGITS_MAX:
        raise ValueError(f"the number {_cut(text)} has too many digits")
    return int(text)


def _cut(text: str) -> str:
    return text if len(text) <= _FOUND_MAX else text[:_FOUND_MAX] + "..."


def path_text(parts: Sequence[int | str]) -> str:
    """Path of a field as people write it: `brokers["b-1:8080"].load.cpu.usage`."""
    text = ""
    for part in parts:
        if isinstance(part, int):
            text += f"[{part}]"
        elif _PLAIN.fullmatch(part):
            text += f".{part}" if text else part
        else:
            text += f'["{part}"]'
    return text


def _sentence(detail: ErrorDetails) -> str:
    loc = [part for part in detail["loc"] if part != "[key]"]
    where, kind = path_text(loc), detail["type"]
    if kind == "missing":
        return f"{where} is missing"
    if kind == "extra_forbidden":
        near = get_close_matches(str(loc[-1]), _known_beside(loc), 1)
        return f"{where} is no field of the format{f'; did you mean {near[0]}?' if near else ''}"
    message = detail["msg"].removeprefix("Input should be ")
    wanted = "a finite number is wanted" if kind == "finite_number" else f"{message[:1].lower()}{message[1:]} is wanted"
    if not detail["msg"].startswith("Input should be "):
        wanted = f"{message[:1].lower()}{message[1:]}"
    return f"{where}: {wanted}, found {_cut(repr(detail['input']))}"


def _known_beside(loc: Sequence[int | str]) -> list[str]:
    """Names of the fields that may stand where the last part of a path does."""
    annotation: Any = Snapshot
    for part in loc[:-1]:
        model = _model_in(annotation)
        if model is not None and isinstance(part, str) and part in model.model_fields:
            annotation = model.model_fields[part].annotation
    model = _model_in(annotation)
    return [] if model is None else list(model.model_fields)


def _model_in(annotation: Any) -> type[BaseModel] | None:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    return next((found for part in get_args(annotation) if (found := _model_in(part)) is not None), None)


def contradictions(snapshot: Snapshot) -> Iterator[str]:
    """What is wrong with a snapshot whose fields are all of the right kind."""
    ranges: dict[str, list[tuple[int, int, str]]] = {}
    for name, bundle in snapshot.bundles.items():
        where = path_text(["bundles", name])
        key = parse_key(name.encode(errors="replace"))
        if key is None or key.is_namespace or key.lower >= key.upper:
            yield f"{where}: a key tenant/namespace/0xLLLLLLLL_0xUUUUUUUU is wanted, lower bound first"
            continue
        ranges.setdefault(key.namespace, []).append((key.lower, key.upper, name))
        yield from _bundle_faults(where, bundle, key.lower, key.upper)
    for found in ranges.values():
        for (_, upper, one), (lower, _, other) in pairwise(sorted(found)):
            if lower < upper:
                yield f"{path_text(['bundles', other])} overlaps {one}"
    yield from _policy_faults(snapshot)


def _bundle_faults(where: str, bundle: BundlePart, lower: int, upper: int) -> Iterator[str]:
    if bundle.state == "Assigned" and bundle.owner is None:
        yield f"{where}.owner: a broker is wanted, since its state is Assigned"
    if bundle.state == "Unassigned" and bundle.owner is not None:
        yield f"{where}.owner: null is wanted, since its state is Unassigned, found {bundle.owner!r}"
    for number, topic in enumerate(bundle.topics):
        position = topic_hash(topic.name) if topic.position is None else topic.position
        # The last range of the ring is closed at its end.
        if not (lower <= position < upper or position == upper == FULL_UPPER):
            yield f"{where}.topics[{number}].position: 0x{position:08x} lies outside the bundle"


def _policy_faults(snapshot: Snapshot) -> Iterator[str]:
    policies = snapshot.policies
    for number, policy in enumerate(policies.isolation):
        for field in ("namespaces", "primary", "secondary"):
            for index, pattern in enumerate(getattr(policy, field)):
                try:
                    re.compile(pattern)
                except (re.error, RecursionError, OverflowError) as error:
                    yield f"policies.isolation[{number}].{field}[{index}]: a regular expression is wanted: {error}"
    wanted: Mapping[str, Sequence[str]] = {
        "anti_affinity": list(policies.anti_affinity),
        "excluded": policies.excluded,
        "pins": [name for name in policies.pins if name not in snapshot.bundles],
    }
    for field, names in wanted.items():
        for name in names:
            key = parse_key(name.encode(errors="replace"))
            if not is_namespace(name) and (field != "pins" or key is None):
                yield f"{path_text(['policies', field])}: {name!r} is no tenant/namespace"


def remarks(snapshot: Snapshot) -> list[str]:
    """What is allowed but may not be meant: owners, pins and cordons of brokers that the snapshot does not have, missing load."""
    known = snapshot.brokers
    served: dict[str, int] = {}
    for bundle in snapshot.bundles.values():
        if bundle.owner is not None:
            served[bundle.owner] = served.get(bundle.owner, 0) + 1
    found = [
        f"{owner} serves {count} bundles and is no broker of the snapshot"
        for owner, count in sorted(served.items())
        if owner not in known
    ]
    found += [f"broker {name} has no load report" for name, one in sorted(known.items()) if one.load is None]
    found += [
        f"{name} is pinned to {broker}, which is no broker of the snapshot"
        for name, broker in sorted(snapshot.policies.pins.items())
        if broker not in known
    ]
    found += [
        f"{name} is cordoned and no broker of the snapshot"
        for name in sorted(snapshot.policies.cordons)
        if name not in known
    ]
    flying = sum(bundle.state in IN_FLIGHT for bundle in snapshot.bundles.values())
    return [*found, *([f"{flying} bundles are on their way and are left alone"] if flying else [])]
