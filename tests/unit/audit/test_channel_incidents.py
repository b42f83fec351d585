"""What the incidents of a channel's log count: declined bundles, deleted namespaces, losses, long gaps, cold starts."""

from typing import Any

import pytest

from statechannel.audit.gaps import Gap, GapCause
from statechannel.audit.incidents import ChannelIncidents, NamespaceDeletion
from statechannel.protocol.log import RecordRead, Topic
from statechannel.protocol.view import View
from statechannel.replay.auditor import audit_part
from statechannel.replay.survey import STRICT
from statechannel.stories.incident import DeclinedBundle
from tests.support.lone_engine import BUNDLE, mark
from tests.support.report_logs import START_MS, LogMaker
from tests.unit.audit.test_observers import SERVED, asserted


class Watched(LogMaker):
    """A log, and its incidents so far."""

    def __init__(self, *, with_gaps: bool = True) -> None:
        super().__init__()
        self.incidents = ChannelIncidents(1_000, with_gaps=with_gaps)
        self._seen, self._own = 0, View(0, 1)

    def kinds(self) -> list[tuple[int, str]]:
        self.look()
        return sorted((incident.at_ms - START_MS, incident.kind.value) for incident in self.incidents.all())

    def look(self) -> ChannelIncidents:
        for record in self.records[self._seen :]:
            self.incidents.observe(record, self._own.read(record.offset, record.key, record.value))
        self._seen = len(self.records)
        return self.incidents

    def decline(self, bundle: str, broker: str, reason: str | None = "busy", **fields: Any) -> None:
        more: dict[str, Any] = {"from": broker, "action": "decline", "reason": reason}
        self.move(bundle, "Unassigned", broker, **more | fields)

    def gap_of(self, bundle: str, length_ms: int, to: str = "b2", **fields: Any) -> None:
        self.move(bundle, "Releasing", "b1", **{"from": "b1"}, to=to, action="transfer", **fields)
        self.move(bundle, "Assigning", "b1", **{"from": "b1"}, to=to)
        self.move(bundle, "Assigned", to, length_ms - 5, **{"from": "b1"}, to=to)


def test_declined_bundles_wait_until_a_broker_serves_them() -> None:
    log = Watched()
    never, served = log.namespace("t/n", 2)
    log.assign(served, "b1")
    log.move(never, "Assigning", to="b2")
    log.decline(never, "b2", "x" * 400)
    since_ms = log.now_ms
    log.move(served, "Releasing", "b1", **{"from": "b1"}, to="b2")
    gap_ms = log.now_ms
    log.move(served, "Assigning", "b1", **{"from": "b1"}, to="b2")
    log.decline(served, "b2", None)
    log.move(never, "Assigning", to="b3")
    log.decline(never, "b3")
    incidents = log.look()
    assert incidents.declines.bundles == {
        never: DeclinedBundle(since_ms, {("b2", "b2-1"): "x" * 300, ("b3", "b3-1"): "busy"}),
        served: DeclinedBundle(gap_ms, {("b2", "b2-1"): ""}),
    }
    counts = [
        (count.broker, count.times, count.bundle, count.reason, list(count.waiting))
        for count in incidents.declines.counts.values()
    ]
    assert counts == [("b2", 2, served, "", [never, served]), ("b3", 1, never, "busy", [never])]
    assert [count.newest_ms for count in incidents.declines.counts.values()] == [log.now_ms - 10, log.now_ms]
    assert incidents.open_gap_since_ms(served) == gap_ms
    assert incidents.open_gap_since_ms(never) is None
    log.move(never, "Assigning", to="b2")
    log.move(never, "Assigned", "b2", to="b2")
    assert set(log.look().declines.bundles) == {served}
    assert [list(count.waiting) for count in incidents.declines.counts.values()] == [[served], []]
    log.assign(served, "b1")
    assert log.look().declines.bundles == {}
    assert incidents.open_gap_since_ms(served) is None


