"""What clients and brokers told, as it happened. Times are nanoseconds of the monotonic clock that all processes here share."""

from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import orjson

from tests.faults.registers import Call
from tests.faults.service import Service


@dataclass(frozen=True, slots=True)
class Write:
    """A write of a topic that a broker took. `at_ns`: when the broker checked that it serves the bundle."""

    topic: str
    broker: str
    pid: int
    bundle: str
    generation: int
    sent_ns: int
    at_ns: int
    got_ns: int


@dataclass(frozen=True, slots=True)
class Lookup:
    """A lookup that named an owner."""

    topic: str
    via: str
    owner: str
    bundle: str
    generation: int
    stale_age_s: float | None
    sent_ns: int
    got_ns: int


@dataclass(slots=True)
class Outage:
    """A time in which no write of a topic was taken; `end_ns` None while it lasts."""

    topic: str
    start_ns: int
    end_ns: int | None = None


@dataclass(slots=True)
class Asked:
    """An operation that was asked for through the requests topic.

    Attributes:
        answer: `done`, `rejected`, `unknown`, ... or `error` where the command itself failed.
    """

    kind: str
    args: dict[str, Any]
    sent_ns: int
    got_ns: int = 0
    operation: str | None = None
    answer: str = "pending"
    facts: dict[str, Any] = field(default_factory=dict)
    started: dict[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class Serving:
    """A process called to serve a bundle, or to let go of it."""

    broker: str
    pid: int
    incarnation: str | None
    event: str
    bundle: str
    generation: int
    at_ns: int


@dataclass(slots=True)
class FaultSpan:
    """A fault that was on. `touched`: broker ids, or `*` for all."""

    kind: str
    touched: tuple[str, ...]
    start_ns: int
    healed_ns: int | None = None
    calm_ns: int | None = None
    detail: str = ""


@dataclass(slots=True)
class Recovery:
    """How a round ended: times after everything was healed.

    Attributes:
        healthy_s: Until all brokers were caught up, in normal mode, with one leader, and repair was not paused.
        served_s: From then on until every bundle was served by its one owner and all its topics took writes.
        stall_s: What this machine kept a process waiting meanwhile that wanted to run all the time.
    """

    faults: list[str]
    healed_ns: int
    healthy_s: float | None = None
    served_s: float | None = None
    stall_s: float = 0.0
    problems: list[str] = field(default_factory=list)


@dataclass(slots=True)
class Beside:
    """What the other brokers did while one was sick for longer than every patience.

    Attributes:
        served_s: From the beginning of the fault until every topic took writes and a new namespace was served.
    """

    fault: str
    begun_ns: int
    served_s: float | None = None
    problems: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class LeftInDebt:
    """All brokers were killed at `at_ms`, by the wall clock, with junk at these offsets."""

    offsets: tuple[int, ...]
    at_ms: int


@dataclass(slots=True)
class History:
    """Everything of one run."""

    writes: list[Write] = field(default_factory=list)
    calls: list[Call] = field(default_factory=list)
    services: list[Service] = field(default_factory=list)
    lookups: list[Lookup] = field(default_factory=list)
    outages: list[Outage] = field(default_factory=list)
    asked: list[Asked] = field(default_factory=list)
    serving: list[Serving] = field(default_factory=list)
    faults: list[FaultSpan] = field(default_factory=list)
    recoveries: list[Recovery] = field(default_factory=list)
    beside: list[Beside] = field(default_factory=list)
    changed: list[list[str]] = field(default_factory=list)
    """After each total outage in debt: keys that the brokers hold otherwise than a reader of the whole log."""
    refused_writes: int = 0
    undetermined_lookups: int = 0

    def save(self, path: Path) -> None:
        """A line of JSON for each thing that was noted."""
        with path.open("wb") as out:
            for name in (
                "faults",
                "recoveries",
                "beside",
                "asked",
                "outages",
                "serving",
                "services",
                "lookups",
                "writes",
                "calls",
            ):
                for entry in getattr(self, name):
                    out.write(orjson.dumps({"what": name} | asdict(entry), option=orjson.OPT_APPEND_NEWLINE))
