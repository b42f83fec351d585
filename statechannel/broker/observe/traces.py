"""OpenTelemetry traces of operations (extra `otel`): from the command to the last reaction, across brokers.

The trace id and the id of the root span are derived from the operation's id. So brokers need no further communication:
each exports its own spans, and all join one trace. The root is exported by the broker that wrote the last record.
"""

from __future__ import annotations

import os
import time
from hashlib import sha256
from importlib.metadata import entry_points
from typing import TYPE_CHECKING, Any

from ulid import ULID

from statechannel.broker.observe.event_log import generation_of
from statechannel.broker.observe.handovers import flow_of
from statechannel.engine import commands
from statechannel.errors import StateChannelError
from statechannel.extras import install_command
from statechannel.operations import outcomes
from statechannel.protocol.states import IN_FLIGHT

try:
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor
    from opentelemetry.sdk.trace.id_generator import IdGenerator, RandomIdGenerator
    from opentelemetry.trace import NonRecordingSpan, SpanContext, SpanKind, StatusCode, TraceFlags, set_span_in_context
except ImportError as missing:

    class TracesMissingError(StateChannelError):
        """The packages for traces are not installed."""

    raise TracesMissingError(
        f"Traces are on (observe.traces), but OpenTelemetry is not installed: {missing}.",
        hint=f"Install it: `{install_command('otel')}`, or switch observe.traces off.",
    ) from missing

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import SpanProcessor

    from statechannel.broker.observe.handovers import HandoverPhase
    from statechannel.engine.commands import Command, Outcome
    from statechannel.engine.effects import CallHook
    from statechannel.protocol.log import RecordRead
    from statechannel.protocol.record import Record

_MS = 1_000_000
_S = 1_000_000_000
_ULID_CHARACTERS = 26
_CLOSE_MS = 2_000
EARLIER_MAX_MS = 600_000
"""Maximum age of an operation's id for deriving the time of its command."""


class TracesError(StateChannelError):
    """Traces cannot be exported as configured by the environment."""


def trace_id_of(operation: str) -> int:
    """The trace of an operation: never 0, the same in every broker."""
    return int.from_bytes(sha256(b"trace " + operation.encode(errors="replace")).digest()[:16], "big") or 1


def root_span_id_of(operation: str) -> int:
    """The root span of an operation: never 0, the same in every broker."""
    return int.from_bytes(sha256(b"root " + operation.encode(errors="replace")).digest()[:8], "big") or 1


class _Ids(IdGenerator):
    """Random ids, except for the next root span. Only used in the loop's thread."""

    def __init__(self) -> None:
        self._random = RandomIdGenerator()
        self.next_root: tuple[int, int] | None = None

    def generate_trace_id(self) -> int:
        return self._random.generate_trace_id() if self.next_root is None else self.next_root[0]

    def generate_span_id(self) -> int:
        return self._random.generate_span_id() if self.next_root is None else self.next_root[1]


