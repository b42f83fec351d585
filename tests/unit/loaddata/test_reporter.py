"""What a broker tells of itself, and when: numbers, causes, tombstones of its own reports."""

from collections.abc import Mapping, Sequence

import pytest

from loaddata.model.broker_load import BrokerLoad
from loaddata.model.bundle_load import BundleStats, TopBundle
from loaddata.report.record import (
    BrokerLoadReport,
    ReportKind,
    Tombstone,
    TopBundlesReport,
    decode_broker_load,
    decode_top_bundles,
    parse_tombstone,
)
from loaddata.report.reporter import LoadSample, ReportCause, Reporter, ReportWrite
from loaddata.settings import LoadSettings
from statechannel.protocol.side_record import Headers

NOW_MS = 1_750_000_000_000
SETTINGS = LoadSettings(report_max_age_s=100.0, report_peak_percent=0, ttl_s=200.0)
TOP = (TopBundle("t/n/0x00000000_0xffffffff", BundleStats(1.0)),)
LOAD, TOPS = ReportKind.BROKER_LOAD, ReportKind.TOP_BUNDLES


class Rig:
    def __init__(self) -> None:
        self.reporter = Reporter("b1", "b1-1", SETTINGS)
        self.positions: dict[int, int] = {0: 0}
        self.reading = 0
        self.offset = {LOAD: 100, TOPS: 200}

    def tick(
        self,
        now_s: float,
        load: BrokerLoad | None = None,
        *,
        top: Sequence[TopBundle] = TOP,
        measured_s: float | None = None,
        confirm: bool = True,
    ) -> list[ReportWrite]:
        self.reading += measured_s is None
        sample = LoadSample(
            load or BrokerLoad(bundles=1), lambda: top, self.reading, now_s if measured_s is None else measured_s
        )
        writes = self.reporter.tick(sample, self.positions, now_s=now_s, now_ms=NOW_MS)
        if confirm:
            self.confirm(writes)
        return writes

    def confirm(self, written: Sequence[ReportWrite]) -> None:
        """They reach the log and are read back."""
        for proposal in written:
            self.offset[proposal.kind] += 1
            self.reporter.read_back(proposal.kind, decode_write(proposal).header, self.offset[proposal.kind])

    def null(self, kind: ReportKind, offset: int, now_s: float, headers: Headers = (), key: bytes = b"b1") -> None:
        self.reporter.null_read(kind, key, headers, offset, now_s)


@pytest.fixture
def rig() -> Rig:
    return Rig()


def decode_write(write: ReportWrite) -> BrokerLoadReport | TopBundlesReport:
    decode = decode_broker_load if write.kind is LOAD else decode_top_bundles
    record = decode(write.key, write.value)
    assert isinstance(record, BrokerLoadReport | TopBundlesReport)
    return record


def causes(written: Sequence[ReportWrite]) -> Mapping[ReportKind, ReportCause]:
    return {proposal.kind: proposal.due.cause for proposal in written}


def test_the_first_reports_are_numbered_and_named(rig: Rig) -> None:
    load, top = rig.tick(0.0)
    header = decode_write(load).header
    assert (header.broker, header.incarnation, header.seq, header.written_at_ms) == ("b1", "b1-1", 1, NOW_MS)
    assert (load.key, load.headers, load.due.cause) == (b"b1", (), ReportCause.FIRST)
    report = decode_write(load)
    assert report.load.reported_at_ms == NOW_MS
    tops = decode_write(top)
    assert tops.bundles == TOP


def test_nothing_new_is_told_until_something_changes_or_ages(rig: Rig) -> None:
    rig.tick(0.0)
    assert causes(rig.tick(5.0)) == {}
    assert causes(rig.tick(10.0, BrokerLoad(bundles=3))) == {LOAD: ReportCause.CHANGE}
    assert causes(rig.tick(15.0, BrokerLoad(bundles=3))) == {TOPS: ReportCause.SAMPLED}
    assert causes(rig.tick(110.0, BrokerLoad(bundles=3))) == {TOPS: ReportCause.SAMPLED}
    written = rig.tick(110.1, BrokerLoad(bundles=3))
    assert causes(written) == {LOAD: ReportCause.AGE}
    assert decode_write(written[0]).header.seq == 3


def test_forced(rig: Rig) -> None:
    rig.tick(0.0)
    rig.reporter.force("asked for")
    written = rig.tick(1.0)
    assert causes(written) == {LOAD: ReportCause.FORCED, TOPS: ReportCause.FORCED}
    assert written[0].due.why == "asked for"
    assert causes(rig.tick(2.0)) == {}


def test_a_change_of_its_own_bundles_is_told_once_its_figures_show_it(rig: Rig) -> None:
    rig.tick(0.0)
    rig.positions = {0: 7}
    rig.reporter.own.changed(0, 7)
    assert [causes(rig.tick(now_s)) for now_s in (1.0, 5.0, 9.9)] == [{}, {}, {}]
    written = rig.tick(10.0)
    assert causes(written) == {LOAD: ReportCause.OWNERSHIP, TOPS: ReportCause.OWNERSHIP}
    assert decode_write(written[0]).header.owned_as_of == {0: 7}


