"""Pulsar's own Java admin client drives brokers on a real Kafka (design/pulsar-paths.md)."""

import re
from importlib import metadata
from itertools import pairwise
from pathlib import Path
from typing import Any

import httpx

from statechannel.protocol.bundle import topic_hash
from tests.support.broker_cluster import WAIT_S, BrokerCluster, broker_cluster
from tests.support.kafka_lanes import Kafka
from tests.support.pulsar_admin import admin_classes_or_skip, pulsar_admin

NAMESPACE = "t/n"
TOPIC = f"persistent://{NAMESPACE}/orders +%ü"
FLAGS = (
    "http.port=0",
    "http.open_role=force",
    "http.pulsar_paths=true",
    "http.requests_per_s=10000",
    "extensions.balancer.enabled=true",
)
SERVED = re.compile(r"http-served.*?url\W+(http://[0-9.:]+)")
URLS = {"b1": "pulsar://127.0.0.1:6651", "b2": "pulsar://127.0.0.1:6652"}
WEB = "http://127.0.0.1:8081"
"""Of b1; the other advertises no HTTP address, and has that of its API."""
NOT_SUPPORTED = ("ServerSideErrorException", 501)


def served_url(cluster: BrokerCluster, broker: str) -> str:
    log = cluster.folder / f"{broker}.log"
    cluster.wait(lambda: SERVED.search(log.read_text()) is not None)
    return SERVED.findall(log.read_text())[-1]


def ranges(boundaries: list[str]) -> list[str]:
    return [f"{lower}_{upper}" for lower, upper in pairwise(boundaries)]


def accepted(cluster: BrokerCluster, bundle: str, state: str) -> list[dict[str, Any]]:
    key = f"{NAMESPACE}/{bundle}"
    history = [record for record in cluster("audit", "history", key)["history"] if record["key"] == key]
    return [record for record in history if record["state"] == state and record["verdict"] == "accepted"]


