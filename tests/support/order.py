"""In which order the workers of pytest-xdist take the tests, so that all of them are busy to the end.

A worker takes a whole file at a time, the next one of the list when it has nearly ended the last: what starts a Kafka or a
Spark for its tests does so once. Files that take longest come first, quick ones last. Files that use the Spark session share
two sessions, whose start and first queries are what is slow.
"""

from collections.abc import Sequence
from typing import Any

from xdist.scheduler import LoadScopeScheduling

from tests.support.lanes import is_real

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
    "tests/kafka/test_balancer.py": 165,
    "tests/kafka/test_console_page.py": 110,
    "tests/kafka/test_demo.py": 95,
    "tests/kafka/test_drain.py": 160,
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
    "tests/kafka/test_security.py": 60,
    "tests/kafka/test_topics_watched.py": 90,
    "tests/kafka/test_transactions.py": 35,
    "tests/model/test_model.py": 60,
    "tests/property/test_partitions_planner.py": 40,
    "tests/simulation/test_simulator.py": 65,
    "tests/spark/test_channel_table.py": 40,
    "tests/spark/test_channel_table_faults.py": 95,
    "tests/spark/test_class_archive.py": 40,
    "tests/spark/test_load_views.py": 100,
    "tests/spark/test_load_views_kafka.py": 65,
    "tests/spark/test_partition_loads.py": 75,
    "tests/spark/test_replay.py": 100,
    "tests/spark/test_replay_job.py": 105,
    "tests/spark/test_replay_passes.py": 35,
    "tests/spark/test_replay_survey.py": 35,
    "tests/spark/test_standalone.py": 10,
    "tests/spark/test_table_view_faults.py": 165,
    "tests/unit/core/test_accelerator.py": 90,
}
"""What some files take on two idle cores. Nothing but the order of tests depends on it."""
LIVE_TEST_S = 3.0
"""What a live test of any other file counts."""
SESSIONS: dict[str, tuple[str, ...]] = {
    "Spark session on Kafka": (
        "tests/spark/test_load_views_kafka.py",
        "tests/spark/test_metrics.py",
        "tests/spark/test_partition_loads.py",
        "tests/spark/test_replay_kafka.py",
        "tests/spark/test_secured_kafka.py",
        "tests/spark/test_table_view_faults.py",
        "tests/spark/test_table_view_kafka.py",
    ),
    "no Spark session": (
        "tests/spark/test_class_archive.py",
        "tests/spark/test_signals.py",
        "tests/spark/test_standalone.py",
    ),
}
"""Files of tests/spark by what they share; all others of that folder share one more session."""


ARCHITECTURE = "tests/architecture/"
"""These read the same files, each of them once."""


def group_of(nodeid: str) -> str:
    """What stays together with a test of this name."""
    name = nodeid.partition("::")[0]
    if name.startswith("tests/spark/"):
        return next((group for group, names in SESSIONS.items() if name in names), "Spark session")
    return ARCHITECTURE if name.startswith(ARCHITECTURE) else name


def ordered(items: Sequence[Any]) -> list[Any]:
    """Items of pytest, all of them: group after group, those that take longest first."""
    files: dict[str, dict[str, list[Any]]] = {}
    for item in items:
        name = item.nodeid.partition("::")[0]
        files.setdefault(group_of(name), {}).setdefault(name, []).append(item)
    takes_s = {
        group: sum(FILES_S.get(name, LIVE_TEST_S * sum(map(is_real, tests))) for name, tests in named.items())
        for group, named in files.items()
    }
    return [
        item
        for group in sorted(files, key=lambda group: -takes_s[group])
        for tests in files[group].values()
        for item in tests
    ]


class GroupScheduling(LoadScopeScheduling):
    """Gives a worker one group after the other, in the order of `ordered`."""

    def __init__(self, config: Any, log: Any = None) -> None:
        config.option.loadscopereorder = False
        super().__init__(config, log)

    def _split_scope(self, nodeid: str) -> str:
        return group_of(nodeid)
