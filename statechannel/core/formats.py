"""Formats of the channel's records: which a version reads, and which may be written while others run older versions.

A record of a format that a reader does not know stops it (protocol.md section 3). So a newer format is written only once
every registered broker says that it reads it. Whoever registers later with an older version stops, and says so.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any

from statechannel.core.record import FORMAT

_NAMED_MAX = 64


def readable(newest: int) -> tuple[int, ...]:
    """All formats that a version reads whose newest one this is: no version forgets an older one."""
    return tuple(range(FORMAT, newest + 1))


def writable_format(members: Iterable[Collection[int]], own: Collection[int]) -> int:
    """The newest format that may be written.

    Args:
        members: The formats that each registered broker reads.
        own: Those that the writer reads, and so can write.

    Returns:
        The newest that all of them read. The oldest of its own where there is none: then somebody is stopped in any case.
    """
    common = set(own).intersection(*members)
    return max(common, default=min(own))


def formats_of(info: Mapping[str, Any]) -> frozenset[int]:
    """The formats that a registry record names; one without them is of a version that reads the first one only."""
    named = info.get("formats")
    if type(named) is not list or len(named) > _NAMED_MAX:
        return frozenset({FORMAT})
    return frozenset(number for number in named if type(number) is int and number >= FORMAT) or frozenset({FORMAT})


def held_back_by(members: Mapping[str, Collection[int]]) -> tuple[int, tuple[str, ...]]:
    """The newest format that any registered broker reads, and the brokers that do not read it, by name."""
    newest = max((max(formats) for formats in members.values()), default=FORMAT)
    return newest, tuple(sorted(broker for broker, formats in members.items() if newest not in formats))
