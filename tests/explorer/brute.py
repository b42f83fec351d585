"""The same without any thought: every log by itself, every set of removed records by itself, through the real replica."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import combinations
from typing import NamedTuple

from statechannel.protocol.log import RecordRead, Topic
from statechannel.protocol.replica import Phase, Replica
from statechannel.protocol.view import View
from tests.explorer.readers import Readers, states_of
from tests.explorer.world import Letter, heartbeat, letters


class Triple(NamedTuple):
    """One case.

    Attributes:
        begin: End of the log when the joiner began.
        removed: What the cleaner had removed by then.
    """

    log: Sequence[Letter]
    begin: int
    removed: frozenset[int]


def logs_of(records: int, start: Sequence[Letter] = ()) -> Iterator[list[Letter]]:
    """All logs of this number of records after the start."""
    if records == 0:
        yield [*start]
        return
    for log in logs_of(records - 1, start):
        for letter in letters(Readers(log).facts(), len(log)):
            yield [*log, letter]


def triples_of(log: Sequence[Letter]) -> Iterator[Triple]:
    """Every point at which a joiner may begin, with everything that may be removed by then."""
    for begin in range(len(log) + 1):
        later = [{letter.key for letter in log[offset + 1 : begin]} for offset in range(begin)]
        hidden = [offset for offset in range(begin) if log[offset].key in later[offset]]
        for count in range(len(hidden) + 1):
            yield from (Triple(log, begin, frozenset(removed)) for removed in combinations(hidden, count))


def joined_view(triple: Triple) -> View:
    """The view of a member that joins so, once a heartbeat vouches for the whole log."""
    log, begin, removed = triple
    replica = Replica(0, 1, compaction_lag_s=3_600.0, kept_records_max=1_000)
    records = [
        RecordRead(Topic.CHANNEL, 0, offset, 0, *letter) for offset, letter in enumerate(log) if offset not in removed
    ]
    records.append(RecordRead(Topic.CHANNEL, 0, len(log), 0, *heartbeat(len(log) - 1)))
    while replica.phase in (Phase.CLOSED, Phase.START_OVER):  # it reads strictly up to the first gap, and then again
        replica.opened(0.0, 0, begin)
        for record in records:
            replica.read(0.0, record)
    if replica.phase is not Phase.CAUGHT_UP:
        raise AssertionError(f"it did not join: {replica.why}")
    return replica.view


class BruteCount(NamedTuple):
    """What there was, and the triples in which the joiner holds other states than the reader of the whole log."""

    logs: int
    joined: int
    triples: int
    wrong: list[Triple]


def count(records: int, start: Sequence[Letter] = ()) -> BruteCount:
    """Try every log of this number of records after the start."""
    logs = joined = triples = 0
    wrong: list[Triple] = []
    for log in logs_of(records, start):
        logs += 1
        full = View(0, 1)
        for offset, letter in enumerate(log):
            full.read(offset, *letter)
        if full.ledger.open:
            continue
        joined += 1
        for triple in triples_of(log):
            triples += 1
            if states_of(joined_view(triple)) != states_of(full):
                wrong.append(triple)
    return BruteCount(logs, joined, triples, wrong)
