"""Whatever lies in a load topic, and whatever a source says: no exception, and what is held is sound."""

import math
from typing import Any

import orjson
from hypothesis import given
from hypothesis import strategies as st

from loaddata.measure.local_load import LocalLoad
from loaddata.model.broker_load import BrokerLoad, HostUsage, ResourceUsage, is_sound_usage
from loaddata.model.bundle_load import BundleStats, SampleClock, TopBundle, TopRules, is_sound, top_bundles
from loaddata.model.figures import is_figure
from loaddata.report.record import (
    DEADLINE,
    LAST_OFFSET,
    REASON,
    BrokerLoadReport,
    ReportKind,
    TopBundlesReport,
    decode_broker_load,
    decode_top_bundles,
    encode_broker_load,
    encode_top_bundles,
    parse_tombstone,
)
from loaddata.report.reporter import LoadSample, Reporter
from loaddata.source import MeasuredBundle
from loaddata.view.table_view import Arrival, Fate, TableView, ViewRules, decoder
from statechannel.protocol.side_record import InvalidRecord, SideRecord
from tests.support.load_reports import NOW_MS, header, report

NUMBERS = st.one_of(
    st.integers(-(2**70), 2**70),
    st.floats(),
    st.sampled_from([0, -1, 1e300, -0.0, math.nan, math.inf, 10**400, 2**53, 1e-300]),
)
ODD = st.one_of(NUMBERS, st.none(), st.booleans(), st.text(max_size=3), st.binary(max_size=3))
JSON = st.recursive(
    st.one_of(
        st.none(), st.booleans(), st.integers(-(2**63), 2**64 - 1), st.floats(allow_nan=False), st.text(max_size=6)
    ),
    lambda item: st.lists(item, max_size=3) | st.dictionaries(st.text(max_size=6), item, max_size=3),
)
BUNDLE = "t/n/0x00000000_0xffffffff"
LOAD = orjson.loads(encode_broker_load(report(owned_as_of={0: 1})))
TOP = orjson.loads(encode_top_bundles(TopBundlesReport(header(), (TopBundle(BUNDLE, BundleStats()),))))


