"""A real broker process under floods: its loop is not held, its memory does not grow with the flood, callers are told."""

from collections.abc import Iterator, Mapping
from functools import partial

import pytest

from statechannel.settings.tree import Settings
from tests.bench import floods
from tests.bench.floods import Ground, flooded, measured
from tests.support.kafka_lanes import Kafka

EFFECTS_MAX = 2_500
"""Of one input: a portion of 500 records that are accepted, each with four effects at most (events, an answer), and some more."""
CLOCKS_MS = 5.0
"""The driver's slice is on another clock than processor time, and a turn has some lines of its own."""
SLACK_MIB = 25


@pytest.fixture(scope="module")
def ground(kafka: Kafka) -> Iterator[Ground]:
    with flooded(kafka.bootstrap_servers, "floods") as result:
        yield result


def not_held(seen: Mapping[str, float]) -> None:
    """A flood is taken in many pieces with so many effects at most; a turn lasts for a slice, one piece and one look around.

    How long a piece takes is the machine's affair, and not asked here: `python -m tests.bench floods` shows it, and
    100 ms are allowed on a machine of its own.
    """
    longest_ms = seen["slice_ms"] + seen["piece_cpu_max_ms"] + seen["look_cpu_max_ms"] + seen["collector_max_ms"]
    assert seen["burst_cpu_max_ms"] <= longest_ms + CLOCKS_MS, seen
    assert seen["effects_max"] <= EFFECTS_MAX, seen


def again(ground: Ground, flood: floods.Flood, size: int, slack_mib: int = SLACK_MIB) -> dict[str, object]:
    """What callers heard the second time, when the first flood has left behind whatever it may leave.

    Args:
        slack_mib: What may be in memory by chance at the peak of one flood and not of the other.
    """
    first, _ = measured(ground, flood, size)
    last, result = measured(ground, flood, size)
    for seen in (first, last):
        not_held(seen)
    assert last["rss_peak_mib"] < first["rss_peak_mib"] + slack_mib
    return result


def test_lookups_of_what_does_not_exist(ground: Ground) -> None:
    assert again(ground, floods.unknown_namespaces, 10_000) == {"NotFound": 10_000}
    assert measured(ground, floods.unknown_bundles, 2_000)[1] == {"NotFound": 2_000}


def test_requests_of_the_command_line(ground: Ground) -> None:
    assert again(ground, floods.through_the_topic, 4_000) == {"not-found unknown-namespace": 4_000}


def test_records_of_nearly_a_megabyte(ground: Ground) -> None:
    """A flood of more bytes than may wait for the engine and in the client: how many wait at once is chance."""
    settings = Settings()
    slack_mib = settings.limits.inbox_max_mib + settings.kafka.fetch_queue_kib // 1024 + SLACK_MIB
    size = slack_mib * 3 // 2 * 2**20 // floods.LARGE_BYTES
    again(ground, floods.large_records, size, slack_mib=slack_mib)


def test_junk_on_many_keys_is_read_and_paid(ground: Ground) -> None:
    again(ground, partial(floods.junk, keys_max=2_000), 20_000)
    assert ground.b1.ask("status")["oldest_debt_s"] == 0


def test_a_subscriber_who_never_takes_a_change(ground: Ground) -> None:
    seen, result = measured(ground, partial(floods.idle_subscriber, limit=500), 1_000)
    not_held(seen)
    assert (result["Owned"], result["changes kept"]) == (500, 500)
    assert "too slow" in result["then"]


def test_many_creations_at_once(ground: Ground) -> None:
    seen, result = measured(ground, floods.creations, 1_000)
    not_held(seen)
    assert result == {"Started": 1_000}
