"""Traces of load histories: what the brokers reported comes out again, step by step."""

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loaddata.model.broker_load import BrokerLoad, ResourceUsage
from loaddata.model.bundle_load import BundleStats, TopBundle
from loaddata.report.record import (
    BrokerLoadReport,
    ReportHeader,
    ReportKind,
    TopBundlesReport,
    encode_broker_load,
    encode_top_bundles,
)
from shedders.contest.contenders import contender
from shedders.contest.history import HistoryError, HistoryRecord, read_history
from shedders.contest.history_trace import from_history
from shedders.contest.recorded import load, save
from shedders.contest.trace import TraceEvent
from shedders.contest.world import simulate
from tests.unit.simulate.test_workload import equal

LOW, HIGH = "t/a/0x00000000_0x80000000", "t/a/0x80000000_0xffffffff"
START_MS = 1_750_000_000_000


def make_report(at_s, broker, amount, cpu=112.0, bundles=3):
    """A report of a broker of 4 cores; 12 % of a core are idle."""
    usage = BrokerLoad(
        cpu=ResourceUsage(cpu, 400.0),
        bandwidth_in=ResourceUsage(1.0, 1e6),
        bandwidth_out=ResourceUsage(1.0, 1e6),
        msg_rate_in=amount,
        msg_rate_out=2 * amount,
        msg_throughput_in=100 * amount,
        msg_throughput_out=200 * amount,
        bundles=bundles,
    )
    value = encode_broker_load(BrokerLoadReport(ReportHeader(broker, "i-1", 1, START_MS), usage))
    return HistoryRecord(START_MS + int(at_s * 1e3), broker.encode(), value, ReportKind.BROKER_LOAD)


def top(at_s, broker, **amounts):
    names = {"low": LOW, "high": HIGH, "left": "t/a/0x00000000_0x40000000", "right": "t/a/0x40000000_0x80000000"}
    some = [
        TopBundle(names[name], BundleStats(amount, 2 * amount, 100 * amount, 200 * amount, producers=8, consumers=8))
        for name, amount in amounts.items()
    ]
    value = encode_top_bundles(TopBundlesReport(ReportHeader(broker, "i-1", 1, START_MS), some))
    return HistoryRecord(START_MS + int(at_s * 1e3), broker.encode(), value, ReportKind.TOP_BUNDLES)


def gone(at_s, broker, kind=ReportKind.BROKER_LOAD):
    return HistoryRecord(START_MS + int(at_s * 1e3), broker.encode(), None, kind)


def halves(trace, step, channel="msg_rate_in"):
    """Demand of the lower half of t/a, of its upper half, and of what nobody names."""
    demand = getattr(trace.demand(step), channel)
    named, lower = trace.units.namespace == 0, trace.units.position < 0x80000000
    return [float(demand[some].sum()) for some in (named & lower, named & ~lower, ~named)]


BASIC = [
    make_report(0, "b1", 40.0),
    top(0, "b1", low=20.0, high=10.0),
    make_report(0, "b2", 5.0),
    make_report(600, "b1", 60.0),
    top(700, "b1", low=30.0),
    make_report(3600, "b2", 5.0),
]


def test_figures_by_hand():
    trace = from_history(BASIC, step_s=60)
    assert (trace.steps, trace.step_s) == (60, 60)
    assert [(machine.name, machine.cores, machine.idle_percent) for machine in trace.machines] == [
        ("b1", 4, 3),
        ("b2", 4, 3),
    ]
    assert trace.namespaces[0].owners == ("b1", "b1")
    assert [(namespace.name, namespace.bundles, set(namespace.owners)) for namespace in trace.namespaces[1:]] == [
        ("unseen/1", 1, {"b1"}),
        ("unseen/2", 3, {"b2"}),
    ]
    # b1 has 40, of which 30 are named; b2's 5 are not.
    assert halves(trace, 0) == pytest.approx([20, 10, 15])
    assert halves(trace, 0, "msg_throughput_out") == pytest.approx([4_000, 2_000, 3_000])
    # 100 points of CPU are busy on each: half and a quarter of b1's.
    assert halves(trace, 0, "cpu") == pytest.approx([50, 25, 25 + 100])
    assert halves(trace, 9) == pytest.approx([20, 10, 15])
    assert halves(trace, 10) == pytest.approx([20, 10, 35])
    # At 700 s, within step 11; from step 12 on. What is not told any more stays as it was.
    assert halves(trace, 11) == pytest.approx([20, 10, 35])
    assert halves(trace, 12) == pytest.approx([30, 10, 25])
    assert halves(trace, 59) == pytest.approx([30, 10, 25])
    assert trace.units.sessions[trace.units.namespace == 0].sum() == 32


