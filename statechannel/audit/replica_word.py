"""What a replica says of itself over HTTP, checked before anybody believes its form (design/audit.md). Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import orjson

from statechannel.errors import StateChannelError

WORD_FORMAT = 1


class ReplicaWordError(StateChannelError):
    """What came is not what a replica says."""


class PartWord(NamedTuple):
    """Of one partition.

    Attributes:
        applied: Offset through which the replica has taken everything in.
        digest: None where it does not know the accepted states; `why` says so.
    """

    applied: int
    digest: str | None
    why: str


@dataclass(frozen=True, slots=True)
class ReplicaWord:
    """The document of `/digest`, and the first line of `/dump`."""

    broker: str
    incarnation: str
    partitions: Mapping[int, PartWord]


@dataclass(frozen=True, slots=True)
class ReplicaDump:
    """What `/dump` answers: the word, and the lines of the digest by key."""

    word: ReplicaWord
    lines: list[bytes]


def parse_word(body: bytes) -> ReplicaWord:
    """Read the document of a digest.

    Raises:
        ReplicaWordError: It is none.
    """
    try:
        found = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise _bad(f"not JSON: {error}") from None
    if not isinstance(found, dict) or found.get("replica") != WORD_FORMAT:
        raise _bad(f"no document of a replica's digest of format {WORD_FORMAT}")
    broker, incarnation, parts = found.get("broker"), found.get("incarnation"), found.get("partitions")
    if not isinstance(broker, str) or not isinstance(incarnation, str) or not isinstance(parts, dict) or not parts:
        raise _bad("`broker`, `incarnation` or `partitions` is missing")
    numbers = {}
    for name, part in parts.items():
        if not (name.isascii() and name.isdigit()) or not isinstance(part, dict):
            raise _bad(f"`partitions` holds {name!r}")
        numbers[int(name)] = _part(part)
    if sorted(numbers) != list(range(len(numbers))):
        raise _bad("`partitions` does not name all of them")
    return ReplicaWord(broker, incarnation, numbers)


def _part(part: Mapping[str, Any]) -> PartWord:
    applied, digest, why = part.get("applied"), part.get("digest"), part.get("why")
    if type(applied) is not int or applied < -1 or not (digest is None or isinstance(digest, str)):
        raise _bad("`applied` or `digest` of a partition is no such thing")
    return PartWord(applied, digest, why if isinstance(why, str) else "")


def parse_dump(lines: Iterable[bytes]) -> ReplicaDump:
    """Read a dump.

    Raises:
        ReplicaWordError: It is none, or it was cut short in a line.
    """
    every = iter(lines)
    word = parse_word(next(every, b""))
    found = list(every)
    for line in found:
        try:
            fields = orjson.loads(line)
        except orjson.JSONDecodeError:
            raise _bad(f"a line of the dump is no JSON: {line[:80]!r}") from None
        if not isinstance(fields, list) or len(fields) != 6 or not isinstance(fields[0], str):  # noqa: PLR2004
            raise _bad(f"a line of the dump is not [key, version, state, from, to, id]: {line[:80]!r}")
    return ReplicaDump(word, found)


def _bad(what: str) -> ReplicaWordError:
    return ReplicaWordError(
        f"the answer is {what}.", hint="Check the address: it must be the HTTP endpoint of a broker of this channel."
    )
