"""A channel is exported from one Kafka and imported into another, by the command line, with brokers on both sides."""

import asyncio
import json
import secrets
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from statechannel.api import Done, StateChannel
from statechannel.audit.transfer.export_file import read_export, write_export
from statechannel.audit.transfer.import_plan import ImportPlan, PlannedNamespace, plan_import
from statechannel.audit.transfer.line import ExportHeader
from statechannel.audit.views import LogViews, read_views
from statechannel.cli.main import app
from statechannel.errors import ExitCode
from statechannel.kafka.client_settings import ClientSettings
from statechannel.kafka.tail import PartitionTail, append_and_wait
from statechannel.protocol.bundle import bundle_key, namespace_bounds, partition_of
from statechannel.protocol.codec import IMPORT_KEY
from statechannel.protocol.digest import digest
from statechannel.protocol.log import RecordRead, Topic
from statechannel.protocol.states import State
from tests.support.channels import created, make_settings
from tests.support.imports import empty_log, importer_for, run_import
from tests.support.kafka_lanes import Kafka
from tests.support.killing import Directed, owners, settled
from tests.support.waits import WAIT_S, wait_until
from tests.twin.audit import audit as twin_audit

COMMAND = [sys.executable, "-c", "from statechannel.cli.main import main; main()"]
BROKERS = ("b1", "b2", "b3")
PAGE = Path(__file__).parents[2] / "design" / "reference" / "json.md"


@pytest.fixture(scope="module")
def other_kafka(lone_kafka: Kafka) -> str:
    """Address of the second one: it runs beside the one that all tests share."""
    return lone_kafka.bootstrap_servers


def place(bootstrap: str, channel: str) -> list[str]:
    return ["-b", bootstrap, "--channel", channel, "--set", f"kafka.command_timeout_s={WAIT_S}"]


def command(*args: str, code: int = 0) -> Any:
    """Run a command in a process of its own, as brokers of this one log to the same stdout; its document."""
    words = [*COMMAND, *args, "--output", "json"]
    result = subprocess.run(words, capture_output=True, text=True, check=False, timeout=WAIT_S)
    assert result.returncode == code, f"{args}: {result.returncode}\n{result.stdout}\n{result.stderr}"
    assert "Traceback" not in result.stderr
    return json.loads(result.stdout) if result.stdout else None


def export(bootstrap: str, channel: str, file: Path) -> LogViews:
    result = CliRunner().invoke(app, ["export", str(file), *place(bootstrap, channel)])
    assert result.exit_code == 0, result.stderr
    return read_views(read_export(file))


def digest_of(views: LogViews) -> str:
    return digest(part.view for part in views.parts)


@asynccontextmanager
async def members(
    bootstrap: str, channel: str, *brokers: str, expiry_s: float, partitions: int = 1, placement: Directed | None = None
) -> AsyncIterator[dict[str, StateChannel]]:
    """Brokers of these names in this process, started at once."""
    settings = make_settings(
        bootstrap, channel, membership={"interval_s": 0.3, "expiry_s": expiry_s}, channel={"partitions": partitions}
    )
    async with AsyncExitStack() as stack:
        opening = [
            StateChannel.open(
                settings, broker=broker, placement=placement or Directed(), create_topics=True, join_timeout_s=WAIT_S
            )
            for broker in brokers
        ]
        opened = await asyncio.gather(*(stack.enter_async_context(item) for item in opening))
        yield dict(zip(brokers, opened, strict=True))


async def done(ticket: Any) -> None:
    assert isinstance(await ticket.outcome(WAIT_S), Done)


async def lived_in(channels: dict[str, StateChannel]) -> None:
    """Namespaces with owners, a split, a transfer, bundles that nobody has, and a namespace that is gone again."""
    b1 = channels["b1"]
    for name, bundles in (("m/one", 6), ("m/two", 4), ("m/idle", 2), ("m/gone", 2)):
        await created(b1, name, bundles)
    result = names("m/one", 6)
    await owners(b1, [*result, *names("m/two", 4)])
    await done(await b1.split(result[0], parts=2))
    for bundle, broker in zip(result[1:], ("b1", "b2", "b3", "b1", "b2"), strict=True):
        if (await owners(b1, [bundle]))[bundle].broker != broker:
            await done(await b1.transfer(bundle, broker))
    await done(await b1.delete_namespace("m/gone"))


def names(namespace: str, count: int) -> list[str]:
    bounds = namespace_bounds(count)
    return [bundle_key(namespace, bounds[index], bounds[index + 1]) for index in range(count)]


def served(views: LogViews) -> dict[str, str | None]:
    return {key.name: key.owner for key in views.live()}


def documented(named: str) -> set[str]:
    """Keys of a command's JSON as design/reference/json.md lists them."""
    line = next(line for line in PAGE.read_text().splitlines() if line.startswith(f"| `{named}` |"))
    return {word.strip() for word in line.split("|")[2].split(",")}