def test_records_may_come_in_any_order():
    assert equal(from_history(BASIC[::-1], step_s=60).demand(20), from_history(BASIC, step_s=60).demand(20))


def test_a_bundle_that_moved_counts_at_its_new_broker():
    records = [
        make_report(0, "b1", 40.0),
        top(0, "b1", low=30.0),
        make_report(0, "b2", 5.0),
        make_report(600, "b1", 10.0),
        make_report(600, "b2", 35.0),
        top(600, "b2", low=30.0),
        make_report(3600, "b1", 10.0),
    ]
    trace = from_history(records, step_s=60)
    assert halves(trace, 5) == pytest.approx([30, 0, 15])
    assert halves(trace, 15) == pytest.approx([30, 0, 15])


def test_a_split_ends_the_parent():
    records = [
        make_report(0, "b1", 40.0),
        top(0, "b1", low=30.0),
        top(900, "b1", left=18.0, right=11.0),
        make_report(3600, "b1", 40.0),
    ]
    trace = from_history(records, step_s=60)
    assert trace.namespaces[0].bundles == 2
    assert halves(trace, 14) == pytest.approx([30, 0, 10])
    assert halves(trace, 15) == pytest.approx([29, 0, 11])
    first = trace.units.position < 0x40000000
    assert trace.demand(15).msg_rate_in[first & (trace.units.namespace == 0)].sum() == pytest.approx(18)


def test_brokers_come_and_go():
    records = [
        make_report(0, "b1", 40.0),
        make_report(1800, "b2", 5.0),
        gone(2400, "b2"),
        gone(2500, "b2"),
        gone(2600, "b1", ReportKind.TOP_BUNDLES),
        make_report(3000, "b2", 6.0),
        make_report(3300, "b3", 1.0),
        gone(6900, "b3"),
        make_report(7200, "b1", 40.0),
    ]
    trace = from_history(records, step_s=60)
    assert trace.events == [
        TraceEvent(1800, "join", "b2"),
        TraceEvent(2400, "leave", "b2"),
        TraceEvent(3000, "join", "b2"),
        TraceEvent(3300, "join", "b3"),
        TraceEvent(3300, "lost", "b3"),
    ]
    assert [sum(halves(trace, step)) for step in (0, 30, 41, 50)] == pytest.approx([40, 45, 40, 46])
    assert trace.namespaces[2].owners == (None, None, None)
    assert trace.disturbances == [0, 3300]
    assert trace.judged == [(900, 1800), (4200, 7200)]


def test_what_a_lost_broker_had_is_not_counted_twice():
    records = [
        make_report(0, "b1", 40.0),
        make_report(0, "b2", 30.0),
        top(0, "b2", low=30.0),
        gone(600, "b2"),
        make_report(600, "b1", 70.0),
        make_report(3600, "b1", 70.0),
    ]
    trace = from_history(records, step_s=60)
    assert halves(trace, 5) == pytest.approx([30, 0, 40])
    assert halves(trace, 15) == pytest.approx([30, 0, 40])


amounts = st.lists(st.floats(1, 1e6), min_size=4, max_size=4)


