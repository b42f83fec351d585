"""Lost races: rejected proposals, and the accepted records that came first. Pure functions over an audit's observations."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from statechannel.protocol.log import RecordRead
from statechannel.protocol.record import Kind
from statechannel.protocol.verdict import REJECTIONS, Verdict
from statechannel.protocol.view import Judgement


@dataclass(frozen=True, slots=True)
class LostRace:
    """A rejected proposal, and the accepted record that came first."""

    partition: int
    offset: int
    timestamp_ms: int
    key: str
    reason: Verdict
    state: str
    version: int
    writer: str
    winner: str | None
    winner_id: str | None
    winner_version: int


class LostRaces:
    """Counts rejected proposals by reason, writer and winner, and keeps the newest of them.

    Args:
        keep: Maximum number of races that are kept in full; all are counted.
    """

    def __init__(self, keep: int = 20) -> None:
        self.counts: Counter[tuple[Verdict, str, str | None]] = Counter()
        self.newest: list[LostRace] = []
        self._keep = keep

    def observe(self, record: RecordRead, judgement: Judgement) -> None:
        """Apply one judged record."""
        decoded, key = judgement.record, judgement.key
        if judgement.verdict not in REJECTIONS or decoded is None or key is None or decoded.kind is not Kind.PROPOSAL:
            return
        winner = None if key.writer is None or key.state is None else key.writer.broker
        self.counts[judgement.verdict, decoded.broker, winner] += 1
        self.newest.append(
            LostRace(
                record.partition,
                record.offset,
                record.timestamp_ms,
                key.name,
                judgement.verdict,
                decoded.state.value,
                decoded.version,
                decoded.broker,
                winner,
                key.accepted_id if key.state is not None else None,
                key.version,
            )
        )
        if len(self.newest) > self._keep:
            del self.newest[0]


def race_counts(races: LostRaces) -> Iterator[dict[str, Any]]:
    """Rejected proposals by reason, writer and winner, the most frequent first, then by name."""
    for (reason, writer, winner), count in sorted(
        races.counts.items(), key=lambda item: (-item[1], *map(str, item[0]))
    ):
        yield {"reason": reason.value, "writer": writer, "winner": winner, "count": count}
