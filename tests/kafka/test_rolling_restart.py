"""A rolling restart of three brokers on a real Kafka, in which its command, the leader and a broker that it drains are killed."""

import signal
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.kafka.test_drain import FLAGS, NAMESPACE, Cluster, processes
from tests.support.broker_cluster import WAIT_S, broker_cluster
from tests.support.kafka_lanes import Kafka

NAMES = ("b1", "b2", "b3")
BUNDLES = 9
RECORDS_A_MOVE = 3
"""Releasing, Assigning, Assigned; a repair has fewer."""


@contextmanager
def supervised(cluster: Cluster) -> Iterator[None]:
    """Whatever restarts brokers: a file `NAME.again` asks for it; what was killed is started again only where it is asked for."""
    ended = threading.Event()

    def restart_on_request() -> None:
        while not ended.wait(0.2):
            for path in cluster.folder.glob("*.again"):
                path.unlink()
                process = cluster.brokers[path.stem]
                if process.poll() is None:
                    process.terminate()
                process.wait(WAIT_S)
                cluster.spawn(path.stem)

    restarter = threading.Thread(target=restart_on_request)
    restarter.start()
    try:
        yield
    finally:
        ended.set()
        restarter.join()


@pytest.fixture
def cluster(kafka: Kafka, topic_prefix: str, tmp_path: Path) -> Iterator[Cluster]:
    with broker_cluster(Cluster(kafka, topic_prefix, tmp_path, FLAGS)) as running:
        yield running


def owned_by(cluster: Cluster, broker: str) -> int:
    return list(cluster.owners().values()).count(broker)


def versions(cluster: Cluster) -> Counter[str]:
    return Counter({row["bundle"]: row["version"] for row in cluster("bundles")["bundles"]})


def test_whatever_is_killed_in_between_it_goes_on_and_leaves_nothing_behind(cluster: Cluster) -> None:
    cluster.start(*NAMES)
    leader = cluster.leader()
    first, second = sorted({*NAMES} - {leader})
    bundles = cluster.create(NAMESPACE, BUNDLES, first)
    before, versions_before = processes(cluster), versions(cluster)
    script = cluster.folder / "restart"
    script.write_text(
        f"#!/bin/sh\ntouch {cluster.folder}/$1.called\nwhile test -e {cluster.folder}/$1.hold; do sleep 0.2; done\n"
        f"touch {cluster.folder}/$1.again\n"
    )
    script.chmod(0o755)
    (cluster.folder / f"{second}.hold").touch()
    command = ("rolling-restart", "--command", f"{script} {{broker}}", "--rate", "1/s")
    with supervised(cluster):
        killed = cluster.begin(*command)
        # `first` owns everything, so the other one has the fewest and comes first: its program hangs.
        cluster.wait((cluster.folder / f"{second}.called").exists)
        assert "under way, of b1, b2, b3" in cluster.error("rolling-restart", "--manual", code=3)
        assert "under way, of b1, b2, b3" in cluster.error("rolling-restart", "--manual", "--dry-run", code=3)
        killed.kill()
        # The program that it ran goes on, and holds its output open until it ends.
        (cluster.folder / f"{second}.hold").unlink()
        restart = killed.communicate(timeout=WAIT_S)[1].split("rolling restart ")[1].split()[0]
        cluster.wait(lambda: processes(cluster).get(second, before[second]) != before[second])

        again = cluster.begin(*command, "--operation", restart)
        cluster.wait(lambda: 0 < owned_by(cluster, first) < BUNDLES)
        again.kill()
        again.wait(WAIT_S)
        cluster.kill(leader)
        again = cluster.begin(*command, "--operation", restart)
        left = owned_by(cluster, first)
        cluster.wait(lambda: owned_by(cluster, first) < left or not owned_by(cluster, first))
        cluster.kill(first)
        cluster.wait((cluster.folder / f"{first}.called").exists)
        _, error = cluster.end(again, code=5)
        assert f"{leader} is not alive" in error
        assert f"--operation {restart}" in error
        cluster.start(leader)
        done, _ = cluster.end(cluster.begin(*command, "--operation", restart))
        assert [row["broker"] for row in done["restarted"]] == [leader]
    after = processes(cluster)
    assert set(after) == {*NAMES}
    assert not set(after.values()) & set(before.values()), "each is another process"
    owners = cluster.owners()
    assert set(owners) == set(bundles)
    assert set(owners.values()) <= {first, second}, "the last one comes back empty"
    assert cluster("policy", "list")["policies"] == [], "neither a cordon nor the override is left"
    records = sum((versions(cluster) - versions_before).values())
    moves = (
        BUNDLES + BUNDLES
    )  # from `first` once, and once more, as `leader` may have got some of them and was restarted, too
    assert BUNDLES <= records <= RECORDS_A_MOVE * moves
    assert cluster("rolling-restart", "--manual", "--dry-run", "--yes")["order"], "the claim has ended"


def test_a_paused_command_that_was_replaced_stops_and_leaves_the_override_alone(cluster: Cluster) -> None:
    cluster.start("b1", "b2")
    cluster.create(NAMESPACE, 6, "b1")
    slow = cluster.begin("rolling-restart", "--manual", "--broker", "b1", "--rate", "0.5/s")
    cluster.wait(lambda: 0 < owned_by(cluster, "b1") < 6)
    slow.send_signal(signal.SIGSTOP)
    running = cluster("override", "list")["policies"][0]["drain"]
    fast = cluster.begin("rolling-restart", "--manual", "--broker", "b1", "--rate", "20/s", "--instead-of", running)
    cluster.wait(lambda: cluster("override", "list")["policies"][0]["drain"] != running)
    cluster.wait(lambda: not owned_by(cluster, "b1"))
    slow.send_signal(signal.SIGCONT)
    _, error = cluster.end(slow, code=3)
    assert f"rolling restart {cluster('override', 'list')['policies'][0]['drain']} of" in error
    assert len(cluster("override", "list")["policies"]) == 1, "it is the other one's"
    cluster.brokers["b1"].terminate()
    cluster.brokers["b1"].wait(WAIT_S)
    cluster.spawn("b1")
    done, _ = cluster.end(fast)
    assert [row["broker"] for row in done["restarted"]] == ["b1"]
    assert cluster("policy", "list")["policies"] == []
