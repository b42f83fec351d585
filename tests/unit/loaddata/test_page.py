"""design/load-data.md: its examples are read, its words are those of the code."""

import re
from pathlib import Path

import orjson

from loaddata.report.record import (
    DEADLINE,
    LAST_OFFSET,
    REASON,
    BrokerLoadReport,
    InvalidReportReason,
    TopBundlesReport,
    decode_broker_load,
    decode_top_bundles,
    encode_broker_load,
    encode_top_bundles,
)
from loaddata.report.reporter import ReportCause
from loaddata.settings import LoadSettings
from loaddata.view.table_view import Dropped

PAGE = (Path(__file__).parents[3] / "design/load-data.md").read_text(encoding="utf-8")


def test_examples_are_records_as_they_are_written() -> None:
    load, top = re.findall(r"^```json\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)
    report = decode_broker_load(b"b1", load.encode())
    assert isinstance(report, BrokerLoadReport)
    assert orjson.loads(encode_broker_load(report)) == orjson.loads(load)
    reported = decode_top_bundles(b"b1", top.encode())
    assert isinstance(reported, TopBundlesReport)
    assert orjson.loads(encode_top_bundles(reported)) == orjson.loads(top)


def test_every_cause_reason_and_header_is_on_the_page() -> None:
    words = [*ReportCause, *InvalidReportReason, *Dropped, REASON, LAST_OFFSET, DEADLINE]
    assert [word for word in words if f"`{word}`" not in PAGE] == []


def test_settings_that_are_named_exist() -> None:
    named = set(re.findall(r"`([a-z_]+_(?:s|percent|max|gbit|ms))`", PAGE))
    figures = {name for name in named if name.startswith(("updated_at", "reported_at", "written_at"))}
    assert named - figures - {"age_s"} <= set(LoadSettings.model_fields)
    assert len(named - figures) > 10
