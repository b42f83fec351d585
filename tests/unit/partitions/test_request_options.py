"""From options to a request."""

from pathlib import Path

import pytest

from shedders.kafka_rebalance.cli.arguments import (
    PlanOptions,
    parse_amount,
    parse_brokers,
    parse_goals,
    parse_rate,
    request_of,
)
from shedders.kafka_rebalance.planning.request import BrokerCapacity, Capacities, GoalChoice, PlanMode, PlanRequest
from shedders.kafka_rebalance.settings import PartitionsSettings, configured
from statechannel.cli.kit.failures import CommandError


@pytest.mark.parametrize(
    ("text", "ids"), [("3", (3,)), ("1-6,9", (1, 2, 3, 4, 5, 6, 9)), ("9, 2,2-3", (2, 3, 9)), ("0", (0,))]
)
def test_ranges_of_brokers(text: str, ids: tuple[int, ...]) -> None:
    assert parse_brokers(text, "--brokers") == ids


@pytest.mark.parametrize("text", ["", "a", "6-1", "1,,2", "-1", "1-", "0-99999999", "2147483648", "1;2", "٣"])
def test_what_is_no_range(text: str) -> None:
    with pytest.raises(CommandError, match="not broker ids"):
        parse_brokers(text, "--brokers")


def test_goals_in_order_with_their_ranges() -> None:
    assert parse_goals(["disk=10%,leaders", "bytes-in=0.2"]) == (
        GoalChoice(name="disk", range_share=0.1),
        GoalChoice(name="leaders"),
        GoalChoice(name="bytes-in", range_share=0.2),
    )
    assert parse_goals([]) == ()


@pytest.mark.parametrize(
    "text", ["", "disk=", "disk=x", "disk=1.2.3", "disk=nan", "disk=-1", "disk=1001", "disk,disk", "Disk", "disk=1e2"]
)
def test_what_are_no_goals(text: str) -> None:
    with pytest.raises(CommandError):
        parse_goals([text])


@pytest.mark.parametrize(
    ("text", "size_bytes"),
    [
        ("1", 1),
        ("500GB", 500 * 10**9),
        ("1.5TiB", 3 * 2**39),
        ("2k", 2_000),
        ("2K", 2_000),
        ("400KB", 400_000),
        ("400kB", 400_000),
        ("400KiB", 400 * 1024),
        ("400kiB", 400 * 1024),
        ("400Ki", 400 * 1024),
        ("7 MiB", 7 * 2**20),
        ("50m", 50_000_000),
        ("2gB", 2 * 10**9),
        ("12B", 12),
        ("1_000_000", 1_000_000),
    ],
)
def test_amounts(text: str, size_bytes: int) -> None:
    assert parse_amount(text, "--max-bytes") == size_bytes


@pytest.mark.parametrize(
    "text", ["", "0", "0.0GB", "-1", "1e9", "nan", "9999999PB", "GB", "1XB", "1i", "1iB", "400KB/s", "_1", "1_", "1__0"]
)
def test_what_is_no_amount(text: str) -> None:
    with pytest.raises(CommandError, match="not an amount of data") as refused:
        parse_amount(text, "--max-bytes")
    assert all(
        form in refused.value.hint for form in ("500GB", "1.5TiB", "400K", "1000000", "K is 1,000", "Ki is 1,024")
    )


@pytest.mark.parametrize(
    ("text", "rate_bytes_per_s"),
    [
        ("400KB/s", 400_000),
        ("400K", 400_000),
        ("400KiB/s", 409_600),
        ("0.4MB/s", 400_000),
        ("400000", 400_000),
        ("400 kB/s", 400_000),
        ("400000B/s", 400_000),
        ("20MB/s ", 20_000_000),
        ("0.25M/s", 250_000),
    ],
)
def test_rates(text: str, rate_bytes_per_s: int) -> None:
    assert parse_rate(text, "--throttle") == rate_bytes_per_s


@pytest.mark.parametrize("text", ["", "fast", "0", "/s", "20MB/min", "20MB/s/s", "20MBps", "-1MB/s"])
def test_what_is_no_rate(text: str) -> None:
    with pytest.raises(CommandError, match="not bytes per second") as refused:
        parse_rate(text, "--throttle")
    assert all(form in refused.value.hint for form in ("20MB/s", "400K", "400KiB/s", "400000", "K is 1,000"))


