"""What is written is read back; what cannot be trusted is dropped with a reason."""

import math
from typing import Any

import orjson
import pytest

from loaddata.model.broker_load import BrokerLoad, ResourceUsage
from loaddata.model.bundle_load import BundleAverages, BundleStats, MessageAverage, TopBundle
from loaddata.model.figures import FIGURE_MAX, LATEST_MS
from loaddata.report.record import (
    BUNDLES_MAX,
    VALUE_MAX_BYTES,
    BrokerLoadReport,
    InvalidReportReason,
    TopBundlesReport,
    UnwritableReportError,
    decode_broker_load,
    decode_top_bundles,
    encode_broker_load,
    encode_top_bundles,
)
from statechannel.protocol.side_record import InvalidRecord
from tests.support.load_reports import NOW_MS, header, report

LOAD = BrokerLoad(cpu=ResourceUsage(12.5, 400), msg_rate_in=1.25, bundles=3, updated_at_ms=NOW_MS)
BUNDLE = "t/n/0x00000000_0x80000000"


def test_both_are_read_back_as_they_were_written() -> None:
    load = BrokerLoadReport(header(owned_as_of={0: 17, 1: -1}), LOAD)
    assert decode_broker_load(b"b1", encode_broker_load(load)) == load
    top = TopBundlesReport(header(), (TopBundle(BUNDLE, BundleStats(1, 2, 3, 4, 5, 6, 7, 8), non_persistent=True),))
    assert decode_top_bundles(b"b1", encode_top_bundles(top)) == top


def changed(path: str, value: Any) -> bytes:
    loaded = orjson.loads(encode_broker_load(BrokerLoadReport(header(owned_as_of={0: 1}), LOAD)))
    *places, name = path.split(".")
    place = loaded
    for item in places:
        place = place[item]
    if value is ...:
        del place[name]
    else:
        place[name] = value
    return orjson.dumps(loaded)


@pytest.mark.parametrize(
    ("path", "value", "reason"),
    [
        ("format", 2, InvalidReportReason.FORMAT),
        ("format", True, InvalidReportReason.FORMAT),
        ("kind", "top-bundles", InvalidReportReason.KIND),
        ("kind", None, InvalidReportReason.KIND),
        ("broker", "b2", InvalidReportReason.KEY),
        ("broker", "b 1", InvalidReportReason.HEADER),
        ("incarnation", ..., InvalidReportReason.HEADER),
        ("seq", 0, InvalidReportReason.HEADER),
        ("seq", 1.0, InvalidReportReason.HEADER),
        ("seq", FIGURE_MAX + 1, InvalidReportReason.HEADER),
        ("written_at_ms", -1, InvalidReportReason.HEADER),
        ("written_at_ms", LATEST_MS + 1, InvalidReportReason.CLOCK),
        ("owned_as_of", [], InvalidReportReason.HEADER),
        ("owned_as_of", {"x": 1}, InvalidReportReason.HEADER),
        ("owned_as_of", {"9" * 5_000: 1}, InvalidReportReason.HEADER),
        ("owned_as_of", {"0": -2}, InvalidReportReason.HEADER),
        ("owned_as_of", {str(number): 1 for number in range(1_001)}, InvalidReportReason.HEADER),
        ("load", None, InvalidReportReason.FIGURES),
        ("load.cpu", 7, InvalidReportReason.FIGURES),
        ("load.cpu.usage", -1, InvalidReportReason.FIGURES),
        ("load.cpu.usage", 1e300, InvalidReportReason.FIGURES),
        ("load.cpu.limit", 1e-300, InvalidReportReason.FIGURES),
        ("load.msg_rate_in", None, InvalidReportReason.FIGURES),
        ("load.msg_rate_in", "1", InvalidReportReason.FIGURES),
        ("load.bundles", 1.5, InvalidReportReason.FIGURES),
        ("load.bundles", ..., InvalidReportReason.FIGURES),
        ("load.updated_at_ms", LATEST_MS + 1, InvalidReportReason.CLOCK),
    ],
)
def test_dropped_with_a_reason(path: str, value: Any, reason: InvalidReportReason) -> None:
    report = decode_broker_load(b"b1", changed(path, value))
    assert report.reason is reason
    assert len(report.why) < 200


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (b"", InvalidReportReason.NOT_JSON),
        (b"\xff", InvalidReportReason.NOT_JSON),
        (b"[]", InvalidReportReason.NOT_JSON),
        (b"[" * 100_000, InvalidReportReason.NOT_JSON),
        (b'{"format":1,"kind":"broker-load","load":NaN}', InvalidReportReason.NOT_JSON),
        (b" " * (VALUE_MAX_BYTES + 1), InvalidReportReason.TOO_LARGE),
    ],
)
def test_what_is_no_report_at_all(value: bytes, reason: InvalidReportReason) -> None:
    report = decode_broker_load(b"b1", value)
    assert report.reason is reason


