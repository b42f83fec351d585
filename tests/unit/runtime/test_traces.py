"""Spans of operations, without any Kafka."""

import subprocess
import sys

import pytest
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import StatusCode
from ulid import ULID

from statechannel.broker.observe.handovers import HandoverPhase
from statechannel.broker.observe.traces import Traces, TracesError, exporting, root_span_id_of, trace_id_of
from statechannel.engine.commands import Rejected, Started, Transfer
from statechannel.engine.effects import CallHook, Hook
from statechannel.extras import install_command
from statechannel.protocol.log import RecordRead, Topic
from statechannel.protocol.record import Kind, Record
from statechannel.protocol.states import State
from tests.support.waits import WAIT_S

OPERATION = str(ULID())
ASKED_MS = ULID.from_str(OPERATION).milliseconds
KEY = b"t/n/0x00000000_0xffffffff"


def spans_of(act) -> list:
    exporter = InMemorySpanExporter()
    traces = Traces("c", "b1", "i1", SimpleSpanProcessor(exporter))
    act(traces)
    traces.close()
    return list(exporter.get_finished_spans())


def accepted(state: State, at_ms: int) -> tuple[Record, RecordRead]:
    raw = {"flow": "transfer", "operation": OPERATION}
    record = Record(Kind.PROPOSAL, "id", 0, "b1", "i1", raw, 5, None, state, "b1", "b2")
    return record, RecordRead(Topic.CHANNEL, 0, 9, at_ms, KEY, b"")


def test_the_last_record_exports_the_root_from_the_command_on() -> None:
    at_ms = ASKED_MS + 100
    landing = HandoverPhase("transfer", "acquire", 0.05, 0.09, None, "transfer", ASKED_MS + 10, ASKED_MS + 50)
    child, root = spans_of(lambda traces: traces.accepted(*accepted(State.ASSIGNED, at_ms), landing))
    assert root.parent is None or root.parent.span_id == 0
    assert (root.context.trace_id, root.context.span_id) == (trace_id_of(OPERATION), root_span_id_of(OPERATION))
    assert (root.name, root.start_time, root.end_time) == ("transfer", ASKED_MS * 1_000_000, at_ms * 1_000_000)
    assert (child.name, child.parent.span_id) == ("transfer: acquire", root.context.span_id)
    assert (child.start_time, child.end_time) == ((ASKED_MS + 50) * 1_000_000, at_ms * 1_000_000)
    assert child.context.trace_id == root.context.trace_id
    assert child.attributes["statechannel.generation"] == 5
    assert root.resource.attributes["service.instance.id"] == "b1"


def test_the_first_record_is_a_point_in_time_and_no_root() -> None:
    (span,) = spans_of(lambda traces: traces.accepted(*accepted(State.RELEASING, ASKED_MS + 5), None))
    assert (span.name, span.start_time) == ("transfer: Releasing", span.end_time)


def test_a_command_and_a_hook_that_failed() -> None:
    def act(traces: Traces) -> None:
        command = Transfer(KEY.decode(), "b2", operation=OPERATION, timeout_s=5)
        traces.answered(command, Started(OPERATION, KEY.decode(), 0, 3), 0.01)
        traces.answered(command, Rejected("draining", "this broker is shutting down"), 0.0)
        traces.hook(CallHook(1, Hook.ON_OWN, KEY.decode(), 5, None, 15.0), OPERATION, 0.25, "on_own raised")
        traces.hook(CallHook(2, Hook.ON_OWN, KEY.decode(), 5, None, 15.0), None, 0.25, None)  # no operation: no trace

    begun, refused, hook = spans_of(act)
    assert [span.name for span in (begun, refused, hook)] == ["command Transfer", "command Transfer", "hook on_own"]
    assert begun.status.status_code is StatusCode.UNSET
    assert refused.status.status_code == StatusCode.ERROR
    assert refused.status.description == "this broker is shutting down"
    assert hook.end_time - hook.start_time == 250_000_000
    assert {span.context.trace_id for span in (begun, refused, hook)} == {trace_id_of(OPERATION)}
    assert len({span.context.span_id for span in (begun, refused, hook)}) == 3


def test_ids_are_the_same_everywhere_and_never_zero() -> None:
    program = f"from statechannel.broker.observe.traces import trace_id_of; print(trace_id_of({OPERATION!r}))"
    out = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=WAIT_S)
    assert int(out.stdout) == trace_id_of(OPERATION) > 0
    assert trace_id_of("a") != trace_id_of("b") != root_span_id_of("b")


@pytest.mark.parametrize("operation", ["not a ULID", "", "0" * 26])
def test_an_operation_id_of_any_form_makes_a_trace(operation) -> None:
    record, read = accepted(State.ASSIGNED, ASKED_MS)
    record.raw["operation"] = operation
    spans = spans_of(lambda traces: traces.accepted(record, read, None))
    assert [span.start_time for span in spans] == [ASKED_MS * 1_000_000] * 2


def test_the_environment_names_the_exporter(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_TRACES_EXPORTER", "nowhere")
    with pytest.raises(TracesError, match="nowhere"):
        exporting("c", "b1", "i1")
    monkeypatch.setenv("OTEL_TRACES_EXPORTER", "console")
    exporting("c", "b1", "i1").close()


def test_without_the_extra_it_says_what_to_install_and_nothing_else_needs_it() -> None:
    program = (
        "import sys; sys.modules['opentelemetry'] = None\n"
        "import statechannel.api, statechannel.broker.assembly\n"
        "try:\n    import statechannel.broker.observe.traces\n"
        "except Exception as error:\n    print(type(error).__mro__[1].__name__, error.hint)\n"
    )
    out = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=WAIT_S)
    assert out.stdout.startswith(f"StateChannelError Install it: `{install_command('otel')}`")
