"""Snapshot files: JSON without duplicate names, a check of all fields, and errors that name the path of each fault."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, ClassVar, Self, get_args

import orjson
from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from loaddata.bulk import uncollected
from loaddata.samples.strict_json import cut, located
from shedders.model.patterns import compiled
from shedders.snapshots.model import FORMAT, KIND, BundlePart, IsolationPart, PoliciesPart, Snapshot
from statechannel import files
from statechannel.errors import ExitCode, StateChannelError
from statechannel.files import UnreadableFileError, read_bytes
from statechannel.protocol.bundle import FULL_UPPER, is_namespace, parse_key, topic_hash
from statechannel.suggestions import nearest

_PLAIN = re.compile(r"[A-Za-z_][A-Za-z0-9_-]*", re.ASCII)
_DEPTH_MAX = 32


class FaultyFileError(StateChannelError):
    """A file of this package cannot be read or written, or is invalid."""

    exit_code = ExitCode.BAD_EXPORT
    usual_hint: ClassVar[str] = ""

    def __init__(self, where: str, problems: Sequence[str], *, hint: str = "") -> None:
        super().__init__(located(where, problems), hint=hint or self.usual_hint)
        self.problems = problems

    @classmethod
    def unreadable(cls, where: str, error: Exception) -> Self:
        known = isinstance(error, UnreadableFileError)
        why = error if known else f"cannot be read: {getattr(error, 'strerror', None) or error}"
        return cls(where, [f"it {why}"], hint="Check the path.")

    @classmethod
    def unwritable(cls, where: str, error: Exception) -> Self:
        return cls(
            where, [f"it cannot be written: {getattr(error, 'strerror', None) or error}"], hint="Check the path."
        )


def read_limited(path: Path, where: str, most_bytes: int, failure: type[FaultyFileError]) -> bytes:
    """Content of a file.

    Args:
        failure: Error to raise if the file cannot be read or is too large.
    """
    try:
        return read_bytes(path, most_bytes)
    except UnreadableFileError as error:
        raise failure.unreadable(where, error) from error


class SnapshotError(FaultyFileError):
    """A snapshot cannot be read or written, or is invalid."""

    usual_hint = "design/snapshot.md explains every field; shedders/snapshot.schema.json is its JSON Schema."


def path_text(parts: Sequence[int | str]) -> str:
    """Path of a field: `brokers["b-1:8080"].load.cpu.usage`."""
    text = ""
    for part in parts:
        if isinstance(part, int):
            text += f"[{part}]"
        elif _PLAIN.fullmatch(part):
            text += f".{part}" if text else part
        else:
            text += f'["{cut(part)}"]'
    return text


def sentence(detail: ErrorDetails, model: type[BaseModel] = Snapshot) -> str:
    """Sentence of a pydantic error: path of the field, expected and actual value."""
    loc = [part for part in detail["loc"] if part != "[key]"]
    where, kind = path_text(loc), detail["type"]
    if kind == "missing":
        return f"{where} is missing"
    if kind == "extra_forbidden":
        near = nearest(str(loc[-1]), _known_beside(loc, model))
        return f"{where} is not a field of the format{f'; did you mean {near[0]}?' if near else ''}"
    message = detail["msg"].removeprefix("Input should be ")
    wanted = "expected a finite number" if kind == "finite_number" else f"expected {message[:1].lower()}{message[1:]}"
    if not detail["msg"].startswith("Input should be "):
        wanted = f"{message[:1].lower()}{message[1:]}"
    return f"{where}: {wanted}, got {cut(repr(detail['input']))}"


def sentences(error: ValidationError, model: type[BaseModel] = Snapshot) -> list[str]:
    return [sentence(detail, model) for detail in error.errors(include_url=False)]


def _known_beside(loc: Sequence[int | str], root: type[BaseModel]) -> list[str]:
    """Names of the fields that are allowed in place of the last part of a path."""
    annotation: Any = root
    for part in loc[:-1]:
        model = _model_in(annotation)
        if model is not None and isinstance(part, str) and part in model.model_fields:
            annotation = model.model_fields[part].annotation
    model = _model_in(annotation)
    return [] if model is None else list(model.model_fields)


def _model_in(annotation: Any) -> type[BaseModel] | None:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    return next((inner for part in get_args(annotation) if (inner := _model_in(part)) is not None), None)


def contradictions(snapshot: Snapshot) -> Iterator[str]:
    ranges: dict[str, list[tuple[int, int, str]]] = {}
    known = snapshot.brokers.keys() | set(snapshot.gone)
    for name, bundle in snapshot.bundles.items():
        key = parse_key(name.encode(errors="replace"))
        if key is None or key.is_namespace or key.lower >= key.upper:
            yield f"{_bundle_path(name)}: expected a key tenant/namespace/0xLLLLLLLL_0xUUUUUUUU, lower bound first"
            continue
        ranges.setdefault(key.namespace, []).append((key.lower, key.upper, name))
        if bundle.owner is not None and bundle.owner not in known:
            near = _near(bundle.owner, known)
            yield f"{_bundle_path(name)}.owner: {cut(bundle.owner)} is neither in brokers nor in gone{near}"
        if bundle.topics or (bundle.owner is None) is (bundle.state == "Assigned"):
            yield from _bundle_faults(_bundle_path(name), bundle, key.lower, key.upper)
    for spans in ranges.values():
        for (_, upper, span), (lower, _, other) in pairwise(sorted(spans)):
            if lower < upper:
                yield f"{_bundle_path(other)} overlaps {span}"
    for name in snapshot.gone:
        if name in snapshot.brokers:
            yield f"{path_text(['gone'])}: {cut(name)} is also in brokers"
    yield from _booked_faults(snapshot)
    yield from policy_faults(snapshot.policies, snapshot.bundles)
    for part in ("settings", "memory"):
        for kind, values in getattr(snapshot, part):
            yield from (
                f"{path_text([part, kind, name])}: nested more than {_DEPTH_MAX} deep"
                for name, value in values.items()
                if _too_deep(value)
            )


def _bundle_path(name: str) -> str:
    return path_text(["bundles", name])


def _near(name: str, known: Iterable[str]) -> str:
    near = nearest(name, known)
    return f"; did you mean {near[0]}?" if near else ""


def _bundle_faults(where: str, bundle: BundlePart, lower: int, upper: int) -> Iterator[str]:
    if bundle.state == "Assigned" and bundle.owner is None:
        yield f"{where}.owner: expected a broker, as its state is Assigned"
    if bundle.state == "Unassigned" and bundle.owner is not None:
        yield f"{where}.owner: expected null, as its state is Unassigned, got {cut(repr(bundle.owner))}"
    seen: dict[str, int] = {}
    for number, topic in enumerate(bundle.topics):
        first = seen.setdefault(topic.name, number)
        if first != number:
            yield f"{where}.topics[{number}].name: {cut(topic.name)} is also in topics[{first}]"
        position = topic_hash(topic.name) if topic.position is None else topic.position
        # The last range of the ring is closed at its end.
        if not (lower <= position < upper or position == upper == FULL_UPPER):
            yield f"{where}.topics[{number}].position: 0x{position:08x} lies outside the bundle"


def _booked_faults(snapshot: Snapshot) -> Iterator[str]:
    first: dict[str, int] = {}
    for number, move in enumerate(snapshot.booked):
        where = f"booked[{number}]"
        bundle = snapshot.bundles.get(move.bundle)
        owner = move.destination if move.arrived else move.source
        if bundle is None:
            yield f"{where}.bundle: {cut(move.bundle)} is not a bundle of the snapshot{_near(move.bundle, snapshot.bundles)}"
        elif bundle.owner not in (owner, None):
            yield f"{where}: {owner} should own {move.bundle}, but {cut(repr(bundle.owner))} does"
        if first.setdefault(move.bundle, number) != number:
            yield f"{where}.bundle: {cut(move.bundle)} is also in booked[{first[move.bundle]}]"
        if move.destination == move.source:
            yield f"{where}.destination: it is the source"
        if move.destination is None and move.arrived:
            yield f"{where}.destination: expected a broker, as it has arrived"
        for field in ("source", "destination"):
            name = getattr(move, field)
            if name is not None and name not in snapshot.brokers and name not in snapshot.gone:
                yield f"{where}.{field}: {cut(name)} is not a broker of the snapshot{_near(name, snapshot.brokers)}"


def policy_faults(policies: PoliciesPart, bundles: Iterable[str] = ()) -> Iterator[str]:
    """Faults of policies that are meaningless or ambiguous."""
    first: dict[str, int] = {}
    for number, policy in enumerate(policies.isolation):
        where = f"policies.isolation[{number}]"
        if first.setdefault(policy.name, number) != number:
            yield f"{where}.name: policies.isolation[{first[policy.name]}] is also named {cut(policy.name)}"
        if not policy.namespaces:
            yield f"{where}.namespaces: empty"
        if not policy.primary and not policy.secondary:
            yield f"{where}: neither primary nor secondary brokers, so no broker could serve its namespaces"
        yield from _pattern_faults(where, policy)
    known = set(bundles)
    wanted: Mapping[str, Sequence[str]] = {
        "anti_affinity": list(policies.anti_affinity),
        "excluded": policies.excluded,
        "pins": [name for name in policies.pins if name not in known],
    }
    for field, names in wanted.items():
        for name, count in Counter(names).items():
            key = parse_key(name.encode(errors="replace"))
            if not is_namespace(name) and (field != "pins" or key is None):
                yield f"{path_text(['policies', field])}: {cut(repr(name))} is not a valid tenant/namespace"
            if count > 1:
                yield f"{path_text(['policies', field])}: {cut(name)} is listed {count} times"


def _pattern_faults(where: str, policy: IsolationPart) -> Iterator[str]:
    for field in ("namespaces", "primary", "secondary"):
        for index, pattern in enumerate(getattr(policy, field)):
            trouble = compiled((pattern,))
            if isinstance(trouble, str):
                yield f"{where}.{field}[{index}]: not a valid regular expression: {cut(trouble)}"


def _too_deep(value: Any) -> bool:
    level = [value]
    for _ in range(_DEPTH_MAX):
        level = [
            inner
            for item in level
            if isinstance(item, dict | list)
            for inner in (item.values() if isinstance(item, dict) else item)
        ]
        if not level:
            return False
    return True


_SPELLING = orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE | orjson.OPT_SORT_KEYS


def load_json(raw: bytes, where: str) -> Any:
    """The value of a file.

    Raises:
        SnapshotError: The file is not JSON, or an object has a name twice.
    """
    try:
        return files.load_json(raw, _SPELLING)
    except orjson.JSONDecodeError as error:
        raise SnapshotError(where, _odd_fields(raw) or [f"it is not JSON: {error}"]) from error
    except ValueError as error:
        raise SnapshotError(where, [str(error)]) from error


def _odd_fields(raw: bytes) -> list[str]:
    """Faults of fields that Python reads and JSON cannot hold: NaN, half a character."""
    try:
        Snapshot.model_validate(json.loads(raw))
    except ValidationError as error:
        return sentences(error)
    except (ValueError, RecursionError):
        pass
    return []


SIZE_MAX_BYTES = 1 << 30


def read_snapshot(path: Path) -> Snapshot:
    """Read and check a snapshot file.

    Raises:
        SnapshotError: The file cannot be read, is not JSON, is malformed, or contradicts itself.
    """
    where = str(path)
    return parse_snapshot(read_limited(path, where, SIZE_MAX_BYTES, SnapshotError), where)


def parse_snapshot(raw: bytes, where: str = "snapshot") -> Snapshot:
    """Parse a snapshot.

    Raises:
        SnapshotError: As `read_snapshot`.
    """
    with uncollected():
        return _checked(load_json(raw, where), where)


def _checked(value: object, where: str) -> Snapshot:
    if not isinstance(value, dict) or value.get("kind") != KIND:
        raise SnapshotError(
            where,
            [f'not a snapshot: `"kind": "{KIND}"` is missing'],
            hint="`statechannel snapshot check FILE` reads snapshots; exports of the channel are read by `audit --file`.",
        )
    version = value.get("format")
    if type(version) is int and version > FORMAT:
        hint = "It was written by a newer version; take it again with this version, or update."
        raise SnapshotError(where, [f"format: expected {FORMAT}, got {version}"], hint=hint)
    try:
        snapshot = Snapshot.model_validate(value)
    except ValidationError as error:
        raise SnapshotError(where, sentences(error)) from error
    wrong = list(contradictions(snapshot))
    if wrong:
        raise SnapshotError(where, wrong)
    return snapshot


def snapshot_bytes(snapshot: Snapshot) -> bytes:
    """Encode a snapshot: indented JSON, every field, names sorted."""
    # The models' own dictionaries are written, not copies, as a model has only fields of the file.
    return orjson.dumps(snapshot, default=vars, option=_SPELLING)


def write_snapshot(snapshot: Snapshot, path: Path) -> None:
    """Write a snapshot file.

    Raises:
        SnapshotError: The file cannot be written.
    """
    try:
        path.write_bytes(snapshot_bytes(snapshot))
    except (OSError, ValueError) as error:
        raise SnapshotError.unwritable(str(path), error) from error
