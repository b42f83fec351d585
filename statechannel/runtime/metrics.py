"""Metrics of one broker for Prometheus, and the log lines of what the engine tells.

Bundles never stand in a label: there are too many. Ask the channel itself about a bundle.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import structlog
from prometheus_client import CollectorRegistry, Counter, Gauge, start_http_server

from statechannel.core.presence import Mode
from statechannel.errors import StateChannelError
from statechannel.runtime.outcomes import plain

if TYPE_CHECKING:
    from collections.abc import Mapping
    from threading import Thread
    from wsgiref.simple_server import WSGIServer

    from statechannel.core.effects import Emit, Hook

_log = structlog.get_logger("statechannel")

_WARN = frozenset({"hook.failed", "hook.late", "member.lost", "repair.paused", "mode.changed", "debt.alarm"})


class MetricsPortError(StateChannelError):
    """The port for metrics cannot be opened."""


class Metrics:
    """The metrics of one channel member; `registry` may be the embedder's own.

    Every name begins with `statechannel_`; the labels `channel` and `broker` tell members of one process apart.
    """

    def __init__(self, channel: str, broker: str, registry: CollectorRegistry | None = None) -> None:
        self.registry = registry or CollectorRegistry()
        self._own = {"channel": channel, "broker": broker}
        self._server: tuple[WSGIServer, Thread] | None = None
        self._verdicts = self._counter("records", "Channel records read, by verdict", "verdict")
        self._lookups = self._counter("lookups", "Lookups answered, by answer", "answer")
        self._operations = self._counter("operations", "Operations ended, by flow and result", "flow", "result")
        self._commands = self._counter("commands", "Commands answered, by command and answer", "command", "answer")
        self._hooks = self._counter("hook_failures", "Hooks that raised or overran their deadline", "hook")
        self._restarts = self._counter("part_restarts", "Parts that failed and were started again", "part")
        self._events = self._counter("events", "Everything that the engine told, by event", "event")
        self._debt = self._gauge("oldest_debt_seconds", "Age of the oldest open debt; 0 without debts")
        self._lag = self._gauge("lag_records", "Records between the end of the log and what was applied", "partition")
        self._mode = self._gauge("mode", "1 for the mode that this member is in", "mode")
        self._leader = self._gauge("is_leader", "1 while this member leads")
        self._caught_up = self._gauge("caught_up", "1 while this member judges every partition")
        self._serving = self._gauge("bundles_serving", "Bundles that this member serves")
        self._waiting = self._gauge("inbox_records", "Inputs that wait for the loop")
        self._progress = self._gauge("loop_last_progress_timestamp_seconds", "When the loop last looked at its inputs")
        self._stuck = self._gauge("loop_stuck", "1 while the loop makes no progress")
        self._seen_mode: str | None = None
        self._counted: dict[str, int] = {}

    def _counter(self, name: str, meaning: str, *labels: str) -> Counter:
        found = self._existing(f"statechannel_{name}")
        if isinstance(found, Counter):
            return found
        return Counter(f"statechannel_{name}_total", meaning, ["channel", "broker", *labels], registry=self.registry)

    def _gauge(self, name: str, meaning: str, *labels: str) -> Gauge:
        found = self._existing(f"statechannel_{name}")
        if isinstance(found, Gauge):
            return found
        return Gauge(f"statechannel_{name}", meaning, ["channel", "broker", *labels], registry=self.registry)

    def _existing(self, name: str) -> object | None:
        """Several members of one process may share one registry."""
        found: Mapping[str, object] = getattr(self.registry, "_names_to_collectors", {})
        return found.get(name)

    # --- what happened ----------------------------------------------------------------------------------------------

    def told(self, event: Emit) -> None:
        """Log and count one event of the engine."""
        facts: dict[str, Any] = {name: plain(value) for name, value in event.facts.items() if value != ""}
        self._events.labels(**self._own, event=event.event).inc()
        if event.event == "operation.ended":
            flow, result = str(facts.get("flow") or "none"), str(facts.get("result") or "none")
            self._operations.labels(**self._own, flow=flow, result=result).inc()
        good = event.event == "mode.changed" and facts.get("mode") == Mode.NORMAL
        level = _log.warning if event.event in _WARN and not good else _log.info
        facts.setdefault("broker", self._own["broker"])
        level(event.event, **facts)

    def verdicts(self, counts: Mapping[str, int]) -> None:
        """Bring the counters up to these totals since the start."""
        for verdict, count in counts.items():
            more = count - self._counted.get(verdict, 0)
            if more > 0:
                self._verdicts.labels(**self._own, verdict=verdict).inc(more)
                self._counted[verdict] = count

    def answered(self, command: str, answer: str) -> None:
        """A command got its answer."""
        self._commands.labels(**self._own, command=command, answer=answer).inc()
        if command == "Lookup":
            self._lookups.labels(**self._own, answer=answer).inc()

    def hook_failed(self, hook: Hook, _: str) -> None:
        """A hook raised or overran."""
        self._hooks.labels(**self._own, hook=hook.value).inc()

    def restarted(self, part: str) -> None:
        """A part failed and is started again."""
        self._restarts.labels(**self._own, part=part).inc()

    # --- how things are ---------------------------------------------------------------------------------------------

    def observe(
        self,
        *,
        mode: str,
        leading: bool,
        caught_up: bool,
        serving: int,
        waiting: int,
        oldest_debt_s: float,
        lag_records: Mapping[int, int],
        progress_at_s: float,
    ) -> None:
        """Set the gauges; called a few times a second.

        Args:
            progress_at_s: Wall time, seconds since 1970.
            lag_records: By partition.
        """
        own = self._own
        if mode != self._seen_mode:
            if self._seen_mode is not None:
                self._mode.labels(**own, mode=self._seen_mode).set(0)
            self._mode.labels(**own, mode=mode).set(1)
            self._seen_mode = mode
        self._leader.labels(**own).set(leading)
        self._caught_up.labels(**own).set(caught_up)
        self._serving.labels(**own).set(serving)
        self._waiting.labels(**own).set(waiting)
        self._debt.labels(**own).set(oldest_debt_s)
        self._progress.labels(**own).set(progress_at_s)
        for partition, lag in lag_records.items():
            self._lag.labels(**own, partition=str(partition)).set(lag)

    def stuck(self, *, stuck: bool) -> None:
        """The watchdog spoke."""
        self._stuck.labels(**self._own).set(stuck)

    # --- port -------------------------------------------------------------------------------------------------------

    @property
    def port(self) -> int | None:
        """The port that is open; None without one."""
        return None if self._server is None else int(self._server[0].server_port)

    def serve(self, port: int, address: str = "127.0.0.1") -> int:
        """Serve the metrics over HTTP; the port in use (0 takes a free one).

        Raises:
            MetricsPortError: The port is taken or not allowed.
        """
        try:
            self._server = start_http_server(port, addr=address, registry=self.registry)
        except OSError as error:
            raise MetricsPortError(
                f"The port {port} for metrics on {address} cannot be opened: {error.strerror or error}.",
                hint="Choose another port, or none, in the settings.",
            ) from error
        return int(self._server[0].server_port)

    def close(self) -> None:
        """Close the port."""
        if self._server is not None:
            server, thread = self._server
            server.shutdown()
            server.server_close()
            thread.join(5.0)
            self._server = None
