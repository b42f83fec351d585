"""Table of all metrics of a member; `design/observability.md`, the dashboard and the alert rules are checked against it.

All names begin with `statechannel_`; all have the labels `channel` and `broker`. Labels never contain bundles.
"""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple


class MetricKind(StrEnum):
    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


class Metric(NamedTuple):
    """One metric family.

    Attributes:
        name: Without the prefix, and without `_total`.
        buckets: Upper bounds in seconds, of a histogram.
    """

    name: str
    kind: MetricKind
    meaning: str
    labels: tuple[str, ...] = ()
    buckets: tuple[float, ...] = ()

    @property
    def full_name(self) -> str:
        return f"{PREFIX}{self.name}" + ("_total" if self.kind is MetricKind.COUNTER else "")


PREFIX = "statechannel_"
_C, _G, _H = MetricKind.COUNTER, MetricKind.GAUGE, MetricKind.HISTOGRAM
_FLIGHT_S = (0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
_GAP_S = (*_FLIGHT_S, 120.0, 300.0, 900.0)
_CALL_S = (0.000_1, 0.000_5, 0.001, 0.005, 0.01, 0.025, 0.1, 0.25, 1.0, 2.5, 5.0, 10.0, 30.0)
_LOOP_S = (0.001, 0.002, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0)

TABLE: tuple[Metric, ...] = (
    # --- bundles
    Metric("bundles_serving", _G, "Bundles that this member serves"),
    Metric("bundles_in_flight", _G, "Bundles of the channel that are being moved, by state", ("state",)),
    Metric("oldest_in_flight_seconds", _G, "Age of the oldest move that this member saw begin; 0 without any"),
    Metric(
        "handoff_seconds",
        _H,
        "Phases of moves by log time, reported by the broker that ended the phase; `whole` is first to last record",
        ("flow", "phase"),
        _FLIGHT_S,
    ),
    Metric(
        "gap_seconds",
        _H,
        "Gaps in service of a bundle, reported by its new owner: from Releasing, or from when a lost owner was "
        "last heard, to Assigned",
        ("cause",),
        _GAP_S,
    ),
    Metric("operations", _C, "Operations ended, by flow and result", ("flow", "result")),
    # --- callers
    Metric("commands", _C, "Commands answered, by command and answer", ("command", "answer")),
    Metric("commands_waiting", _G, "Commands and lookups waiting for an answer"),
    Metric("lookups", _C, "Lookups answered, by answer", ("answer",)),
    Metric(
        "lookup_wait_seconds",
        _H,
        "From a lookup to its answer, of those that the cache could not answer at once",
        ("answer",),
        _CALL_S,
    ),
    Metric("lookups_waiting", _G, "Lookups waiting for the channel"),
    Metric("requests_open", _G, "Open requests of the requests topic"),
    Metric("hook_seconds", _H, "From the call of a hook to its end", ("hook",), _CALL_S),
    Metric("hook_failures", _C, "Hooks that raised or overran their deadline", ("hook",)),
    Metric("hooks_running", _G, "Hooks that have not returned"),
    Metric("hooks_late", _G, "Hooks that run past their deadlines; other hooks of their bundles wait for them"),
    # --- the log
    Metric("records", _C, "Channel records read, by verdict", ("verdict",)),
    Metric("forged_records", _G, "Records read with this member's incarnation that it did not write"),
    Metric("lag_records", _G, "Records between the applied offset and the end of the log", ("partition",)),
    Metric(
        "view_lag_seconds",
        _G,
        "Time since the whole log was applied; answers mention it when it is long",
        ("partition",),
    ),
    Metric("open_debts", _G, "Keys in debt: joins cannot end before they are paid"),
    Metric("oldest_debt_seconds", _G, "Age of the oldest open debt; 0 without debts"),
    Metric("pending_records", _G, "Own records whose verdict has not been read back"),
    Metric("append_seconds", _H, "From handing a record to the client to its delivery report", (), _CALL_S),
    Metric(
        "append_failures",
        _C,
        "Own records that are not, or may not be, in the log, by Kafka's name of the error",
        ("reason",),
    ),
    Metric("writer_queue_records", _G, "Own records without a delivery report"),
    Metric("kafka_available", _G, "1 while Kafka answers the client"),
    Metric(
        "kafka_throttle_seconds",
        _C,
        "Time for which Kafka delayed requests of this member's clients because of quotas, by kind of client",
        ("client",),
    ),
    Metric("kafka_outages", _C, "Number of times that Kafka stopped answering"),
    Metric(
        "topic_differences",
        _G,
        "Settings of the channel's topics that differ from the required ones; `hard` ones void a guarantee",
        ("harm",),
    ),
    Metric(
        "heads_lost", _G, "Partitions of the channel from whose heads records were deleted that no broker has restated"
    ),
    # --- the cluster
    Metric("mode", _G, "1 for the current mode of this member", ("mode",)),
    Metric("caught_up", _G, "1 while this member judges every partition"),
    Metric(
        "replicas_differ", _G, "Brokers, by partition, that hold other accepted states than this member; 10 at most"
    ),
    Metric("draining", _G, "1 while this member drains for a shutdown"),
    Metric("is_leader", _G, "1 while this member leads"),
    Metric("leader_term", _G, "Offset of its leadership claim; -1 while it does not lead"),
    Metric("members", _G, "Members in the registry, by state", ("what",)),
    Metric("log_silence_seconds", _G, "Age of the view: since the newest own heartbeat that was read back was sent"),
    Metric("repair_paused", _G, "1 while repair is paused because too many brokers were lost"),
    # --- the process
    Metric("info", _G, "1; the labels have incarnation and version", ("incarnation", "software")),
    Metric("events", _C, "Events of the member except verdicts, by event", ("event",)),
    Metric("events_suppressed", _C, "Events suppressed by the rate limit", ("event",)),
    Metric("part_restarts", _C, "Restarts of failed parts", ("part",)),
    Metric("inbox_records", _G, "Inputs queued for the loop"),
    Metric("loop_burst_seconds", _H, "Time for which one burst of inputs blocked the loop", (), _LOOP_S),
    Metric("loop_lag_seconds", _H, "Delay of the member's turns in the loop, caused by other code in it", (), _LOOP_S),
    Metric("loop_last_progress_timestamp_seconds", _G, "When the loop last processed its inputs"),
    Metric("loop_stuck", _G, "1 while the loop makes no progress"),
    Metric("http_requests", _C, "Answers of the endpoint, by path and status", ("path", "status")),
    Metric("http_refused", _C, "Connections refused by the endpoint because of the limit"),
)

METRICS: dict[str, Metric] = {metric.name: metric for metric in TABLE}
