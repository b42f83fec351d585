"""One process in the registry where Kafka's clock was hours ahead for a while."""

from tests.support.presence_bench import EXPIRY_S, PresenceBench

HOUR_MS = 3_600_000


def test_a_predecessor_with_a_time_from_the_future_keeps_nobody_from_starting():
    """It ended while Kafka's clock was two hours ahead; this process waits an expiry for it, as for any other, and goes on."""
    bench = PresenceBench(end=1)
    bench.hear(at_ms=bench.context.now.wall_ms + 2 * HOUR_MS)
    bench.presence.tick()
    assert bench.sent() == []
    bench.later(EXPIRY_S + 0.1)
    bench.normal()
    assert bench.context.stopped is None


def test_a_joiner_takes_the_ages_of_members_from_the_end_of_the_log_and_not_from_its_latest_time():
    bench = PresenceBench(end=3)
    bench.hear("c", "c-1", at_ms=bench.context.now.wall_ms + 2 * HOUR_MS)
    bench.hear("b", "b-1")
    bench.hear("d", "d-1")
    bench.normal()
    assert {"b", "c", "d"} <= set(bench.presence.members.alive)
