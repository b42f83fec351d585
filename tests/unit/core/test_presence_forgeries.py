"""This process in the registry alone: records in its name that are not its own, probes, and its first moments."""

import orjson
import pytest

from statechannel.engine.context import Mode
from statechannel.protocol.log import RecordRead, Topic
from tests.support.presence_bench import INTERVAL_S, SAFE_S, PresenceBench


@pytest.fixture
def bench() -> PresenceBench:
    return PresenceBench()


def probe(bench: PresenceBench, incarnation: str, seq: int) -> None:
    value = orjson.dumps({"format": 1, "kind": "probe", "broker": "a", "incarnation": incarnation, "seq": seq})
    at_ms = bench.context.now.wall_ms
    bench.presence.read(RecordRead(Topic.REGISTRY, 0, bench.offset, at_ms, b"a", value))
    bench.offset += 1


def test_a_number_that_was_never_written_is_forged(bench):
    bench.normal()
    bench.later(INTERVAL_S)
    (own,) = bench.sent()
    bench.read(own)
    assert bench.provenance.forged == []
    bench.read(own | {"seq": 0})
    bench.read(own | {"seq": own["seq"] + 1})
    assert len(bench.provenance.forged) == 2


def test_a_goodbye_before_the_own_one_is_forged_also_under_a_number_whose_content_is_forgotten():
    bench = PresenceBench(remembered_max=2)
    bench.normal()
    for _ in range(5):
        bench.later(INTERVAL_S)
    first, *_ = bench.sent()
    bench.read(first)
    assert bench.provenance.forged == []
    bench.read(first | {"leaving": True})
    assert len(bench.provenance.forged) == 1


def test_only_a_probe_of_this_process_shows_that_it_is_heard(bench):
    bench.normal()
    bench.later(INTERVAL_S)
    (own,) = bench.sent()
    bench.later(INTERVAL_S, tick=False)
    silence_s = bench.presence.silence_s
    probe(bench, "a-0", own["seq"])
    assert bench.presence.silence_s == silence_s
    assert bench.provenance.forged == []


@pytest.mark.parametrize(("silent_s", "mode"), [(SAFE_S, Mode.NORMAL), (SAFE_S + 0.01, Mode.STARTING)])
def test_it_is_normal_only_if_its_first_record_was_read_in_time(bench, silent_s, mode):
    bench.presence.tick()
    (own,) = bench.sent()
    bench.read(own)
    bench.later(silent_s)
    assert bench.context.registry_mode is mode


def test_who_has_written_nothing_is_not_silent(bench):
    bench.later(50.0, tick=False)
    assert bench.presence.silence_s == 0.0
    assert bench.presence.heartbeat_age_at_s(bench.now_s) == 0.0


def test_junk_moves_the_position_and_the_clock_and_nothing_else():
    bench = PresenceBench(end=1)
    bench.presence.read(RecordRead(Topic.REGISTRY, 0, 0, 77_000, b"x", b"junk"))
    assert bench.presence.last_ms == 77_000
    assert bench.context.listening_since_s is not None
    bench.presence.read(RecordRead(Topic.REGISTRY, 0, 1, 76_000, b"x", b"junk"))
    assert bench.presence.last_ms == 76_000
    assert bench.presence.members.alive == {}
