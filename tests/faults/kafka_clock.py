"""The wall clock of a Kafka node that runs: set by an agent that is loaded into it (`KafkaClock.java`).

Log times are Kafka's, so that the checker has to put them right again before it compares them with anything.
"""

import shutil
import subprocess
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from statechannel.protocol.log import RecordRead

SOURCE = Path(__file__).with_name("KafkaClock.java")
COMPILE_S, LOAD_S = 60.0, 8.0
SLACK_MS = 1_000
_MANIFEST = "Agent-Class: KafkaClock\nCan-Retransform-Classes: true\n"


class NoJdkError(Exception):
    """Only a development kit of Java can make an agent and load it; Kafka itself needs none."""


def make_agent(folder: Path) -> Path:
    """Compile the agent; once for a folder.

    Raises:
        NoJdkError: There is none on this machine.
    """
    agent = folder / "kafka-clock.jar"
    if agent.exists():
        return agent
    classes = folder / "kafka-clock"
    classes.mkdir(exist_ok=True)
    (classes / "manifest").write_text(_MANIFEST)
    _run(["javac", "--release", "17", "-d", str(classes), str(SOURCE)], COMPILE_S)
    _run(["jar", "cfm", str(agent), str(classes / "manifest"), "-C", str(classes), "."], COMPILE_S)
    return agent


def set_clock(pid: int, agent: Path, offset_s: float) -> bool:
    """Set a node's clock apart from the machine's; whether that was done (a stopped node does not answer)."""
    try:
        _run(["jcmd", str(pid), "JVMTI.agent_load", str(agent), str(round(offset_s * 1_000))], LOAD_S)
    except subprocess.SubprocessError:
        return False
    return True


def _run(command: Sequence[str], timeout_s: float) -> None:
    if shutil.which(command[0]) is None:
        raise NoJdkError(f"there is no {command[0]} here")
    subprocess.run(command, capture_output=True, timeout=timeout_s, check=True)


@dataclass(slots=True)
class ClockSpan:
    """A time in which a node's clock was, or may have been, set apart. By the monotonic clock."""

    offset_s: float
    start_ns: int
    end_ns: int = 2**62


def true_times(records: Iterable[tuple[RecordRead, int]], spans: Sequence[ClockSpan], wall_ns: int) -> list[RecordRead]:
    """Records with the time by the machine's clock at which Kafka took them.

    A record is seen soon after it was written, and never before. So of the times that it may have been written at, by each
    offset that was on at that time, the latest before it was seen is right; a reader that lags by the whole offset is misled.

    Args:
        records: Each with the time when it was seen, by the monotonic clock.
        wall_ns: The machine's wall clock minus its monotonic clock.
    """
    corrected = []
    for record, seen_ns in records:
        possible = [record.timestamp_ms]
        for span in spans:
            at_ms = record.timestamp_ms - round(span.offset_s * 1_000)
            start_ms, end_ms = ((at_ns + wall_ns) // 1_000_000 for at_ns in (span.start_ns, span.end_ns))
            if start_ms - SLACK_MS <= at_ms <= end_ms + SLACK_MS:
                possible.append(at_ms)
        seen_ms = (seen_ns + wall_ns) // 1_000_000 + 20
        before = [at_ms for at_ms in possible if at_ms <= seen_ms]
        corrected.append(record._replace(timestamp_ms=max(before, default=min(possible))))
    return corrected
