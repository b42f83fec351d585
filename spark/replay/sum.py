"""Adds up what the tasks of a replay have found. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from statechannel.audit import origins, rejections
from statechannel.audit.engine import GapCount
from statechannel.audit.gaps import sum_gap_rows
from statechannel.audit.moves import MoveCause, move_fields
from statechannel.audit.rejections import LostRaces, race_counts, rejected_document
from statechannel.protocol.verdict import Verdict
from statechannel.replay.auditor import AuditFindings
from statechannel.replay.survey import STRICT, ReadFacts

Body = Mapping[str, Any]
"""Content of a row of the kind `part` (`spark.replay.fold`)."""

Bodies = Sequence[tuple[int, Body]]
"""With their partitions."""


def findings_of_all(facts: Mapping[int, ReadFacts], partitions: Iterable[int], bodies: Bodies) -> AuditFindings:
    """What the answer is made of; partitions without a record are in it too."""
    findings = AuditFindings()
    for number in partitions:
        settled = facts.get(number, STRICT)
        findings.tentative |= settled.tentative
        if settled.stop is not None:
            findings.stops[number] = settled.stop
    for partition, body in bodies:
        part = AuditFindings(
            verdicts=Counter({Verdict(name): count for name, count in body["verdicts"].items()}),
            owners=Counter(body["owners"]),
            bundles=body["bundles"],
            namespaces=body["namespaces"],
            debts=[(partition, key.encode(), debt) for key, debt in body["debts"]],
        )
        findings.add(part)
    return findings


def gap_count_of(bodies: Bodies) -> GapCount:
    """Numbers of gaps in service."""
    counts = [body["gap_count"] for _, body in bodies]
    return GapCount(sum(count[0] for count in counts), sum(count[1] for count in counts))


def races_of(bodies: Bodies) -> list[dict[str, Any]]:
    """Who was rejected in favour of whom."""
    races = LostRaces()
    for _, body in bodies:
        for reason, writer, winner, count in body["races"]:
            races.counts[Verdict(reason), writer, winner] += count
    return list(race_counts(races))


def gap_sums_of(bodies: Bodies) -> list[dict[str, Any]]:
    """Sums of gaps by namespace."""
    return sum_gap_rows(body["gap_sums"] for _, body in bodies).rows()


def rejected_of(bodies: Bodies) -> dict[str, Any]:
    """What was rejected, by reason, writer and winner."""
    return rejected_document(rejections.added_up(body["rejected"] for _, body in bodies))


def origins_of(bodies: Bodies) -> dict[str, Any]:
    """How operations began."""
    return origins.put_together(body["origins"] for _, body in bodies)


def moves_of(bodies: Bodies) -> list[dict[str, Any]]:
    """Changes of owner by hour and cause."""
    counts: Counter[tuple[int, MoveCause]] = Counter()
    for _, body in bodies:
        for hour_ms, cause, count in body["moves"]:
            counts[hour_ms, MoveCause(cause)] += count
    return list(move_fields(counts.items()))
