"""In which order the workers of pytest-xdist take the tests, so that all of them are busy to the end.

Each worker begins with a stretch of the list, and one that has nothing left takes over the last half of the longest rest. So
every stretch but the last has live tests at its head, those that take longest first, and quick tests behind them, which are
what is taken over. The worker with the last stretch computes while the live tests of the others wait. A file stays together,
for the sake of its fixtures; so do all files that use the Spark session, whose start and first queries are what is slow.
"""

from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import Any, TypeVar

from tests.support.lanes import is_real

Item = TypeVar("Item")

FILES_S: dict[str, float] = {
    "tests/cli/test_audit_live.py": 20,
    "tests/cli/test_cli_policy.py": 45,
    "tests/cli/test_console_page.py": 70,
    "tests/cli/test_doctor_live.py": 45,
    "tests/cli/test_live.py": 115,
    "tests/docs/test_contest.py": 35,
    "tests/docs/test_kv_example.py": 20,
    "tests/docs/test_operate_page.py": 65,
    "tests/docs/test_partitions_walk.py": 35,
    "tests/docs/test_servers.py": 45,
    "tests/docs/test_spark_walk.py": 90,
    "tests/explorer/test_explorer.py": 60,
    "tests/faults/test_campaign.py": 35,
    "tests/faults/test_kafka_nodes.py": 30,
    "tests/interleavings/test_interleavings.py": 30,
    "tests/kafka/test_adapter_election.py": 30,
    "tests/kafka/test_adapter_outage.py": 55,
    "tests/kafka/test_balancer.py": 180,
    "tests/kafka/test_console_page.py": 150,
    "tests/kafka/test_demo.py": 95,
    "tests/kafka/test_drain.py": 170,
    "tests/kafka/test_embedded_broker.py": 70,
    "tests/kafka/test_embedded_detached.py": 30,
    "tests/kafka/test_floods.py": 55,
    "tests/kafka/test_http_api.py": 90,
    "tests/kafka/test_http_retries.py": 40,
    "tests/kafka/test_kill_cleaner.py": 35,
    "tests/kafka/test_kill_processes.py": 45,
    "tests/kafka/test_kill_steps.py": 40,
    "tests/kafka/test_killed_in_debt.py": 40,
    "tests/kafka/test_light_topics.py": 35,
    "tests/kafka/test_membership_lane.py": 35,
    "tests/kafka/test_mixed_versions.py": 120,
    "tests/kafka/test_move_channel.py": 60,
    "tests/kafka/test_partitions_execution.py": 150,
    "tests/kafka/test_partitions_log_dirs.py": 40,
    "tests/kafka/test_policies_topic.py": 40,
    "tests/kafka/test_quota.py": 45,
    "tests/kafka/test_rolling_restart.py": 140,
    "tests/kafka/test_router.py": 50,
    "tests/kafka/test_runtime_faces.py": 10,
    "tests/kafka/test_runtime_faults.py": 40,
    "tests/kafka/test_security.py": 160,
    "tests/kafka/test_topics_watched.py": 90,
    "tests/kafka/test_transactions.py": 90,
    "tests/model/test_model.py": 60,
    "tests/property/test_partitions_planner.py": 40,
    "tests/simulation/test_simulator.py": 75,
    "tests/spark/test_channel_table.py": 40,
    "tests/spark/test_channel_table_faults.py": 110,
    "tests/spark/test_class_archive.py": 40,
    "tests/spark/test_load_views.py": 135,
    "tests/spark/test_load_views_kafka.py": 65,
    "tests/spark/test_partition_loads.py": 75,
    "tests/spark/test_replay.py": 165,
    "tests/spark/test_replay_job.py": 145,
    "tests/spark/test_replay_passes.py": 35,
    "tests/spark/test_replay_survey.py": 50,
    "tests/spark/test_standalone.py": 10,
    "tests/spark/test_table_view_faults.py": 285,
    "tests/unit/core/test_accelerator.py": 120,
}
"""What some files take on two idle cores. Nothing but the order of tests depends on it."""
LIVE_TEST_S = 3.0
"""What a live test of any other file counts."""
SPARK = "Spark session"


def ordered(items: Sequence[Any], workers: int) -> list[Any]:
    """Items of pytest, all of them, in the order for so many workers."""
    files = {name: list(tests) for name, tests in groupby(items, lambda item: item.nodeid.partition("::")[0])}
    groups: dict[str, list[Any]] = {}
    takes_s: dict[str, float] = {}
    for name, tests in sorted(files.items(), key=lambda file: -FILES_S.get(file[0], 0.0)):
        live = [item for item in tests if is_real(item)]
        if live or name in FILES_S:
            group = SPARK if any(_uses_spark(item) for item in live) else name
            groups.setdefault(group, []).extend(tests)
            takes_s[group] = takes_s.get(group, 0.0) + FILES_S.get(name, LIVE_TEST_S * len(live))
    taken = {id(item) for tests in groups.values() for item in tests}
    return in_stretches(groups, takes_s, [item for item in items if id(item) not in taken], workers)


def _uses_spark(item: Any) -> bool:
    return "session" in item.fixturenames and item.nodeid.startswith("tests/spark/")


def in_stretches(
    groups: Mapping[str, Sequence[Item]], takes_s: Mapping[str, float], quick: Sequence[Item], workers: int
) -> list[Item]:
    """One stretch behind the other.

    Args:
        groups: Tests that take long, by what keeps them together.
        takes_s: How long each of the groups takes.
        quick: All other tests.
        workers: As many stretches, of lengths as `--dist worksteal` cuts them.
    """
    left = len(quick) + sum(map(len, groups.values()))
    sizes = []
    for rest in range(workers, 0, -1):
        sizes.append(left // rest)
        left -= sizes[-1]
    heads: list[list[Item]] = [[] for _ in range(workers)]
    loads_s = [0.0] * workers
    receiving = workers - 1 if workers > 1 and len(quick) >= sizes[-1] else workers
    for name in sorted(groups, key=lambda name: -takes_s[name]):
        least = min(range(receiving), key=lambda number: loads_s[number])
        heads[least] += groups[name]
        loads_s[least] += takes_s[name]
    stretches: list[Item] = []
    begun = 0
    for head, size in zip(heads, sizes, strict=True):
        end = begun + max(0, size - len(head))
        stretches += [*head, *quick[begun:end]]
        begun = end
    return stretches + list(quick[begun:])
