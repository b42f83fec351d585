"""Load of the demo's brokers over time, with the moves: read from the brokers once a second, for the plot."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

import orjson

from statechannel.demo.client import LinkDownError, ask_broker
from statechannel.demo.cluster import DemoBroker
from statechannel.extras import install_command

PLOTS = "statechannel.demo_plots"
"""Entry points that draw a series: called with its JSON object and a folder, they return the written files."""
NAME = "balance"
FORMAT = 1
_EVERY_S = 1.0
_ANSWER_S = 2.0
_STOP_S = 5.0
_LATELY = 5
"""Number of readings averaged for a broker's load, to reduce noise."""


@dataclass(slots=True)
class LoadSeries:
    """Load by broker at each moment: its most used resource, as a fraction of the machine.

    Attributes:
        begun_ms: Wall time of the origin of all times.
        marks: Times of actions, with a label.
    """

    begun_ms: int
    at_s: list[float] = field(default_factory=list)
    loads: dict[str, list[float | None]] = field(default_factory=dict)
    moves: list[dict[str, Any]] = field(default_factory=list)
    marks: list[tuple[float, str]] = field(default_factory=list)

    def add(self, at_s: float, loads: Mapping[str, float | None]) -> None:
        self.at_s.append(at_s)
        for name in loads.keys() - self.loads.keys():
            self.loads[name] = [None] * (len(self.at_s) - 1)
        for name, known in self.loads.items():
            known.append(loads.get(name))

    def mark(self, text: str, at_ms: int) -> None:
        self.marks.append(((at_ms - self.begun_ms) / 1_000, text))

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

    def returned(self) -> Sequence[str]:
        left: dict[str, set[str]] = {}
        bundles: dict[str, None] = {}
        for move in self.moves:
            if move["result"] == "done":
                if move["destination"] in left.get(move["bundle"], ()):
                    bundles[move["bundle"]] = None
                left.setdefault(move["bundle"], set()).add(move["source"])
        return list(bundles)

    def lately(self) -> dict[str, float]:
        """Each broker's load, the mean of the last few readings."""
        means = {}
        for name, loads in sorted(self.loads.items()):
            known = [load for load in loads[-_LATELY:] if load is not None]
            if known:
                means[name] = sum(known) / len(known)
        return means

    def worst(self) -> dict[str, float]:
        """The loads at the moment of the greatest difference."""
        moments = [
            {name: load for name, loads in sorted(self.loads.items()) if (load := loads[at]) is not None}
            for at in range(len(self.at_s))
        ]
        return max(
            moments,
            key=lambda moment: max(moment.values(), default=0.0) - min(moment.values(), default=0.0),
            default={},
        )

    def to_json(self) -> dict[str, Any]:
        return {
            "kind": "balance-series",
            "format": FORMAT,
            "begun_ms": self.begun_ms,
            "at_s": [round(time_s, 3) for time_s in self.at_s],
            "loads": dict(sorted(self.loads.items())),
            "moves": self.moves,
            "marks": [{"at_s": at_s, "text": text} for at_s, text in self.marks],
        }

    def write(self, folder: Path) -> tuple[list[Path], str]:
        """Write the series as JSON, and draw it with an installed plotter.

        Returns:
            The files, and the reason without a plot, else empty.
        """
        folder.mkdir(parents=True, exist_ok=True)
        document = self.to_json()
        path = folder / f"{NAME}.json"
        path.write_bytes(orjson.dumps(document, option=orjson.OPT_INDENT_2))
        files, why = [path], "no plotter is installed"
        for point in entry_points(group=PLOTS):
            try:
                draw: Callable[[Mapping[str, Any], Path], Sequence[Path]] = point.load()
            except ImportError as error:
                why = f"{error}; `{install_command('simulate')}`"
                continue
            files += draw(document, folder)
            why = ""
        return files, why


def missing_plotter() -> str:
    """Why no plot can be drawn; empty if one can."""
    why = "no plotter is installed"
    for point in entry_points(group=PLOTS):
        try:
            point.load()
        except ImportError as error:
            why = str(error)
        else:
            return ""
    return why


class Sampler:
    """Reads the loads once a second from `start` to `stop`, in its own thread.

    Args:
        brokers: Returns the current brokers; called each time.
    """

    def __init__(self, brokers: Callable[[], Sequence[DemoBroker]]) -> None:
        self.series = LoadSeries(time.time_ns() // 1_000_000)
        self._brokers = brokers
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="demo-loads", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Stop reading. May be called twice, and without `start`."""
        self._ended.set()
        if self._thread.is_alive():
            self._thread.join(_STOP_S)

    def _run(self) -> None:
        begun_s = time.monotonic()
        while not self._ended.wait(_EVERY_S - (time.monotonic() - begun_s) % _EVERY_S):
            loads = {broker.id: _load_of(broker) for broker in self._brokers()}
            # The time of the last answer: no load of a reading is newer than that, however long the brokers took.
            self.series.add(time.monotonic() - begun_s, loads)


def _load_of(broker: DemoBroker) -> float | None:
    """Last load measured by a broker; None if it does not answer."""
    try:
        answer = ask_broker(broker.url, "status", _ANSWER_S)
        load = answer["status"]["extensions"]["balancer"]["load"]["now"]
    except (LinkDownError, LookupError, TypeError):
        return None
    return None if load is None else float(load["max"])
