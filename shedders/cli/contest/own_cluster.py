"""Traces of a real cluster: from a snapshot, a history of load reports, or a saved trace."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

from shedders.cli.options import registered, snapshot_from
from shedders.snapshots.file import write_snapshot
from statechannel.cli.kit.failures import CommandError
from statechannel.cli.kit.options import Connect
from statechannel.cli.kit.output import duration, say
from statechannel.errors import ExitCode

if TYPE_CHECKING:
    from shedders.contest.contenders import Contender
    from shedders.contest.runs import TraceSource

LEAST_S: Final = 300.0
"""Shortest useful history: strategies wait for several hits before they move anything."""


@dataclass(frozen=True, slots=True)
class OwnCluster:
    """Options that name the cluster.

    Attributes:
        snapshot: A file, or a registered word such as `live`.
        history: File of load reports, one per line.
        trace: File of a saved trace.
    """

    snapshot: str | None = None
    history: Path | None = None
    trace: Path | None = None

    @property
    def words(self) -> list[str]:
        """The options as words of a command line."""
        options = {"--snapshot": self.snapshot, "--history": self.history, "--trace": self.trace}
        return [word for name, value in options.items() if value is not None for word in (name, str(value))]

    @property
    def count(self) -> int:
        """How many are set."""
        return len(self.words) // 2

    @property
    def is_set(self) -> bool:
        """Whether any is set."""
        return self.count > 0


def own_source(own: OwnCluster, folder: Path, connect: Connect, *, hours: float) -> tuple[TraceSource, list[Contender]]:
    """Trace source of the cluster, and an additional contender: the settings that a snapshot's cluster uses now.

    Args:
        folder: A live snapshot is written there, for every process to read.

    Raises:
        StateChannelError: The source cannot be read, or cannot be converted to a trace.
    """
    from shedders.contest.present import present
    from shedders.contest.runs import SourceKind
    from shedders.contest.sources import file_source, trace_made

    extra: list[Contender] = []
    if own.trace is not None:
        source = file_source(SourceKind.TRACE, own.trace, own.trace.stem)
    elif own.history is not None:
        source = file_source(SourceKind.HISTORY, own.history, own.history.stem)
    else:
        word = str(own.snapshot)
        taken = snapshot_from(word, connect)
        extra.append(present(taken))
        path = Path(word)
        if word in registered():
            path = folder / f"{word}-snapshot.json"
            write_snapshot(taken, path)
        source = file_source(SourceKind.SNAPSHOT, path, path.stem, hours=hours)
    # A source without a trace is reported here, not by each run.
    trace = trace_made(source, 1)
    span_s = trace.steps * trace.step_s
    if own.history is not None and span_s < LEAST_S:
        raise CommandError(
            f"the history spans {duration(1_000 * span_s)}; at least {duration(1_000 * LEAST_S)} are needed",
            hint="Record for longer (--for 30m), or extend the present load: `simulate compare --snapshot live`.",
            code=ExitCode.UNDETERMINED,
        )
    for remark in getattr(trace, "remarks", ()):
        say(f"note: {remark}")
    return replace(source, about=trace.about), extra
