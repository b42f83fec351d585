"""Load of live brokers over time, with the moves: read from the brokers once a second."""

import threading
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from tests.support.plane_client import LinkDownError, ask_broker

_EVERY_S = 1.0
_STOP_S = 5.0


@dataclass(slots=True)
class LoadSeries:
    """Load by broker at each moment: its most used resource, as a fraction of the machine.

    Attributes:
        begun_ms: Wall time of the origin of all times.
    """

    begun_ms: int
    at_s: list[float] = field(default_factory=list)
    loads: dict[str, list[float | None]] = field(default_factory=dict)
    moves: list[dict[str, Any]] = field(default_factory=list)

    def add(self, at_s: float, loads: Mapping[str, float | None]) -> None:
        self.at_s.append(at_s)
        for name in loads.keys() - self.loads.keys():
            self.loads[name] = [None] * (len(self.at_s) - 1)
        for name, known in self.loads.items():
            known.append(loads.get(name))

    def moved(self, decisions: Iterable[Mapping[str, Any]]) -> None:
        """Note the moves of decisions, as listed by `statechannel decisions`, in the order of the decisions."""
        self.moves = [
            {
                "at_s": (decision["at_ms"] - self.begun_ms) / 1_000,
                **{name: move[name] for name in ("bundle", "source", "destination", "result", "why")},
            }
            for decision in decisions
            for move in decision["moves"]
            if move["operation"] is not None
        ]

    def to_json(self) -> dict[str, Any]:
        return {
            "begun_ms": self.begun_ms,
            "at_s": [round(time_s, 3) for time_s in self.at_s],
            "loads": dict(sorted(self.loads.items())),
            "moves": self.moves,
        }


class Sampler:
    """Reads the loads once a second from `start` to `stop`, in its own thread.

    Args:
        urls: Data planes of the brokers, by broker.
    """

    def __init__(self, urls: Mapping[str, str]) -> None:
        self.series = LoadSeries(time.time_ns() // 1_000_000)
        self._urls = urls
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="loads", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._ended.set()
        self._thread.join(_STOP_S)

    def _run(self) -> None:
        begun_s = time.monotonic()
        while not self._ended.wait(_EVERY_S - (time.monotonic() - begun_s) % _EVERY_S):
            loads = {broker: _load_of(url) for broker, url in self._urls.items()}
            # The time of the last answer: no load of a reading is newer than that, however long the brokers took.
            self.series.add(time.monotonic() - begun_s, loads)


def _load_of(url: str) -> float | None:
    """Last load measured by a broker; None if it does not answer."""
    try:
        load = ask_broker(url, "status")["status"]["extensions"]["balancer"]["load"]["now"]
    except (LinkDownError, LookupError, TypeError):
        return None
    return None if load is None else float(load["max"])