def places(value: Any, at: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Where in a JSON value something else can stand."""
    inside = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [at, *(place for key, item in inside for place in places(item, (*at, key)))]


def replaced(value: Any, at: tuple[Any, ...], by: Any) -> Any:
    if not at:
        return by
    changed = value.copy()
    changed[at[0]] = replaced(value[at[0]], at[1:], by)
    return changed


@st.composite
def mangled(draw: st.DrawFn, value: Any) -> bytes:
    """A report with one value replaced by anything, or cut, or no report at all."""
    how = draw(st.sampled_from(["value", "cut", "bytes"]))
    if how == "bytes":
        return draw(st.binary(max_size=30))
    at = draw(st.sampled_from(places(value)))
    written = orjson.dumps(replaced(value, at, draw(JSON)))
    return written[: draw(st.integers(0, len(written)))] if how == "cut" else written


def is_sound_load(load: BrokerLoad) -> bool:
    usages = (load.cpu, load.memory, load.direct_memory, load.bandwidth_in, load.bandwidth_out)
    figures = (
        load.msg_rate,
        load.msg_throughput,
        load.max_resource_usage,
        load.weighted_max_ema,
        load.msg_throughput_ema,
    )
    return all(map(is_sound_usage, usages)) and all(math.isfinite(figure) and figure >= 0 for figure in figures)


@given(mangled(LOAD))
def test_any_broker_load_is_sound_or_dropped_with_a_reason(value: bytes) -> None:
    report = decode_broker_load(b"b1", value)
    if isinstance(report, InvalidRecord):
        assert report.why
    else:
        assert is_sound_load(report.load)
        assert decode_broker_load(b"b1", encode_broker_load(report)) == report


@given(mangled(TOP))
def test_any_top_bundles_are_sound_or_dropped_with_a_reason(value: bytes) -> None:
    report = decode_top_bundles(b"b1", value)
    if isinstance(report, InvalidRecord):
        assert report.why
    else:
        assert all(is_sound(bundle.stats) for bundle in report.bundles)
        assert decode_top_bundles(b"b1", encode_top_bundles(report)) == report


HEADERS = st.lists(
    st.tuples(
        st.sampled_from([REASON, LAST_OFFSET, DEADLINE, "other", ""]),
        st.one_of(st.none(), st.binary(max_size=20), st.sampled_from([b"expired", b"5", b"0", b"9" * 18])),
    ),
    max_size=5,
).map(tuple)
RECORDS = st.builds(
    SideRecord,
    st.one_of(st.none(), st.binary(max_size=5), st.sampled_from([b"b1", b"b2"])),
    st.one_of(
        st.none(), mangled(LOAD), st.builds(lambda seq: encode_broker_load(report("b1", seq)), st.integers(1, 5))
    ),
    HEADERS,
    st.integers(0, 2**60),
    st.one_of(st.integers(-1, 2**62), st.just(NOW_MS)),
)


@given(st.lists(st.tuples(RECORDS, st.floats(0, 1e6), st.one_of(st.none(), st.integers(-(2**40), 2**62))), max_size=20))
def test_no_record_breaks_a_view_and_every_record_has_a_fate(read: list[tuple[SideRecord, float, int | None]]) -> None:
    view: TableView[BrokerLoadReport] = TableView(ViewRules(brokers_max=2))
    reporter = Reporter("b1", "b1-1")
    decode = decoder(decode_broker_load)
    now_s = 0.0
    for item, later_s, wall_ms in read:
        now_s += later_s
        record = decode(item)
        view.read(item, record, Arrival(now_s, item.timestamp_ms, wall_ms))
        if isinstance(record, BrokerLoadReport):
            reporter.read_back(ReportKind.BROKER_LOAD, record.header, item.offset)
        elif record is None:
            reporter.null_read(ReportKind.BROKER_LOAD, item.key, item.headers, item.offset, now_s)
        assert len(view) <= 2
        for name, seen in view.seen(now_s).items():
            assert seen.report.header.broker == name
            assert seen.age_s >= 0
            assert is_sound_load(seen.report.load)
    assert sum(view.fates.values()) == len(read)
    assert sum(view.dropped.values()) == view.fates[Fate.DROPPED]


@given(HEADERS, st.integers(0, 2**60))
def test_a_tombstone_never_names_what_lies_behind_it(
    headers: tuple[tuple[str, bytes | None], ...], offset: int
) -> None:
    tombstone = parse_tombstone(headers, offset)
    if tombstone is not None:
        assert 0 <= tombstone.last_offset < offset
        assert parse_tombstone(tombstone.headers(), offset) == tombstone


STATS = st.builds(BundleStats, *[st.one_of(st.integers(0, 10), ODD)] * 8)
READINGS = st.dictionaries(
    st.one_of(st.sampled_from([BUNDLE, "t/n/0x00000000_0x80000000", "junk"]), st.integers(0, 3)),
    st.one_of(st.builds(MeasuredBundle, STATS), st.none()),
    max_size=4,
)
USAGES = st.builds(HostUsage, *[st.builds(ResourceUsage, NUMBERS, NUMBERS)] * 5)


@given(st.lists(st.tuples(USAGES, READINGS, st.floats(), st.integers(-(2**70), 2**70)), min_size=1, max_size=6))
def test_no_reading_breaks_a_broker_and_what_it_tells_is_read(readings: list[tuple[HostUsage, Any, Any, int]]) -> None:
    local = LocalLoad(clock=SampleClock(1.0, 5))
    reporter = Reporter("b1", "b1-1")
    for usage, bundles, now_s, now_ms in readings:
        local.measured(usage, bundles, now_s=now_s, now_ms=now_ms)
        assert is_sound_load(local.load)
        sample = LoadSample(local.load, lambda: top_bundles(local.bundles, TopRules(idle=True)), local.reading, 0.0)
        for written in reporter.tick(sample, {0: 1}, now_s=0.0, now_ms=now_ms):
            assert written.value is not None
            decode = decode_broker_load if written.kind is ReportKind.BROKER_LOAD else decode_top_bundles
            assert not isinstance(decode(written.key, written.value), InvalidRecord)
    assert not reporter.skipped, reporter.last_skipped
    assert all(is_figure(count) for count in local.dropped.values())
