"""Which of two processes under one broker id counts; the same for every reader of the registry."""

from typing import Any

import pytest

from statechannel.engine.membership import Membership

EXPIRY_S = 6.0


class Registry:
    """A log of heartbeats, one a second unless said otherwise, and its fold."""

    def __init__(self) -> None:
        self.members = Membership(EXPIRY_S)
        self._offset = 0
        self._now_s = 100.0

    def beat(self, incarnation: str, *, since: int, after_s: float = 1.0, **fields: Any) -> int:
        self._now_s += after_s
        info = {"broker": "b", "incarnation": incarnation, "since": since, **fields}
        self.members.heard(self._now_s, self._offset, int(self._now_s * 1000), info)
        self._offset += 1
        return self._offset - 1

    @property
    def process(self) -> str:
        return self.members.alive["b"].incarnation


def test_a_late_record_of_a_process_that_wanted_to_take_over_displaces_nobody():
    """It was sent long ago; its process has ended since, and the one that is heard goes on (simulator, seed 9769)."""
    registry = Registry()
    first = registry.beat("new", since=-1)
    registry.beat("new", since=first)
    registry.beat("old", since=-1, take_over=True)
    registry.beat("new", since=first)
    assert registry.process == "new"
    assert registry.members.expire(registry._now_s + EXPIRY_S / 2, keep="") == []


def test_who_takes_over_counts_once_it_was_read_back():
    registry = Registry()
    first = registry.beat("old", since=-1)
    registry.beat("old", since=first)
    taken = registry.beat("new", since=-1, take_over=True)
    assert registry.process == "old"
    registry.beat("new", since=taken, after_s=0.1)
    assert registry.process == "new"
    registry.beat("old", since=first)
    assert registry.process == "new"


@pytest.mark.parametrize(
    ("fields", "url"),
    [
        ({}, None),  # of an older version
        ({"api": None}, None),
        ({"api": "http://b:8450"}, "http://b:8450"),
        ({"api": "https://[::1]:8450", "of a newer version": [1, {}]}, "https://[::1]:8450"),
        ({"api": 7}, None),
        ({"api": "javascript:alert(1)"}, None),
        ({"api": "http://ann:secret@b:8450"}, None),
        ({"api": "http://b:8450/path"}, None),
        ({"api": "http://b:8450\n"}, None),
        ({"api": "http://b\x1b[2J"}, None),
    ],
)
def test_the_address_of_an_api_is_one_or_none_and_unknown_fields_are_no_matter(fields, url):
    registry = Registry()
    registry.beat("i", since=0, **fields)
    assert registry.members.alive["b"].api_url == url


@pytest.mark.parametrize(
    ("fields", "checks"),
    [
        ({}, set()),
        ({"checks": None}, set()),
        ({"checks": "may-take"}, set()),
        ({"checks": ["may-take", 7]}, {"may-take"}),
    ],
)
def test_checks_of_requests_are_common_if_every_live_broker_names_them(fields, checks):
    members = Membership(EXPIRY_S)
    assert members.common_checks() == set()
    for name, more in (("b1", {"checks": ["may-take", "other"]}), ("b2", fields)):
        members.heard(1.0, 0, 1_000, {"broker": name, "incarnation": name, "since": 0, **more})
    assert members.alive["b2"].checks == members.common_checks() == checks


def test_a_silent_one_is_replaced_at_once():
    registry = Registry()
    first = registry.beat("old", since=-1)
    registry.beat("old", since=first)
    registry.beat("new", since=-1, after_s=EXPIRY_S)
    assert registry.process == "new"


def test_no_time_from_the_future_outlasts_the_next_heartbeat_of_the_log():
    """Kafka's clock was two hours ahead while one process ended: what comes last in the log is the newest."""
    members = Membership(EXPIRY_S)
    for offset, (broker, at_s) in enumerate([("b1", 100.0), ("b2", 7_300.0), ("b3", 7_300.5), ("b1", 101.0)]):
        members.heard(at_s, offset, int(at_s * 1000), {"broker": broker, "incarnation": broker, "since": 0})
    assert {broker: member.heard_at_ms for broker, member in members.alive.items()} == dict.fromkeys(
        ("b1", "b2", "b3"), 101_000
    )
    successor = {"broker": "b2", "incarnation": "again", "since": -1}
    members.heard(110.0, 4, 110_000, successor)
    assert members.alive["b2"].incarnation == "again", "its successor does not wait two hours"