def test_the_java_client_finds_moves_and_splits(kafka: Kafka, topic_prefix: str, tmp_path: Path) -> None:
    classes = admin_classes_or_skip(tmp_path)
    with broker_cluster(BrokerCluster(kafka, topic_prefix, tmp_path, FLAGS)) as cluster:
        for broker, url in URLS.items():
            web = ("--advertised", f"web={WEB}") if broker == "b1" else ()
            cluster.spawn(broker, options=("--advertised", f"pulsar={url}", *web))
        cluster.wait(lambda: {row["broker"] for row in cluster.alive()} == set(URLS))
        url, api = served_url(cluster, "b1"), served_url(cluster, "b2")
        cluster.wait(lambda: [row["api"] for row in cluster.alive()] == [url, api])
        with pulsar_admin(classes, url, tmp_path / "admin.err", token="any") as admin:
            cluster.wait(lambda: admin("brokers") == ["b1", "b2"])
            assert admin("brokers", cluster.channel) == ["b1", "b2"]
            assert admin("leader") == [cluster.leader(), {"b1": WEB, "b2": api}[cluster.leader()]]
            assert admin("health", "b2") is None
            assert admin("version") == metadata.version("statechannel")
            assert admin("clusters") == [cluster.channel]
            assert admin("cluster", cluster.channel) == [
                f"{WEB},{api.removeprefix('http://')}", "pulsar://127.0.0.1:6651,127.0.0.1:6652",
            ]  # fmt: skip

            assert admin("create", NAMESPACE, "4") is None
            cluster.wait(lambda: admin("namespaces", "t") == [NAMESPACE])
            assert (admin("tenants"), admin("tenant", "t")) == (["t"], [cluster.channel])
            boundaries = ["0x00000000", "0x40000000", "0x80000000", "0xc0000000", "0xffffffff"]
            assert admin("bundles", NAMESPACE) == boundaries

            # A lookup assigns the topic's bundle, and a transfer moves it.
            bundle = next(part for part in ranges(boundaries) if topic_hash(TOPIC) < int(part.split("_")[1], 16))
            assert admin("range", TOPIC) == bundle
            address = admin("lookup", TOPIC)
            owner = cluster("lookup", TOPIC, "--read-only")["broker"]
            assert address == URLS[owner]
            destination = "b2" if owner == "b1" else "b1"
            assert admin("transfer", NAMESPACE, bundle, destination) is None
            cluster.wait(lambda: admin("lookup", TOPIC) == URLS[destination])
            assert admin("owned", cluster.channel, destination) == [f"{NAMESPACE}/{bundle}"]
            (release,) = accepted(cluster, bundle, "Releasing")
            assert cluster("operation", "show", release["operation"])["by"] == "unnamed@127.0.0.1"

            # What policies forbid is refused for this client, too.
            cluster("policy", "set", "pin", NAMESPACE, destination)

            def is_known() -> bool:
                asked = f"{url}/v1/bundles/{NAMESPACE}/{bundle}/transfer"
                body = {"destination": owner, "dry_run": True}
                answer = httpx.post(asked, json=body, headers={"Statechannel-Client": "ann"}, timeout=WAIT_S)
                return bool(answer.json().get("reason") == "filtered")

            cluster.wait(is_known)
            assert admin.thrown("transfer", NAMESPACE, bundle, owner) == ("ConflictException", 409)
            cluster("policy", "delete", "pin", NAMESPACE)

            assert admin("unload-bundle", NAMESPACE, bundle) is None
            cluster.wait(lambda: cluster.owners()[f"{NAMESPACE}/{bundle}"] is None)
            assert admin("lookup", TOPIC) in set(URLS.values())

            assert admin("split", NAMESPACE, bundle, "false") is None
            cluster.wait(lambda: len(admin("bundles", NAMESPACE)) == 6)
            part = admin("range", TOPIC)
            assert part != bundle
            middle = sum(int(bound, 16) for bound in part.split("_")) // 2
            assert admin("split-at", NAMESPACE, part, str(middle)) is None
            assert f"0x{middle:08x}" in admin("bundles", NAMESPACE)
            for text in (f"{part.split('_')[0]}_0x{middle:08x}", f"0x{middle:08x}_{part.split('_')[1]}"):
                assert len(accepted(cluster, text, "Releasing")) == 1, "the parts of a split are unloaded"
            assert admin("unload", NAMESPACE) is None
            cluster.wait(lambda: not any(cluster.owners().values()))

            # Isolation policies are those of the cluster.
            assert admin("set-isolation", cluster.channel, "gold", f"{NAMESPACE}.*", ".*", "100") is None
            assert admin("isolations", cluster.channel) == ["gold"]
            (policy,) = cluster("policy", "list")["policies"]
            assert (policy["kind"], policy["value"]["namespaces"]) == ("isolation", [f"{NAMESPACE}.*"])
            read = admin("isolation", cluster.channel, "gold")
            assert read == [[f"{NAMESPACE}.*"], [".*"], {"min_limit": "1", "usage_threshold": "100"}]
            assert admin("delete-isolation", cluster.channel, "gold") is None
            assert admin.thrown("isolation", cluster.channel, "gold") == ("NotFoundException", 404)

            for words in (
                ("topics", NAMESPACE),
                ("load-report",),
                ("settings",),
                ("set-isolation", cluster.channel, "gold", ".*", ".*", "80"),
            ):
                assert admin.thrown(*words) == NOT_SUPPORTED, words
            assert admin.thrown("bundles", "t/nowhere") == ("NotFoundException", 404)
            assert admin.thrown("brokers", "elsewhere") == ("NotFoundException", 404)
            assert admin.thrown("split", NAMESPACE, "0x00000000_0x00000007", "false") == (
                "PreconditionFailedException",
                412,
            )
            assert admin.thrown("create", NAMESPACE, "4") == ("ConflictException", 409)
            assert admin("delete", NAMESPACE) is None
            cluster.wait(lambda: admin("tenants") == [])
        with pulsar_admin(classes, url, tmp_path / "open.err", token=None) as admin:
            assert admin("brokers") == ["b1", "b2"]
            assert admin.thrown("create", "t/m", "4") == ("NotAuthorizedException", 403)