@pytest.mark.parametrize(("forced", "counted"), [(True, False), (False, True)])
def test_an_owner_that_gives_a_bundle_up_declines_it_and_a_repair_does_not(forced: bool, counted: bool) -> None:
    log = Watched(with_gaps=False)
    bundle = log.namespace("t/n", 1)[0]
    log.assign(bundle, "b1")
    if forced:
        log.move(bundle, "Unassigned", "b2", **{"from": "b1"}, action="decline", forced=True)
    else:
        log.move(bundle, "Releasing", "b1", **{"from": "b1"}, action="decline")
    log.look()
    assert [count.broker for count in log.incidents.declines.counts.values()] == ["b1"] * counted
    assert {name: item.since_ms for name, item in log.incidents.declines.bundles.items()} == (
        {bundle: log.now_ms} if counted else {}
    )


def test_deleted_namespaces_with_their_bundles_and_those_that_had_an_owner() -> None:
    log = Watched()
    bundles = log.namespace("t/n", 3)
    log.assign(bundles[0], "b1")
    halves = log.split(bundles[0])
    log.assign(bundles[1], "b1")
    log.move(bundles[2], "Assigning", to="b9", operation="delete-1")
    log.decline(bundles[2], "b9")
    log.namespace("t/m", 1)
    for half in (*halves, bundles[1]):
        log.unload(half, operation="delete-1")
    log.move("t/n", "Deleted", "b7", operation="delete-1")
    gone = NamespaceDeletion(log.now_ms, "t/n", "delete-1", 4, 3, "b7")
    assert log.look().deletions == [gone]
    assert log.incidents.declines.bundles == {}
    log.move("t/m", "Deleted", "b8")
    other = NamespaceDeletion(log.now_ms, "t/m", None, 1, 0, "b8")
    assert log.look().deletions == [gone, other]
    log.namespace("t/n", 1)
    assert log.look().deletions == [other]
    log.move("t/n", "Deleted", "b8", operation="delete-2")
    again = NamespaceDeletion(log.now_ms, "t/n", "delete-2", 1, 0, "b8")
    assert sorted(log.look().deletions, key=lambda item: item.at_ms) == [other, again]
    assert [kind for _, kind in log.kinds()] == ["declined", *["namespace-deleted"] * 3]


@pytest.mark.parametrize(("length_ms", "incidents"), [(1_000, 0), (1_001, 1)])
def test_a_gap_is_an_incident_if_it_is_longer(length_ms: int, incidents: int) -> None:
    log = Watched()
    bundle = log.namespace("t/n", 1)[0]
    log.assign(bundle, "b1")
    log.gap_of(bundle, length_ms)
    assert len(log.kinds()) == incidents
    alone = ChannelIncidents(1_000, with_gaps=False)
    alone.add_gap(Gap(bundle, GapCause.TRANSFER, 0, 1, 0, "b1", "why", end_ms=length_ms))
    alone.add_gap(Gap(bundle, GapCause.TRANSFER, 0, 2, 0, "b1", "why"))
    assert len(alone.all()) == incidents
    without = Watched(with_gaps=False)
    bundle = without.namespace("t/n", 1)[0]
    without.assign(bundle, "b1")
    without.gap_of(bundle, length_ms)
    assert without.kinds() == []


def gap(number: int, start_ms: int, length_ms: int = 5_000, **fields: Any) -> Gap:
    given: dict[str, Any] = {"cause": GapCause.TRANSFER, "before": "b1", "why": f"why {number}", "after": "b2"} | fields
    place = {"partition": 0, "start_offset": number, "start_ms": start_ms, "end_ms": start_ms + length_ms}
    return Gap(bundle=f"t/n/{number}", **place, **given)


@pytest.mark.parametrize(
    ("gaps", "starts"),
    [
        ([gap(2, 4_000), gap(1, 0), gap(3, 8_000)], [0, 8_000]),
        ([gap(1, 0), gap(2, 0, before="b9")], [0, 0]),
        ([gap(1, 0, cause=GapCause.OWNER_LOST, repaired=True)], []),
        ([gap(1, 0, cause=GapCause.OWNER_LOST)], [0]),
        ([gap(1, 0, cause=GapCause.REPAIR, repaired=True)], [0]),
    ],
)
def test_gaps_of_one_broker_that_began_together_are_one(gaps: list[Gap], starts: list[int]) -> None:
    incidents = ChannelIncidents(1_000, with_gaps=False)
    for item in gaps:
        incidents.add_gap(item)
    assert [incident.at_ms for incident in incidents.all()] == starts


