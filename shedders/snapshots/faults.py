"""Faults of a snapshot, as sentences that name the path of the field."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any, ClassVar, get_args

from pydantic import BaseModel
from pydantic_core import ErrorDetails

from shedders.model.patterns import compiled
from shedders.snapshots.model import BundlePart, IsolationPart, PoliciesPart, Snapshot
from statechannel.errors import ExitCode, StateChannelError
from statechannel.protocol.bundle import FULL_UPPER, is_namespace, parse_key, topic_hash
from statechannel.suggestions import nearest

SHOWN_MAX = 10
_PLAIN = re.compile(r"[A-Za-z_][A-Za-z0-9_-]*", re.ASCII)
_FOUND_MAX = 60
_DEPTH_MAX = 32


class FaultyFileError(StateChannelError):
    """A file of this package cannot be read or written, or is invalid.

    Attributes:
        usual_hint: Default hint.
        problems: One sentence per fault.
    """

    usual_hint: ClassVar[str] = ""

    def __init__(self, where: str, problems: Sequence[str], *, hint: str = "") -> None:
        shown = [*problems[:SHOWN_MAX]]
        if len(problems) > SHOWN_MAX:
            shown.append(f"... and {len(problems) - SHOWN_MAX} more")
        text = f"{where}: {shown[0]}" if len(problems) == 1 else f"{where} has faults:\n  " + "\n  ".join(shown)
        super().__init__(text, hint=hint or self.usual_hint, exit_code=ExitCode.BAD_EXPORT)
        self.problems = problems


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


def cut(text: str) -> str:
    """Printable text of limited length."""
    shown = text if text.isprintable() else text.encode("unicode_escape", "backslashreplace").decode()
    return shown if len(shown) <= _FOUND_MAX else shown[:_FOUND_MAX] + "..."


def sentence(detail: ErrorDetails, model: type[BaseModel] = Snapshot) -> str:
    """Sentence of a pydantic error: path of the field, expected and actual value.

    Args:
        model: Model of the whole file.
    """
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
    """Contradictions of a snapshot whose fields are all of the right type."""
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