@dataclass(frozen=True)
class Moved:
    """An export, and the channel that it was made of."""

    channel: str
    file: Path


@pytest.fixture(scope="module")
def moved(kafka: Kafka, tmp_path_factory: pytest.TempPathFactory) -> Moved:
    """An export of a channel whose brokers were running."""
    moved = Moved(f"to-move-{secrets.token_hex(4)}", tmp_path_factory.mktemp("moved") / "channel.jsonl")
    asyncio.run(live_and_export(kafka, moved.channel, moved.file))
    return moved


async def live_and_export(kafka: Kafka, name: str, file: Path) -> None:
    async with members(kafka.bootstrap_servers, name, *BROKERS, expiry_s=10, partitions=2) as channels:
        await lived_in(channels)
        views = await asyncio.to_thread(export, kafka.bootstrap_servers, name, file)
        # A complete log replays to what the brokers hold, by our own audit and by the twin's.
        assert not views.tentative
        await settled(lambda: {channel.digest()[0] for channel in channels.values()} == {digest_of(views)}, WAIT_S)
        assert twin_audit(await asyncio.to_thread(file.read_text), read="full").audit["digest"] == digest_of(views)
        refused = await asyncio.to_thread(
            command, "import", str(file), *place(kafka.bootstrap_servers, name), code=ExitCode.REJECTED
        )
        assert "brokers are alive on this channel" in refused["error"]


async def test_brokers_of_the_same_names_serve_the_same_at_higher_generations(
    kafka: Kafka, other_kafka: str, topic_prefix: str, moved: Moved, tmp_path: Path
) -> None:
    source = read_views(read_export(moved.file))
    here = place(other_kafka, topic_prefix)
    await asyncio.to_thread(command, "init", "--partitions", "3", *here)
    plan = await asyncio.to_thread(command, "import", str(moved.file), *here, "--dry-run")
    assert (plan["found"], plan["written"], plan["digest"]) == (0, 0, None)
    result = await asyncio.to_thread(command, "import", str(moved.file), *here)
    assert result.keys() == documented("import")
    assert result["written"] == result["records"] == plan["records"]
    again = await asyncio.to_thread(command, "import", str(moved.file), *here)
    assert (again["already"], again["written"]) == (True, 0)

    async with members(other_kafka, topic_prefix, *BROKERS, expiry_s=30) as channels:
        wanted = served(source)
        assert set(wanted.values()) == {*BROKERS, None}
        await settled(lambda: serving(channels) == {name: owner for name, owner in wanted.items() if owner}, WAIT_S)
        highest = {key.name: key.ring.highest for key in source.existing() if key.ring and key.is_namespace}
        for channel in channels.values():
            assert all(token > highest[name.rpartition("/")[0]] for name, token in channel.serving().items())
        # A namespace that was deleted before the move begins above what it had when it is created again.
        gone = source.key("m/gone")
        await created(channels["b1"], "m/gone", 1)
        (owned,) = (await owners(channels["b1"], names("m/gone", 1))).values()
        assert owned.generation > gone.version
        await settled(lambda: len({channel.digest()[0] for channel in channels.values()}) == 1, WAIT_S)
        file = tmp_path / "other.jsonl"
        after = await asyncio.to_thread(export, other_kafka, topic_prefix, file)
        assert digest_of(after) == channels["b3"].digest()[0]
        assert twin_audit(file.read_text(), read="full").audit["digest"] == digest_of(after)
        shown = await asyncio.to_thread(command, "operation", "show", result["import"], *here)
        assert shown["operation"] == result["import"]
    refused = await asyncio.to_thread(
        command, "import", str(moved.file), *place(kafka.bootstrap_servers, moved.channel), code=ExitCode.REJECTED
    )
    assert "the channel is not empty" in refused["error"]


def serving(channels: dict[str, StateChannel]) -> dict[str, str]:
    return {name: broker for broker, channel in channels.items() for name in channel.serving()}


async def test_an_owner_that_never_comes_is_repaired(other_kafka: str, topic_prefix: str, moved: Moved, tmp_path: Path):
    here = place(other_kafka, topic_prefix)
    async with members(other_kafka, topic_prefix, "b1", expiry_s=8):
        pass  # a broker was there once: its heartbeats are in the log, and nothing else
    await asyncio.to_thread(command, "import", str(moved.file), *here, "--namespace", "m/one", "--headroom", "7")
    source = read_views(read_export(moved.file))
    wanted = {name: owner for name, owner in served(source).items() if name.startswith("m/one/")}
    async with members(other_kafka, topic_prefix, "b1", "b2", expiry_s=8) as channels:
        await settled(lambda: serving(channels).keys() == wanted.keys(), WAIT_S)
        after = await asyncio.to_thread(export, other_kafka, topic_prefix, tmp_path / "repaired.jsonl")
        assert {key.name for key in after.existing() if key.is_namespace} == {"m/one"}
        records = read_export(tmp_path / "repaired.jsonl").partitions[0]
        repaired = {
            (record.key or b"").decode()
            for record in records
            if json.loads(record.value or b"{}").get("lost", {}).get("broker") == "b3"
        }
        assert repaired == {name for name, owner in wanted.items() if owner == "b3"}
        assert {served(after)[name] for name in repaired} <= {"b1", "b2"}
        namespace = source.key("m/one")
        # Two above: the forced record, and the owner's; the repaired ones have one more.
        tokens = {token for channel in channels.values() for token in channel.serving().values()}
        assert tokens == {namespace.ring.highest + 7 + 2, namespace.ring.highest + 7 + 3}


