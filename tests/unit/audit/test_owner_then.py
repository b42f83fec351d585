"""Whether the owner at a moment served then: the log shows it only later."""

from pathlib import Path

import pytest

from statechannel.audit.incidents import ChannelIncidents, IncidentKind
from statechannel.audit.local import OwnerThen, audit_export, owner_then
from statechannel.audit.moments import AsOf
from statechannel.audit.transfer.export_file import read_export
from tests.support.report_logs import LogMaker

BUNDLE = "t/n/0x00000000_0xffffffff"


class Lost:
    """b1 leads and serves, is paused at `heard_ms`, is repaired away at `repaired_ms`, and writes again at `woken_ms`."""

    def __init__(self, folder: Path) -> None:
        log = LogMaker()
        (bundle,) = log.namespace("t/n", 1)
        log.assign(bundle, "b1")
        log.beat("b1")
        self.heard_ms = log.now_ms
        log.now_ms += 7_000
        self.repaired_ms = log.now_ms + 5
        log.lose(bundle, "b2", heard_ago_ms=7_000, leader="b2")
        self.served_ms = log.now_ms
        log.beat("b2")
        log.now_ms += 11_000
        log.beat("b1")
        self.woken_ms = log.now_ms
        log.beat("b2")
        self.path = log.export(folder / "log.jsonl")

    def at(self, time_ms: int) -> OwnerThen:
        return owner_then(read_export(self.path), BUNDLE, AsOf(time_ms=time_ms))


@pytest.fixture
def lost(tmp_path: Path) -> Lost:
    return Lost(tmp_path)


def test_an_owner_in_a_gap_did_not_serve(lost: Lost) -> None:
    then = lost.at(lost.heard_ms + 3_000)
    assert then.key.owner == "b1"
    assert (then.gap["start_ms"], then.gap["end_ms"]) == (lost.heard_ms, lost.served_ms)
    assert (then.gap["cause"], then.gap["to"]) == ("owner-lost", "b2")


def test_by_offset_the_moment_is_that_of_the_last_record(lost: Lost) -> None:
    assert owner_then(read_export(lost.path), BUNDLE, AsOf(offset=1)).gap is None
    assert owner_then(read_export(lost.path), BUNDLE, AsOf(offset=4)).gap is not None


def test_before_and_after_the_gap_it_served(lost: Lost) -> None:
    assert lost.at(lost.heard_ms - 1).gap is None
    assert lost.at(lost.served_ms).gap is None


@pytest.mark.parametrize("when", ["in the gap", "after the gap"])
def test_a_lost_owner_that_is_heard_again_may_have_served(when: str, lost: Lost) -> None:
    then = lost.at(lost.heard_ms + 3_000 if when == "in the gap" else lost.served_ms + 1_000)
    assert (then.heard_again["broker"], then.heard_again["heard_ms"]) == ("b1", lost.woken_ms)


def test_the_incident_of_a_lost_owner_says_that_it_was_heard_again(lost: Lost) -> None:
    incidents = ChannelIncidents(1_000)
    audit_export(read_export(lost.path), observers=[incidents.observe])
    (incident,) = [incident for incident in incidents.all() if incident.kind is IncidentKind.OWNER_LOST]
    assert "; it wrote again 20.0 s after it was last heard" in incident.message


def test_before_it_was_lost_and_after_it_was_heard_again_it_may_not(lost: Lost) -> None:
    assert lost.at(lost.heard_ms - 1).heard_again is None
    assert lost.at(lost.woken_ms).heard_again is None