@pytest.mark.parametrize("text", ["400kb", "400Kb/s", "3Mbit/s", "3Mb", "20mbps"])
def test_bits_are_refused_by_name(text: str) -> None:
    for parse in (parse_amount, parse_rate):
        with pytest.raises(CommandError) as refused:
            parse(text, "--option")
        assert "B for bytes" in refused.value.hint


def test_what_is_not_given_is_as_the_settings_have_it() -> None:
    settings = configured({"plan": {"excluded_topics": ["tmp-.*"], "time_budget_s": 9}})
    assert request_of(PlanOptions(), settings) == PlanRequest(
        excluded_topics=("tmp-.*",), time_budget_s=9, completeness_min=settings.sample.completeness_min
    )
    request = request_of(
        PlanOptions(exclude=["a", "tmp-.*"], time_budget="1m30s", max_bytes="1GB", max_moves=3), settings
    )
    assert request.excluded_topics == ("tmp-.*", "a")
    assert (request.time_budget_s, request.bytes_max, request.moves_max) == (90, 10**9, 3)


@pytest.mark.parametrize(
    ("asked", "mode", "subjects"),
    [
        (PlanOptions(), PlanMode.REBALANCE, ()),
        (PlanOptions(add_brokers="4,5"), PlanMode.ADD_BROKERS, (4, 5)),
        (PlanOptions(remove_brokers="3"), PlanMode.REMOVE_BROKERS, (3,)),
        (PlanOptions(remove_log_dirs=["3:/d1"]), PlanMode.REMOVE_LOG_DIRS, ()),
        (PlanOptions(demote="2"), PlanMode.DEMOTE, (2,)),
        (PlanOptions(fix_offline=True), PlanMode.FIX_OFFLINE, ()),
        (PlanOptions(replication_factor=3, topics=["a.*"]), PlanMode.REPLICATION_FACTOR, ()),
    ],
)
def test_modes(asked: PlanOptions, mode: PlanMode, subjects: tuple[int, ...]) -> None:
    request = request_of(asked, PartitionsSettings())
    assert (request.mode, request.subjects) == (mode, subjects)


def test_log_directories_of_brokers() -> None:
    dirs = ["3:/d1", "12:/var/lib/kafka:2/d 2", "3:/d1"]
    request = request_of(PlanOptions(remove_log_dirs=dirs), PartitionsSettings())
    assert request.log_dirs == ((3, "/d1"), (12, "/var/lib/kafka:2/d 2"))


@pytest.mark.parametrize("text", ["", "3", "3:", ":/d1", "3:d1", "x:/d1", "-1:/d1", "9999999999:/d1", "3:/d\n1"])
def test_what_are_no_log_directories(text: str) -> None:
    with pytest.raises(CommandError, match="not a log directory of a broker"):
        request_of(PlanOptions(remove_log_dirs=[text]), PartitionsSettings())


def test_two_modes_exclude_each_other() -> None:
    with pytest.raises(CommandError, match="--add-brokers and --demote are mutually exclusive"):
        request_of(PlanOptions(add_brokers="4", demote="4"), PartitionsSettings())


def test_a_replication_factor_is_of_topics_that_are_named() -> None:
    with pytest.raises(CommandError, match="requires --topics"):
        request_of(PlanOptions(replication_factor=3), PartitionsSettings())


def test_capacities(tmp_path: Path) -> None:
    request = request_of(PlanOptions(capacity=["disk=2TB", "bytes-in=100MB/s", "cpu=80%"]), PartitionsSettings())
    assert request.capacities == Capacities(
        default=BrokerCapacity(disk_bytes=2 * 10**12, bytes_in_per_s=100 * 10**6, cpu=0.8)
    )
    (tmp_path / "c.toml").write_text("[default]\ndisk_bytes = 5\n")
    request = request_of(PlanOptions(capacities=tmp_path / "c.toml"), PartitionsSettings())
    assert request.capacities.default.disk_bytes == 5
    with pytest.raises(CommandError, match="mutually exclusive"):
        request_of(PlanOptions(capacities=tmp_path / "c.toml", capacity=["disk=1"]), PartitionsSettings())


@pytest.mark.parametrize("text", ["disk", "disk=", "dsk=1", "cpu=0", "cpu=2", "cpu=nan", "disk=0", "bytes-out=x"])
def test_what_is_no_capacity(text: str) -> None:
    with pytest.raises(CommandError):
        request_of(PlanOptions(capacity=[text]), PartitionsSettings())