class Traces:
    """Spans of one member. In the loop's thread; the processor exports in its own.

    Args:
        processor: Takes the spans; it must not block.
    """

    def __init__(self, channel: str, broker: str, incarnation: str, processor: SpanProcessor) -> None:
        self._ids = _Ids()
        resource = Resource.create(_about(broker))
        self._provider = TracerProvider(resource=resource, id_generator=self._ids, shutdown_on_exit=False)
        self._provider.add_span_processor(processor)
        self._tracer = self._provider.get_tracer("statechannel")
        self._common = {
            "statechannel.channel": channel,
            "statechannel.broker": broker,
            "statechannel.incarnation": incarnation,
        }

    # --- what happened ----------------------------------------------------------------------------------------------

    def accepted(self, record: Record, read: RecordRead, landing: HandoverPhase | None) -> None:
        """Add an accepted record of this member: it ends a phase, and perhaps the operation."""
        operation = record.text("operation")
        if operation is None:
            return
        bundle, at_ms = (read.key or b"").decode(errors="replace"), read.timestamp_ms
        facts = {
            "statechannel.bundle": bundle,
            "statechannel.state": str(record.state),
            "statechannel.version": record.version,
            "statechannel.offset": read.offset,
            "statechannel.partition": read.partition,
            "statechannel.from": record.from_,
            "statechannel.to": record.to,
            "statechannel.generation": generation_of(record),
            "statechannel.reason": record.text("reason"),
        }
        flow = flow_of(record)
        if landing is None:
            self._child(operation, f"{flow}: {record.state}", at_ms * _MS, at_ms * _MS, facts)
        else:
            self._child(operation, f"{flow}: {landing.phase}", landing.since_ms * _MS, at_ms * _MS, facts)
        if record.state not in IN_FLIGHT:
            began_ms = at_ms if landing is None else landing.began_ms
            self._root(operation, flow, _asked_ms(operation, began_ms), at_ms, facts)

    def answered(self, command: Command, outcome: Outcome, took_s: float) -> None:
        operation = getattr(command, "operation", None)
        if operation is None:
            return
        ended_ns = time.time_ns()
        facts = {"statechannel.answer": outcomes.name_of(outcome)}
        name = f"command {type(command).__name__}"
        message = ""
        if isinstance(outcome, commands.Rejected | commands.Unknown | commands.NotFound):
            message = outcome.message
        self._child(operation, name, ended_ns - int(took_s * _S), ended_ns, facts, message, SpanKind.SERVER)

    def hook(self, effect: CallHook, operation: str | None, took_s: float, error: str | None) -> None:
        if operation is None:
            return
        ended_ns = time.time_ns()
        facts = {"statechannel.bundle": effect.bundle, "statechannel.generation": effect.generation}
        self._child(operation, f"hook {effect.hook}", ended_ns - int(took_s * _S), ended_ns, facts, error or "")

    # --- spans ------------------------------------------------------------------------------------------------------

    def _child(
        self,
        operation: str,
        name: str,
        began_ns: int,
        ended_ns: int,
        facts: dict[str, Any],
        error: str = "",
        kind: SpanKind = SpanKind.INTERNAL,
    ) -> None:
        parent = SpanContext(
            trace_id_of(operation),
            root_span_id_of(operation),
            is_remote=True,
            trace_flags=TraceFlags(TraceFlags.SAMPLED),
        )
        context = set_span_in_context(NonRecordingSpan(parent))
        span = self._tracer.start_span(
            name, context, kind, self._attributes(operation, facts), start_time=began_ns, record_exception=False
        )
        if error:
            span.set_status(StatusCode.ERROR, error)
        span.end(max(began_ns, ended_ns))

    def _root(self, operation: str, flow: str, began_ms: int, ended_ms: int, facts: dict[str, Any]) -> None:
        self._ids.next_root = trace_id_of(operation), root_span_id_of(operation)
        try:
            attributes = self._attributes(operation, facts)
            span = self._tracer.start_span(
                flow, set_span_in_context(_NOBODY), attributes=attributes, start_time=began_ms * _MS
            )
        finally:
            self._ids.next_root = None
        span.end(max(began_ms, ended_ms) * _MS)

    def _attributes(self, operation: str, facts: dict[str, Any]) -> dict[str, Any]:
        known = {name: value for name, value in facts.items() if value is not None}
        return {**self._common, "statechannel.operation": operation, **known}

    def close(self) -> None:
        self._provider.force_flush(_CLOSE_MS)
        self._provider.shutdown()


def _about(broker: str) -> dict[str, str]:
    """Attributes of the service; those in the environment take precedence."""
    environment = os.environ.get("OTEL_RESOURCE_ATTRIBUTES", "")
    named = {part.partition("=")[0].strip() for part in environment.split(",")}
    named |= {"service.name"} if "OTEL_SERVICE_NAME" in os.environ else set()
    about = {"service.name": "statechannel", "service.instance.id": broker}
    return {name: value for name, value in about.items() if name not in named}


_NOBODY = NonRecordingSpan(SpanContext(0, 0, is_remote=False))


def _asked_ms(operation: str, began_ms: int) -> int:
    """Time of the command: ids of operations are ULIDs, which begin with it; else the first record's time."""
    if len(operation) != _ULID_CHARACTERS:
        return began_ms
    try:
        asked_ms = ULID.from_str(operation).milliseconds
    except ValueError:
        return began_ms
    return asked_ms if began_ms - EARLIER_MAX_MS <= asked_ms <= began_ms else began_ms


def exporting(channel: str, broker: str, incarnation: str) -> Traces:
    """Traces exported by the usual environment variables (OTEL_TRACES_EXPORTER, OTEL_EXPORTER_OTLP_...).

    Raises:
        TracesError: The named exporter is not installed, or cannot be created.
    """
    name = os.environ.get("OTEL_TRACES_EXPORTER", "otlp").strip() or "otlp"
    protocol = os.environ.get("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", os.environ.get("OTEL_EXPORTER_OTLP_PROTOCOL", ""))
    wanted = {"otlp": "otlp_proto_grpc" if protocol == "grpc" else "otlp_proto_http"}.get(name, name)
    exporters = [point for point in entry_points(group="opentelemetry_traces_exporter") if point.name == wanted]
    if not exporters:
        raise TracesError(
            f"The trace exporter {wanted!r} is not installed (OTEL_TRACES_EXPORTER={name}).",
            hint="`otlp` (over HTTP) and `console` come with statechannel[otel]; others are separate packages.",
        )
    try:
        exporter = exporters[0].load()()
    except Exception as error:
        raise TracesError(
            f"The trace exporter {wanted!r} cannot be created: {type(error).__name__}.",
            hint="Check the OTEL_EXPORTER_... environment variables.",
        ) from error
    return Traces(channel, broker, incarnation, BatchSpanProcessor(exporter))
