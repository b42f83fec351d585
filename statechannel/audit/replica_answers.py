"""Validated answers of a replica's HTTP endpoint (audit.md). Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from hashlib import sha256
from typing import Any, NamedTuple

import orjson

from statechannel.errors import StateChannelError

WORD_FORMAT = 1


class ReplicaWordError(StateChannelError):
    """The answer is not one of a replica."""


class PartWord(NamedTuple):
    """Answer for one partition.

    Attributes:
        applied: Offset through which the replica has applied the partition.
        digest: None if it does not know the accepted states; `why` says why.
        keys: Number of its keys; None if not given.
    """

    applied: int
    digest: str | None
    why: str
    keys: int | None = None


@dataclass(frozen=True, slots=True)
class ReplicaWord:
    """The document of `/digest`, and the first line of `/dump`.

    Attributes:
        digest: Of all partitions; None if it does not know the accepted states of each.
    """

    broker: str
    incarnation: str
    partitions: Mapping[int, PartWord]
    digest: str | None = None


@dataclass(frozen=True, slots=True)
class ReplicaDump:
    """The answer of `/dump`: the digest document, and the lines of the digest by key."""

    word: ReplicaWord
    lines: list[bytes]


def parse_word(body: bytes) -> ReplicaWord:
    """Read the document of a digest.

    Raises:
        ReplicaWordError: It is not a digest document.
    """
    try:
        word = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise _bad(f"not JSON: {error}") from None
    if not isinstance(word, dict) or word.get("replica") != WORD_FORMAT:
        raise _bad(f"not a replica's digest document of format {WORD_FORMAT}")
    broker, incarnation, parts = word.get("broker"), word.get("incarnation"), word.get("partitions")
    if not isinstance(broker, str) or not isinstance(incarnation, str) or not isinstance(parts, dict) or not parts:
        raise _bad("`broker`, `incarnation` or `partitions` is missing")
    numbers = {}
    for name, part in parts.items():
        if not (name.isascii() and name.isdigit()) or not isinstance(part, dict):
            raise _bad(f"`partitions` holds {name!r}")
        numbers[int(name)] = _part(part)
    if sorted(numbers) != list(range(len(numbers))):
        raise _bad("`partitions` does not have all partitions")
    digest = word.get("digest")
    return ReplicaWord(broker, incarnation, numbers, digest if isinstance(digest, str) else None)


def _part(part: Mapping[str, Any]) -> PartWord:
    applied, digest, why = part.get("applied"), part.get("digest"), part.get("why")
    if type(applied) is not int or applied < -1 or not (digest is None or isinstance(digest, str)):
        raise _bad("`applied` or `digest` of a partition is invalid")
    keys = part.get("keys")
    return PartWord(applied, digest, why if isinstance(why, str) else "", keys if type(keys) is int else None)


def parse_dump(body: Iterable[bytes]) -> ReplicaDump:
    """Read a dump.

    Raises:
        ReplicaWordError: It is not a dump, it was truncated, or its lines do not match its digest.
    """
    every = iter(body)
    word = parse_word(next(every, b""))
    lines = list(every)
    for line in lines:
        try:
            fields = orjson.loads(line)
        except orjson.JSONDecodeError:
            raise _bad(f"a line of the dump is not JSON: {line[:80]!r}") from None
        if not isinstance(fields, list) or len(fields) != 6 or not isinstance(fields[0], str):  # noqa: PLR2004
            raise _bad(f"a line of the dump is not [key, version, state, from, to, id]: {line[:80]!r}")
    keys = sum(part.keys or 0 for part in word.partitions.values())
    if len(lines) < keys:
        raise _bad(f"a truncated dump: {len(lines)} of its {keys} keys")
    if word.digest is not None and sha256(b"".join(lines)).hexdigest() != word.digest:
        raise _bad("a dump whose lines do not match its digest")
    return ReplicaDump(word, lines)


def _bad(what: str) -> ReplicaWordError:
    return ReplicaWordError(
        f"the answer is {what}.", hint="Check the address: it must be the HTTP endpoint of a broker of this channel."
    )