# --- killed ---------------------------------------------------------------------------------------------------------


WIDTH = 120
"""Bundles of each namespace."""


def large_export(file: Path) -> ImportPlan:
    """An export of many bundles, written without a Kafka."""
    result = tuple(
        PlannedNamespace(
            f"big/n{number}",
            0,
            5 + number,
            tuple(namespace_bounds(WIDTH)),
            tuple(BROKERS[index % 3] for index in range(WIDTH)),
            deleted=False,
        )
        for number in range(6)
    )
    log = empty_log(1)
    run_import(importer_for(ImportPlan(result, "import-0"), 1), log, window=1_000)
    records = [RecordRead(Topic.CHANNEL, 0, offset, 1_000, key, value) for offset, (key, value) in enumerate(log[0])]
    write_export(file, ExportHeader("made-up", {0: len(records)}, 0), records, now_ms=lambda: 1_700_000_000_000)
    return plan_import(part.view for part in read_views(read_export(file)).parts)


def test_killed_at_several_steps_it_goes_on_to_the_same_end(other_kafka: str, topic_prefix: str, tmp_path: Path):
    file = tmp_path / "large.jsonl"
    plan = large_export(file)
    here = place(other_kafka, topic_prefix)
    slowly = ["--set", "limits.pending_max=1"]
    command("init", "--partitions", "2", *here)
    homes = {partition_of(namespace.name, 2) for namespace in plan.namespaces}
    assert homes == {0, 1}
    # Behind its first mark, in the first partition's records, and in those of the second.
    steps = [(0, 1), (0, WIDTH // 2), (1, 20)]
    client = ClientSettings(other_kafka)
    for partition, offset in steps:
        # It asks often: the import goes on meanwhile.
        with PartitionTail(client, Topic.CHANNEL, topic_prefix, partition, group_id=f"{topic_prefix}-reader") as tail:
            tail.span()
            process = subprocess.Popen(
                [*COMMAND, "import", str(file), *here, *slowly], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
            )
            try:
                wait_until(lambda at=offset, item=process, log=tail: ended(item) or log.span().end >= at)
            finally:
                process.kill()
                _, error = process.communicate(timeout=WAIT_S)
            assert process.returncode == -9, error
    result = command("import", str(file), *here)
    assert 0 < result["written"] < result["records"] == plan.records
    assert result["found"] + result["written"] == plan.records
    assert result["gone_on"] == 0
    views = export(other_kafka, topic_prefix, tmp_path / "after.jsonl")
    keys = {key.name: key for key in views.existing()}
    for namespace in plan.namespaces:
        assert keys.pop(namespace.name).version == namespace.version
        for bundle, owner in zip(names(namespace.name, WIDTH), namespace.owners, strict=True):
            key = keys.pop(bundle)
            assert (key.state, key.version, key.to) == (State.ASSIGNING, namespace.version + 1, owner)
    assert keys == {}
    assert result["digest"] == digest_of(views)


def ended(process: subprocess.Popen[bytes]) -> bool:
    return process.poll() is not None


# --- refused --------------------------------------------------------------------------------------------------------


def test_what_is_not_empty_is_refused_and_what_only_had_brokers_is_not(other_kafka: str, topic_prefix: str, tmp_path):
    file = tmp_path / "large.jsonl"
    large_export(file)
    here = place(other_kafka, topic_prefix)
    missing = command("import", str(file), *here, code=ExitCode.TOPIC_REFUSED)
    assert "statechannel init" in missing["hint"]
    command("init", *here)
    client = ClientSettings(other_kafka)

    def put(key: bytes, value: bytes) -> None:
        append_and_wait(client, topic_prefix, 0, key=key, value=value)

    put(b"!closing/a/b", b"{}")
    put(IMPORT_KEY, b"junk")
    only = ("--namespace", "big/n3")
    assert command("import", str(file), *here, *only, "--dry-run")["records"] == 1 + WIDTH
    begun = b'{"import": "import-0000", "state": "begun"}'
    put(IMPORT_KEY, begun)
    other = command("import", str(file), *here, *only, code=ExitCode.REJECTED)
    assert "import-0000" in other["error"]
    put(b"big/n9", b"junk")
    assert "import-0000" in command("import", str(file), *here, *only, code=ExitCode.REJECTED)["error"]