def message(*gaps: Gap) -> str:
    incidents = ChannelIncidents(1_000, with_gaps=False)
    for item in gaps:
        incidents.add_gap(item)
    (incident,) = incidents.all()
    return incident.message


def test_several_gaps_have_the_cause_of_the_longest() -> None:
    one, three = gap(1, 0, 5_000), gap(3, 2, 9_000, brief="brief 3")
    same = message(one, gap(2, 1, 5_000))
    assert "t/n/1" in message(one)
    assert all(text not in same for text in ("t/n/1", "5.0 s to"))
    both = message(one, three)
    assert "5.0 s to 9.0 s" in both
    assert "brief 3" in both
    assert "why" not in both
    parted = message(one, three, gap(4, 3, after="b3"), gap(5, 3, after=None))
    assert all(text in parted for text in ("2 to b2", "1 to b3"))
    assert "None" not in message(gap(1, 0, before=None), gap(2, 0, before=None))


@pytest.mark.parametrize(("heard_after_ms", "incidents"), [(0, 1), (1, 2)])
def test_an_owner_that_was_heard_since_its_repair_is_lost_again(heard_after_ms: int, incidents: int) -> None:
    log = Watched()
    first, second = log.namespace("t/n", 2)
    log.assign(first, "b1")
    log.assign(second, "b1")
    log.lose(first, "b2", heard_ago_ms=100)
    repaired_ms = log.now_ms - 5
    log.now_ms += 1_000
    stale: dict[str, Any] = {"to": "b9", "forced": True, "version": 2}
    log.put(second, log.proposal(second, "Assigning") | stale | {"lost": {"broker": "b9", "last_heard_ms": 1}})
    log.lose(second, "b3", heard_ago_ms=log.now_ms - repaired_ms - heard_after_ms)
    kinds = log.kinds()
    assert [kind for _, kind in kinds] == ["owner-lost"] * incidents
    assert {incident.lost for incident in log.incidents.all()} == {"b1"}


def test_each_loss_has_the_longest_of_its_own_gaps() -> None:
    log = Watched()
    bundles = log.namespace("t/n", 3)
    for bundle, broker in zip(bundles, ("b1", "b2", "b1"), strict=True):
        log.assign(bundle, broker)
    log.now_ms += 20_000
    log.lose(bundles[1], "b3", heard_ago_ms=9_000)
    log.lose(bundles[0], "b3", heard_ago_ms=5_000)
    log.gap_of(bundles[2], 7_000)
    log.look()
    messages = {incident.lost: incident.message for incident in log.incidents.all()}
    assert "9.0 s" in messages["b2"]
    assert not any(text in messages["b1"] for text in ("9.0 s", "7.0 s"))
    assert not any(text in messages["b2"] for text in ("5.0 s", "7.0 s"))


@pytest.mark.parametrize("with_gaps", [True, False])
def test_a_cold_start_begins_and_ends_gaps(with_gaps: bool) -> None:
    rows = [*SERVED, asserted(4, "Unassigned", **{"from": "b"}), (b"!cold-start", mark("x-1", 2))]
    records = [RecordRead(Topic.CHANNEL, 0, at, 1_000 * at, key, value) for at, (key, value) in enumerate(rows)]
    incidents = ChannelIncidents(1_000, with_gaps=with_gaps)
    audit_part(0, 1, records, STRICT, incidents.observe, incidents)
    assert incidents.open_gap_since_ms(BUNDLE.decode()) == (4_000 if with_gaps else None)


def test_a_cold_start_names_the_keys_that_it_changed_and_ends_their_declines() -> None:
    rows = [*SERVED, asserted(3, "Assigned", to="c"), (b"!cold-start", mark("x-1", 2)), (b"!cold-start", b"junk")]
    records = [RecordRead(Topic.CHANNEL, 0, at, 1_000 * at, key, value) for at, (key, value) in enumerate(rows)]
    incidents = ChannelIncidents(1_000)
    incidents.declines.bundles[BUNDLE.decode()] = DeclinedBundle(1)
    audit_part(0, 1, records, STRICT, incidents.observe, incidents)
    (incident,) = incidents.all()
    assert (incident.at_ms, incident.kind.value, BUNDLE.decode() in incident.message) == (4_000, "cold-start", True)
    assert incidents.declines.bundles == {}
