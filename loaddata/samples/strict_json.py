"""JSON files that people may have changed: read strictly, errors with their place and a hint; written one entry a line.

Both files of the planner (`kafka-layout/1`, `partition-plan/1`) and Kafka's own reassignment file come in through here.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence, Set
from pathlib import Path
from typing import Annotated, Any, Final, TypeVar

import orjson
from pydantic import ConfigDict, Field, TypeAdapter, ValidationError

from statechannel.errors import StateChannelError
from statechannel.files import READ_BYTES_MAX, UnreadableFileError, new_file, read_bytes

Document = TypeVar("Document")
Thing = TypeVar("Thing", bound=Hashable)
Refuse = Callable[[str, str], StateChannelError]
"""Makes the error of a file: what is wrong, and what to do."""

STRICT: Final = ConfigDict(strict=True, extra="forbid", allow_inf_nan=False)
NUMBER_MAX: Final = 2**62
"""Larger whole numbers would not fit into the arrays of the planner."""
Amount = Annotated[int, Field(ge=0, le=NUMBER_MAX)]
TOPIC_NAME: Final = re.compile(r"[A-Za-z0-9._-]{1,249}", re.ASCII)
SHOWN_MAX: Final = 8
_FOUND_MAX: Final = 60
_CHECK: Final = "Check the path."
_LOOKED_AT_BYTES: Final = 4_096


class _IrregularError(Exception):
    """JSON that Python would accept and we do not: a name twice, NaN or Infinity."""


def read_raw(path: Path, refuse: Refuse, *, size_max_bytes: int = READ_BYTES_MAX) -> bytes:
    try:
        raw = read_bytes(path, size_max_bytes)
    except UnreadableFileError as error:
        raise refuse(f"{path} {error}", _CHECK) from error
    if not raw.strip():
        raise refuse(f"{path} is empty", _CHECK)
    return raw


_FROM_CLUSTER: Final = (
    "Sizes, directories and replicas are read from the cluster: `statechannel partitions layout --out FILE`."
)
_OPTIONS: Final = "Use the options of `statechannel partitions plan`, such as --topics, --goals and --remove-brokers."
_SHOW: Final = "Only `statechannel partitions show FILE` reads it, also with --layout."
_TEXTS: Final = (
    (rb"(?m)^Querying brokers for log dir|^Received log dir", "the output of kafka-log-dirs", _FROM_CLUSTER),
    (rb"(?m)^\s*Topic: \S+\s+(?:TopicId|PartitionCount|Partition):", "the output of kafka-topics", _FROM_CLUSTER),
    (rb"(?m)^apiVersion:", "a Kubernetes resource in YAML, such as a KafkaRebalance", _OPTIONS),
    (rb"(?m)^(?:Current partition replica |Proposed partition re)assignment",
     "the output of kafka-reassign-partitions", f"{_SHOW} Of what is not from --generate keep only the JSON."),
)  # fmt: skip
_NAMES: Final = {
    frozenset({"topics"}): ("topics to move for kafka-reassign-partitions --generate", _OPTIONS),
    frozenset({"partitions"}): ("an assignment for kafka-reassign-partitions", _SHOW),
    frozenset({"brokers"}): ("the output of kafka-log-dirs", _FROM_CLUSTER),
    frozenset({"brokerCapacities"}): ("Cruise Control's file of capacities", "Name it with `plan --capacities FILE`."),
}
"""Files of other tools, by what a line begins with, or by their outermost names without `version`; and what is needed instead."""


def top_level(raw: bytes, where: object, refuse: Refuse, *, hint: str) -> Mapping[str, Any]:
    """The names of the whole with their values, as far as these are plain: inner objects are None, but were looked at."""
    # Inner objects are dropped at once, so that this pass takes no memory; the outermost is the last one.
    last = list[dict[str, Any]]()

    def looked_at(pairs: list[tuple[str, Any]]) -> None:
        by_name = dict(pairs)
        if len(by_name) < len(pairs):
            names = [name for name, _ in pairs]
            raise _IrregularError(f"the name {cut(Counter(names).most_common(1)[0][0])!r} appears twice in an object")
        last[:] = [by_name]

    def no_number(text: str) -> None:
        raise _IrregularError(f"{text} is not a number in JSON")

    try:
        value = json.loads(raw.decode(), object_pairs_hook=looked_at, parse_constant=no_number)
    except UnicodeDecodeError as error:
        raise refuse(f"{where} is not text: byte {error.start} is not UTF-8", hint) from error
    except RecursionError as error:
        raise refuse(f"{where} is nested too deeply", hint) from error
    except _IrregularError as error:
        raise refuse(f"{where}: {error}", hint) from error
    except ValueError as error:
        for start, what, instead in _TEXTS:
            if re.search(start, raw[:_LOOKED_AT_BYTES]):
                raise refuse(f"{where} is not JSON, but {what}", instead) from error
        raise refuse(f"{where} is not JSON: {error}", hint) from error
    if value is not None or not last:
        raise refuse(f"{where}: expected an object, found {cut(repr(value))}", hint)
    return last[0]


def checked_format(names: Mapping[str, Any], wanted: str, where: object, refuse: Refuse, *, hint: str) -> None:
    """Refuse another format; an unknown version of the same one has a hint of its own, as have files of other tools."""
    format_name = names.get("format")
    if format_name == wanted:
        return
    kind = wanted.partition("/")[0]
    if isinstance(format_name, str) and format_name.partition("/")[0] == kind:
        raise refuse(
            f"{where}: format {cut(format_name)} is not known, this version reads {wanted}",
            "It was written by another version: create it again with this one, or update.",
        )
    if foreign := _NAMES.get(frozenset(names) - {"version"}):
        raise refuse(f"{where} is not a {kind}, but {foreign[0]}", foreign[1])
    actual = "has no format" if format_name is None else f"has format {cut(repr(format_name))}"
    raise refuse(f"{where} is not a {kind}: it {actual}, expected {wanted}", hint)


def validated(raw: bytes, adapter: TypeAdapter[Document], where: object, refuse: Refuse, *, hint: str) -> Document:
    try:
        return adapter.validate_json(raw)
    except ValidationError as error:
        raise refuse(located(where, [sentence(detail) for detail in error.errors(include_url=False)]), hint) from error


def located(where: object, faults: Sequence[str]) -> str:
    """The faults of a file as one text; at most eight of them."""
    shown = list(faults[:SHOWN_MAX])
    if len(faults) > SHOWN_MAX:
        shown.append(f"... and {len(faults) - SHOWN_MAX} more")
    return f"{where}: {shown[0]}" if len(faults) == 1 else f"{where} has faults:\n  " + "\n  ".join(shown)


def amount_faults(name: str, value: float | None, most: float = NUMBER_MAX) -> Iterator[str]:
    if value is not None and not 0 <= value <= most:
        yield f"{name}: expected 0 to {most}, got {cut(str(value))}"


def place_faults(topic: str, partition: int) -> Iterator[str]:
    if not TOPIC_NAME.fullmatch(topic) or topic in {".", ".."}:
        yield f"{cut(repr(topic))} is not a valid topic name"
    if not 0 <= partition < 2**31:
        yield f"{cut(str(partition))} is not a valid partition number"


def replica_faults(name: str, replicas: Sequence[int], known: Set[int] = frozenset()) -> Iterator[str]:
    """Faults of a list of replicas.

    Args:
        known: Ids of the brokers that there are; empty: any may be named.
    """
    if not replicas or min(replicas) < 0 or max(replicas) >= 2**31:
        yield f"{name}: expected broker ids, got {cut(repr(list(replicas)))}"
    again = twice(replicas)
    if again is not None:
        yield f"{name}: broker {again} is duplicated"
    for broker in sorted(set(replicas) - known)[:1] if known else []:
        yield f"{name}: broker {broker} is not listed in brokers"


def twice(things: Sequence[Thing]) -> Thing | None:
    """What appears twice; None: each appears once."""
    return None if len(set(things)) == len(things) else Counter(things).most_common(1)[0][0]


def duplicates(name: str, things: Sequence[Hashable]) -> Iterator[str]:
    again = twice(things)
    if again is not None:
        yield f"{name}: {cut(str(again))} is duplicated"


def sentence(detail: Any) -> str:
    """One of pydantic's errors, with the place."""
    place = "".join(f"[{part}]" if isinstance(part, int) else f".{cut(part)}" for part in detail["loc"]).lstrip(".")
    match detail["type"]:
        case "missing" | "missing_argument" | "missing_keyword_only_argument":
            return f"{place} is missing"
        case "extra_forbidden" | "unexpected_keyword_argument":
            return f"{place} is not a field of the format"
        case "json_invalid":
            return f"it is not JSON: {detail['msg']}"
    message = detail["msg"].removeprefix("Input should be ").removeprefix("Value error, ")
    return f"{place}: expected {message[:1].lower()}{message[1:]}, found {cut(repr(detail['input']))}"


def cut(text: str) -> str:
    """A text that may be shown: printable, and not too long."""
    shown = text if text.isprintable() else text.encode("unicode_escape", "backslashreplace").decode()
    return shown if len(shown) <= _FOUND_MAX else f"{shown[:_FOUND_MAX]}..."


def write_document(path: Path, document: Mapping[str, Any]) -> None:
    """Write a file that appears when it is whole; a line a name, and of a list of objects a line each."""
    with new_file(path) as file:
        for part in document_parts(document):
            file.write(part)


def document_parts(document: Mapping[str, Any]) -> Iterator[bytes]:
    """The same as pieces: equal documents give equal bytes."""
    yield b"{\n"
    for number, (name, value) in enumerate(document.items()):
        yield (b",\n" if number else b"") + orjson.dumps(name) + b": "
        if isinstance(value, list | tuple) and value and not isinstance(value[0], str | int | float):
            yield b"[\n"
            for index, entry in enumerate(value):
                yield (b",\n " if index else b" ") + orjson.dumps(entry, default=dict)
            yield b"\n]"
        else:
            yield orjson.dumps(value, default=dict)
    yield b"\n}\n"
