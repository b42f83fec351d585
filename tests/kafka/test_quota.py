"""A quota of a real Kafka: a member says that it is throttled, and hears itself all the same."""

import asyncio
import os
import subprocess
from pathlib import Path

from statechannel.api import Owned, StateChannel
from statechannel.embedded import BrokerOptions, KafkaServer
from statechannel.embedded.jars import prepare_jars
from statechannel.embedded.java import find_java
from statechannel.engine.kafka_limits import ClientKind
from statechannel.protocol.bundle import children_of, namespace_bounds
from tests.support.channels import created, make_settings
from tests.support.waits import WAIT_S

BUNDLES = 150
BYTES_PER_S = 6_000


def limit(bootstrap: str, quota: str) -> None:
    """Set a quota for each client id."""
    jars = os.pathsep.join(map(str, prepare_jars()))
    tool = [str(find_java().executable), "-Xmx96m", "-cp", jars, "kafka.admin.ConfigCommand"]
    entity = ["--alter", "--add-config", quota, "--entity-type", "clients", "--entity-default"]
    subprocess.run([*tool, "--bootstrap-server", bootstrap, *entity], check=True, capture_output=True)


async def test_records_that_a_quota_throttles_delay_no_heartbeat(tmp_path: Path) -> None:
    server = KafkaServer(tmp_path / "kafka", options=BrokerOptions(heap_mib=192))
    server.start()
    try:
        settings = make_settings(server.bootstrap_servers, "quota", membership={"interval_s": 1.0})
        async with StateChannel.open(settings, broker="b1", create_topics=True, join_timeout_s=WAIT_S) as channel:
            await created(channel, "t/n", BUNDLES)
            await asyncio.to_thread(limit, server.bootstrap_servers, f"producer_byte_rate={BYTES_PER_S}")
            modes: set[str] = set()
            names = [f"t/n/{bundle}" for bundle in children_of(namespace_bounds(BUNDLES))]
            storm = asyncio.gather(*(channel.lookup(name, WAIT_S) for name in names))
            while not storm.done():
                modes.add(channel.status()["mode"])
                await asyncio.sleep(0.1)
            assert all(isinstance(answer, Owned) for answer in await storm)
            throttled = channel._host.engine.context.troubles.kafka.throttled
            assert (throttled.client, throttled.kind) == ("statechannel-b1", ClientKind.PRODUCER)
            assert modes == {"normal"}
    finally:
        server.stop()