def test_fields_that_are_not_known_are_ignored_and_whole_numbers_are_numbers() -> None:
    assert isinstance(decode_broker_load(b"b1", changed("later", {"x": 1})), BrokerLoadReport)
    report = decode_broker_load(b"b1", changed("load.msg_rate_in", 7))
    assert type(report.load.msg_rate_in) is float


def test_the_key_must_be_the_broker() -> None:
    value = encode_broker_load(report())
    for key in (None, b"", b"b2", b"\xff"):
        reported = decode_broker_load(key, value)
        assert reported.reason is InvalidReportReason.KEY
    assert isinstance(decode_top_bundles(b"b1", value), InvalidRecord), "the other topic's reports are none of this one"


@pytest.mark.parametrize(
    "load",
    [
        BrokerLoad(msg_rate_in=math.nan),
        BrokerLoad(msg_rate_in=math.inf),
        BrokerLoad(cpu=ResourceUsage(-1, 1)),
        BrokerLoad(bundles=-1),
        BrokerLoad(bundles=2**70),
        BrokerLoad(updated_at_ms=LATEST_MS + 1),
    ],
)
def test_what_readers_would_drop_is_not_written(load: BrokerLoad) -> None:
    with pytest.raises(UnwritableReportError):
        encode_broker_load(report(load=load))


def bundles(count: int, namespace: str = "t/n") -> tuple[TopBundle, ...]:
    """Bundles of a namespace with long figures."""
    step = 2**32 // count
    stats = BundleStats(*[123456789.12345678] * 4, 1_000_000, 1_000_000, 1_000_000, 10**15)
    average = MessageAverage(*[123456789.12345678] * 4, 1_000)
    names = [f"{namespace}/0x{n * step:08x}_0x{(n + 1) * step - (n == count - 1):08x}" for n in range(count)]
    return tuple(TopBundle(name, stats, BundleAverages(average, average)) for name in names)


def test_of_too_many_bundles_the_heaviest_are_told() -> None:
    served = bundles(2_048)
    report = decode_top_bundles(b"b1", encode_top_bundles(TopBundlesReport(header(), served)))
    assert report.bundles == served[-BUNDLES_MAX:]


def test_of_bundles_that_are_too_large_those_that_fit_are_told() -> None:
    served = bundles(1_024, f"{'t' * 120}/{'n' * 120}")
    value = encode_top_bundles(TopBundlesReport(header(), served))
    report = decode_top_bundles(b"b1", value)
    assert 500 < len(report.bundles) < 1_000
    assert report.bundles == served[-len(report.bundles) :]
    assert VALUE_MAX_BYTES - 30_000 < len(value) <= VALUE_MAX_BYTES


def test_a_report_of_an_earlier_version_has_no_peak() -> None:
    loaded = orjson.loads(encode_broker_load(BrokerLoadReport(header(), BrokerLoad(peak_usage=0.4, peak_share=0.5))))
    assert loaded["load"].pop("peak_usage") == 0.4
    assert loaded["load"].pop("peak_share") == 0.5
    report = decode_broker_load(b"b1", orjson.dumps(loaded))
    assert report == BrokerLoadReport(header(), BrokerLoad())
    loaded["load"]["peak_share"] = "0.5"
    assert isinstance(decode_broker_load(b"b1", orjson.dumps(loaded)), InvalidRecord)


@pytest.mark.parametrize(
    ("entry", "reason"),
    [
        (5, InvalidReportReason.BUNDLES),
        ({"bundle": "nonsense"}, InvalidReportReason.BUNDLES),
        ({"bundle": BUNDLE, "non_persistent": 1}, InvalidReportReason.BUNDLES),
        ({"bundle": BUNDLE}, InvalidReportReason.FIGURES),
    ],
)
def test_bundles_that_are_none(entry: Any, reason: InvalidReportReason) -> None:
    loaded = orjson.loads(encode_top_bundles(TopBundlesReport(header(), ())))
    report = decode_top_bundles(b"b1", orjson.dumps({**loaded, "bundles": [entry]}))
    assert report.reason is reason


def test_a_bundle_that_is_named_twice_or_too_many() -> None:
    loaded = orjson.loads(encode_top_bundles(TopBundlesReport(header(), (TopBundle(BUNDLE, BundleStats()),))))
    for count in (2, BUNDLES_MAX + 1):
        report = decode_top_bundles(b"b1", orjson.dumps({**loaded, "bundles": loaded["bundles"] * count}))
        assert report.reason is InvalidReportReason.BUNDLES