def test_figures_that_are_stale_are_not_told(rig: Rig) -> None:
    rig.tick(0.0)
    rig.reporter.force("asked for")
    assert rig.tick(31.0, measured_s=0.0) == []
    assert rig.tick(32.0, measured_s=float("nan")) == []
    assert rig.reporter.skipped == {"stale": 2}
    assert causes(rig.tick(33.0)) == {LOAD: ReportCause.FORCED, TOPS: ReportCause.FORCED}


def test_a_report_that_was_not_read_back_is_written_again(rig: Rig) -> None:
    rig.confirm(rig.tick(0.0, confirm=False)[1:])
    assert causes(rig.tick(9.9, confirm=False)) == {}
    lost = rig.tick(10.0, confirm=False)
    assert causes(lost) == {LOAD: ReportCause.UNCONFIRMED}
    assert "report 1 was not read back within 10 s" in lost[0].due.why
    assert causes(rig.tick(14.0, confirm=False)) == {}
    rig.confirm(lost)
    assert causes(rig.tick(20.1, confirm=False)) == {TOPS: ReportCause.SAMPLED}


def test_its_own_fresh_report_that_is_buried_is_told_again(rig: Rig) -> None:
    rig.tick(0.0)
    rig.null(LOAD, 102, 1.0, Tombstone("expired", 101, NOW_MS).headers())
    written = rig.tick(1.0)
    assert causes(written) == {LOAD: ReportCause.TOMBSTONED}
    assert "(expired)" in written[0].due.why
    rig.null(TOPS, 202, 2.0)
    assert causes(rig.tick(2.0)) == {TOPS: ReportCause.TOMBSTONED}, "a bare null hides it from late comers, too"


def test_a_null_that_lies_below_its_report_or_is_another_brokers_means_nothing(rig: Rig) -> None:
    rig.tick(0.0)
    rig.null(LOAD, 101, 1.0)
    rig.null(LOAD, 300, 1.0, key=b"b2")
    assert causes(rig.tick(1.0)) == {}


def test_before_its_first_report_nulls_are_its_predecessors(rig: Rig) -> None:
    rig.null(LOAD, 50, 0.0)
    assert causes(rig.tick(0.0)) == {LOAD: ReportCause.FIRST, TOPS: ReportCause.FIRST}
    assert causes(rig.tick(1.0)) == {}


def test_a_report_that_lies_above_the_null_answers_it(rig: Rig) -> None:
    """The null was written while the report was on its way: it is read first, then the report."""
    written = rig.tick(0.0, confirm=False)
    rig.null(LOAD, 50, 0.1)
    rig.confirm(written)
    assert causes(rig.tick(0.2)) == {}


def test_tombstones_provoke_no_more_than_one_report_in_a_while(rig: Rig) -> None:
    rig.tick(0.0)
    provoked = []
    for tick in range(1, 41):
        now_s = tick * 0.5
        rig.null(LOAD, rig.offset[LOAD] + 1, now_s)
        provoked += [now_s for item in rig.tick(now_s) if item.due.cause is ReportCause.TOMBSTONED]
    assert provoked == [0.5, 10.5]


def test_an_old_report_may_be_buried(rig: Rig) -> None:
    rig.tick(0.0)
    rig.null(LOAD, 300, 200.1)
    assert causes(rig.tick(0.1)) == {}


def test_what_cannot_be_written_is_left_out_and_counted(rig: Rig) -> None:
    assert causes(rig.tick(0.0, BrokerLoad(msg_rate_in=float("nan")))) == {TOPS: ReportCause.FIRST}
    assert rig.reporter.skipped == {"unwritable": 1}
    assert "msg_rate_in" in rig.reporter.last_skipped
    rig.tick(1.0, top=(TopBundle("nonsense", BundleStats()),))
    assert causes(rig.tick(2.0)) == {}


def test_it_leaves_with_tombstones_of_what_it_read_back(rig: Rig) -> None:
    assert rig.reporter.leave(NOW_MS) == []
    rig.tick(0.0)
    [load, top] = rig.reporter.leave(NOW_MS)
    assert (load.value, top.value) == (None, None)
    assert parse_tombstone(load.headers, 500) == Tombstone("leaving", 101, NOW_MS)
    assert parse_tombstone(top.headers, 500) == Tombstone("leaving", 201, NOW_MS)


def test_what_is_on_its_way(rig: Rig) -> None:
    assert not rig.reporter.unconfirmed(list(ReportKind))
    written = rig.tick(0.0, confirm=False)
    assert rig.reporter.unconfirmed([LOAD])
    rig.confirm(written[:1])
    assert not rig.reporter.unconfirmed([LOAD])
    assert rig.reporter.unconfirmed(list(ReportKind))


def test_reports_of_other_processes_are_not_its_own(rig: Rig) -> None:
    [load, _] = rig.tick(0.0, confirm=False)
    header = decode_write(load).header
    for other in (header.__class__("b2", "b1-1", 1, 1), header.__class__("b1", "b1-0", 1, 1)):
        rig.reporter.read_back(LOAD, other, 900)
    assert rig.reporter.leave(NOW_MS) == []


def test_a_topic_that_is_opened_again_starts_over(rig: Rig) -> None:
    rig.tick(0.0)
    rig.reporter.reopened(LOAD)
    assert [write.kind for write in rig.reporter.leave(NOW_MS)] == [TOPS]
