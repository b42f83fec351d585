"""Intervals in which a process served a bundle, from its own record, and whether those of two processes overlap."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import orjson

from statechannel.demo.plane import RingRange, place_of_bundle


@dataclass(frozen=True, slots=True)
class Service:
    """A process said at both ends, and each time that it looked in between, that it may serve a bundle at a generation."""

    broker: str
    pid: int
    bundle: str
    generation: int
    begin_ns: int
    end_ns: int


class Check(NamedTuple):
    """One moment at which a process said so, to a client."""

    broker: str
    pid: int
    bundle: str
    generation: int
    at_ns: int


def read_record(path: Path, broker: str, pid: int) -> list[Service]:
    """Intervals by the record of one process; a last line that a kill cut off does not count."""
    data = path.read_bytes() if path.exists() else b""
    open_since: dict[tuple[str, int], int] = {}
    found: list[Service] = []
    before_ns = 0
    for line in data.rpartition(b"\n")[0].splitlines():
        told = orjson.loads(line)
        at_ns: int = told["at_ns"]
        if "serves" in told:
            now = set(told["serves"].items())
            for bundle, generation in [one for one in open_since if one not in now]:
                begin_ns = open_since.pop((bundle, generation))
                found.append(Service(broker, pid, bundle, generation, begin_ns, before_ns))
            for one in now:
                open_since.setdefault(one, at_ns)
        before_ns = at_ns
    for (bundle, generation), begin_ns in open_since.items():
        found.append(Service(broker, pid, bundle, generation, begin_ns, before_ns))
    return found


def widen(services: Iterable[Service], checks: Iterable[Check]) -> list[Service]:
    """The same intervals with what clients were told: a moment outside all of them is one of its own."""
    known: dict[tuple[int, str, int], list[Service]] = defaultdict(list)
    for one in services:
        known[one.pid, one.bundle, one.generation].append(one)
    outside: dict[tuple[int, str, int], list[Check]] = defaultdict(list)
    for check in checks:
        mine = known[check.pid, check.bundle, check.generation]
        if not any(one.begin_ns <= check.at_ns <= one.end_ns for one in mine):
            outside[check.pid, check.bundle, check.generation].append(check)
    moments = [
        Service(check.broker, check.pid, check.bundle, check.generation, check.at_ns, check.at_ns)
        for found in outside.values()
        for check in found
    ]
    return [one for mine in known.values() for one in mine] + moments


def overlaps(services: Iterable[Service]) -> Iterator[tuple[Service, Service]]:
    """Pairs of intervals of two processes that share a part of the ring and a moment."""
    by_namespace: dict[str, list[Service]] = defaultdict(list)
    places: dict[str, RingRange] = {}
    for one in services:
        place = places.setdefault(one.bundle, place_of_bundle(one.bundle))
        by_namespace[place.namespace].append(one)
    for found in by_namespace.values():
        yield from _overlaps(sorted(found, key=lambda one: one.begin_ns), places)


def _overlaps(services: Sequence[Service], places: dict[str, RingRange]) -> Iterator[tuple[Service, Service]]:
    going_on: list[Service] = []
    for one in services:
        going_on = [other for other in going_on if other.end_ns >= one.begin_ns]
        for other in going_on:
            if other.pid != one.pid and places[other.bundle].overlaps(places[one.bundle]):
                yield other, one
        going_on.append(one)
