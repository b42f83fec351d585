"""Intervals in which a process served a bundle, from its own record, and whether those of two processes overlap."""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import orjson

from tests.support.data_plane import RingRange, place_of_bundle


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
    services: list[Service] = []
    before_ns = 0
    for line in data.rpartition(b"\n")[0].splitlines():
        entry = orjson.loads(line)
        at_ns: int = entry["at_ns"]
        if "serves" in entry:
            now = set(entry["serves"].items())
            for bundle, generation in [held for held in open_since if held not in now]:
                begin_ns = open_since.pop((bundle, generation))
                services.append(Service(broker, pid, bundle, generation, begin_ns, before_ns))
            for held in now:
                open_since.setdefault(held, at_ns)
        before_ns = at_ns
    for (bundle, generation), begin_ns in open_since.items():
        services.append(Service(broker, pid, bundle, generation, begin_ns, before_ns))
    return services


def widen(services: Iterable[Service], checks: Iterable[Check]) -> list[Service]:
    """The same intervals with what clients were told: a moment outside all of them is one of its own."""
    known: dict[tuple[int, str, int], list[Service]] = defaultdict(list)
    for service in services:
        known[service.pid, service.bundle, service.generation].append(service)
    outside: dict[tuple[int, str, int], list[Check]] = defaultdict(list)
    for check in checks:
        mine = known[check.pid, check.bundle, check.generation]
        if not any(service.begin_ns <= check.at_ns <= service.end_ns for service in mine):
            outside[check.pid, check.bundle, check.generation].append(check)
    moments = [
        Service(check.broker, check.pid, check.bundle, check.generation, check.at_ns, check.at_ns)
        for group in outside.values()
        for check in group
    ]
    return [service for mine in known.values() for service in mine] + moments


def overlaps(services: Iterable[Service]) -> Iterator[tuple[Service, Service]]:
    """Pairs of intervals of two processes that share a part of the ring and a moment."""
    by_namespace: dict[str, list[Service]] = defaultdict(list)
    places: dict[str, RingRange] = {}
    for service in services:
        place = places.setdefault(service.bundle, place_of_bundle(service.bundle))
        by_namespace[place.namespace].append(service)
    for group in by_namespace.values():
        yield from _overlaps(sorted(group, key=lambda service: service.begin_ns), places)


def _overlaps(services: Sequence[Service], places: dict[str, RingRange]) -> Iterator[tuple[Service, Service]]:
    going_on: list[Service] = []
    for service in services:
        going_on = [other for other in going_on if other.end_ns >= service.begin_ns]
        for other in going_on:
            if other.pid != service.pid and places[other.bundle].overlaps(places[service.bundle]):
                yield other, service
        going_on.append(service)