@given(first=amounts, second=amounts, share=st.floats(0, 1))
@settings(max_examples=30, deadline=None)
def test_together_it_is_what_the_brokers_reported(first, second, share):
    records = []
    for place, some in ((0, first), (1200, second)):
        for number, amount in enumerate(some):
            records.append(make_report(place, f"b{number}", amount))
        records.append(top(place, "b0", low=some[0] * share, high=some[0] * (1 - share) / 2))
    records.append(make_report(2400, "b0", second[0]))
    trace = from_history(records, step_s=60)
    for step, some in ((3, first), (30, second)):
        assert sum(halves(trace, step)) == pytest.approx(sum(some))
        assert sum(halves(trace, step, "cpu")) == pytest.approx(100 * 4)


def test_it_can_be_saved_and_run(tmp_path):
    trace = from_history(BASIC, name="mine")
    save(trace, tmp_path / "a.npz")
    loaded = load(tmp_path / "a.npz")
    assert (loaded.name, loaded.remarks) == ("mine", trace.remarks)
    assert all(equal(loaded.demand(step), trace.demand(step)) for step in range(0, trace.steps, 7))
    outcome = simulate(loaded, contender("extensible/transfer+least-resource-usage@recommended"))
    assert outcome.steps == 180


def test_junk_is_left_out_and_told():
    junk = HistoryRecord(START_MS, b"b1", b"{}", ReportKind.TOP_BUNDLES)
    trace = from_history([*BASIC, *[junk] * 12], step_s=60)
    assert trace.remarks[0] == "a top-bundles of b'b1' was left out: format is not 1"
    assert "... and 2 more records" in trace.remarks


def test_nothing_to_make_a_trace_of():
    with pytest.raises(HistoryError, match="it has no load report of a broker"):
        from_history([])
    with pytest.raises(HistoryError, match="format is not 1"):
        from_history([HistoryRecord(START_MS, b"b1", b"{}", ReportKind.BROKER_LOAD)])
    with pytest.raises(HistoryError, match="are too many"):
        from_history([make_report(0, "b1", 1.0), make_report(1e8, "b1", 1.0)])


def lines(records):
    """Lines of a file, each with its line end."""
    for at_ms, key, value, kind in records:
        fields = {"at_ms": at_ms, "key": key.decode(), "value": None if value is None else orjson.loads(value)}
        yield orjson.dumps(fields | ({"kind": kind} if value is None else {}), option=orjson.OPT_APPEND_NEWLINE)


# --- files -----------------------------------------------------------------------------------------------------------


def test_a_file_says_the_same(tmp_path):
    path = tmp_path / "h.ndjson"
    records = [*BASIC, gone(3601, "b2"), gone(3602, "b2", ReportKind.TOP_BUNDLES)]
    path.write_bytes(b"\n".join(lines(records)))
    assert list(read_history(path)) == records


def test_a_line_as_other_tools_write_it(tmp_path):
    path = tmp_path / "h.ndjson"
    value = orjson.loads(BASIC[0].value)
    path.write_text(f'{{"value": {orjson.dumps(value).decode()}, "at_ms": {START_MS}, "key": "b1"}}\n')
    assert list(read_history(path)) == BASIC[:1]
    assert from_history(read_history(path)).steps == 1


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (b"x", "line 2: not JSON"),
        (b"[]", "line 2: "),
        (b'{"at_ms": 1, "key": "b"}', "line 2: value is missing"),
        (b'{"at_ms": 1, "key": "b", "value": null, "x": 1}', "line 2: x is not a field of the format"),
        (b'{"at_ms": 1.5, "key": "b", "value": null}', "line 2: at_ms: expected a valid integer"),
        (b'{"at_ms": 1, "key": "b", "value": 3}', "line 2: value: expected a valid dictionary"),
        (b'{"at_ms": 1, "key": "b", "value": null, "kind": "x"}', "line 2: kind: expected"),
    ],
)
def test_a_bad_line_is_named(tmp_path, line, said):
    path = tmp_path / "h.ndjson"
    path.write_bytes(next(lines(BASIC[:1])) + line + b"\n")
    with pytest.raises(HistoryError) as caught:
        list(read_history(path))
    assert said in str(caught.value)
    assert caught.value.exit_code == 7
    assert caught.value.hint


def test_a_file_that_cannot_be_read(tmp_path):
    with pytest.raises(HistoryError, match="cannot be read: No such file"):
        list(read_history(tmp_path / "none"))
