"""What a developer is told around `StateChannel.open`: mistakes, waiting, and the end."""

import asyncio
import contextlib
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException

import statechannel
from statechannel.api import (
    ArgumentTypeError,
    ArgumentValueError,
    BrokerHooks,
    ChannelStoppedError,
    StateChannel,
    StateChannelError,
    Stopped,
)
from statechannel.broker import assembly
from statechannel.kafka.errors import translate
from statechannel.settings import Settings
from tests.support.log_lines import capture_logs
from tests.support.presence_bench import EXPIRY_S, PresenceBench
from tests.support.waits import WAIT_S, until


async def refused(**groups: object) -> StateChannelError:
    with pytest.raises(StateChannelError) as error:
        await StateChannel.open(broker="b1", **groups)  # type: ignore[arg-type]
    return error.value


async def test_a_setting_that_is_an_argument_is_called_an_argument() -> None:
    invalid = await refused(membership={"expiry_s": "soon"}, kafka={"bootstrap_servers": "127.0.0.1:1"})
    assert str(invalid) == "an argument: membership.expiry_s=soon: not a number of seconds (allowed: 0.5 to 600)."


@pytest.mark.parametrize(
    ("name", "value", "meant"),
    [
        ("kafak", {"bootstrap_servers": "127.0.0.1:1"}, "`kafka`"),
        ("create_topic", True, "`create_topics`"),
        ("join_timeout", 30, "`join_timeout_s`"),
        ("hook", BrokerHooks(), "`hooks`"),
        ("listner", {"pulsar": "pulsar://b1:6650"}, "`listeners`"),
        ("lease_s", 3, "`safe_mode={'lease_s': ...}`"),
        ("bootstrap_servers", "127.0.0.1:1", "`kafka={'bootstrap_servers': ...}`"),
        ("bootstrap_server", "127.0.0.1:1", "`kafka={'bootstrap_servers': ...}`"),
        ("zzzzzz", None, ""),
    ],
)
@pytest.mark.parametrize("settings", [None, Settings()])
async def test_a_misspelt_argument_is_refused_by_its_name(
    name: str, value: object, meant: str, settings: Settings | None
) -> None:
    error = await refused(settings=settings, **{name: value})
    asked = f" Did you mean {meant}?" if meant else ""
    assert str(error) == f"`{name}` is neither an argument nor a group of settings.{asked}"
    assert isinstance(error, ArgumentTypeError)
    assert "kafka" in error.hint, "it lists the groups"


async def test_a_group_of_settings_is_a_mapping() -> None:
    error = await refused(kafka="127.0.0.1:1")
    assert str(error).startswith("`kafka` is '127.0.0.1:1' of type str; wanted: a mapping of its settings, such as {'")


async def test_groups_beside_settings_are_refused_since_nobody_would_read_them() -> None:
    error = await refused(settings=Settings(), kafka={"bootstrap_servers": "127.0.0.1:1"})
    assert str(error) == "`kafka` is given beside `settings`, which hold all groups."


@pytest.mark.parametrize("address", ["127.0.0.1", "kafka", "a:9092,b", "[::1]", "kafka:", "PLAINTEXT://kafka"])
async def test_an_address_without_a_port_is_refused(address: str) -> None:
    error = await refused(kafka={"bootstrap_servers": address})
    assert "has no port" in str(error) or "has no valid port" in str(error)
    assert ":9092" in error.hint


@pytest.mark.parametrize("url", ["nonsense", "b1:6650", "http://", "http:/b1:80", "", "http://b1:port"])
async def test_a_listener_is_a_url(url: str) -> None:
    error = await refused(listeners={"http": url}, kafka={"bootstrap_servers": "127.0.0.1:1"})
    assert isinstance(error, ArgumentValueError)
    assert str(error) == f"`listeners['http']` is {url!r}; wanted: a URL with a host, such as pulsar://b1.example:6650"


@pytest.fixture
def silent() -> Iterator[str]:
    """The address of a server that takes connections and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"127.0.0.1:{server.getsockname()[1]}"


SILENT_S = 20.0
"""A thread of the client that was given up waits for as long, and the test's loop for it."""


async def test_a_kafka_that_does_not_answer_is_named_long_before_the_time_is_up(
    silent: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(assembly, "SILENCE_SAID_S", 0.1)
    with capture_logs() as lines:
        opening = asyncio.ensure_future(
            StateChannel.open(broker="b1", kafka={"bootstrap_servers": silent, "command_timeout_s": SILENT_S})
        )
        await until(lambda: [line for line in lines if line["event"] == "kafka.awaited"])
        assert not opening.done()
        opening.cancel()
        await asyncio.wait({opening})
    (line,) = [line for line in lines if line["event"] == "kafka.awaited"]
    assert (line["log_level"], line["broker"], line["address"], line["limit_s"]) == ("warning", "b1", silent, SILENT_S)
    assert line["why"] == f"No Kafka answers: {silent} takes connections, but says nothing"


@pytest.fixture
def refusing() -> str:
    """An address at which nobody listens."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        return f"127.0.0.1:{server.getsockname()[1]}"


async def test_what_is_known_of_the_silence_is_said_while_it_lasts(
    refusing: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(assembly, "SILENCE_SAID_S", 0.1)
    with capture_logs() as lines:
        error = await refused(kafka={"bootstrap_servers": refusing, "command_timeout_s": 2.0})
        await until(lambda: [line for line in lines if line["event"] == "kafka.awaited"])
    (line,) = [line for line in lines if line["event"] == "kafka.awaited"]
    assert line["why"] == f"Kafka at {refusing} refuses the connection: no program listens there"
    assert str(error) == line["why"]
    assert "kafka={'command_timeout_s': 60}" in error.hint, "what a broker waits for"
    assert "refused_wait_s" not in error.hint, "that of commands"


@pytest.fixture
def closing() -> Iterator[str]:
    """The address of a server that takes connections and closes them."""
    server = socket.create_server(("127.0.0.1", 0))

    def accept() -> None:
        with contextlib.suppress(OSError):
            while True:
                server.accept()[0].close()

    thread = threading.Thread(target=accept, daemon=True)
    thread.start()
    yield f"127.0.0.1:{server.getsockname()[1]}"
    server.shutdown(socket.SHUT_RDWR)
    server.close()
    thread.join()


async def test_a_port_that_takes_connections_and_closes_them_is_described(closing: str) -> None:
    error = await refused(kafka={"bootstrap_servers": closing, "command_timeout_s": 2.0})
    assert str(error) == f"No Kafka answers: {closing} takes connections, but closes them without an answer"
    assert "TLS" in error.hint
    assert error.retryable


async def test_so_is_one_that_says_nothing(silent: str) -> None:
    error = await refused(kafka={"bootstrap_servers": silent, "command_timeout_s": 2.0})
    assert str(error) == f"No Kafka answers: {silent} takes connections, but says nothing"


@pytest.mark.parametrize(
    ("groups", "ways"),
    [
        ({}, ("kafka.bootstrap_servers", "kafka={'bootstrap_servers': ...}", "kafka up")),
        (
            {"kafka": {"bootstrap_servers": ""}},
            ("kafka.bootstrap_servers", "kafka={'bootstrap_servers': ...}", "kafka up"),
        ),
    ],
)
async def test_hints_name_what_an_embedder_writes_too(groups: dict[str, Any], ways: tuple[str, ...]) -> None:
    error = await refused(**groups)
    assert [way for way in ways if way not in error.hint] == []


def test_so_do_those_for_missing_topics_and_for_an_id_in_use() -> None:
    missing = translate(KafkaException(KafkaError(KafkaError.UNKNOWN_TOPIC_OR_PART)), "reading")
    assert "create_topics=True" in missing.hint
    assert "statechannel init" in missing.hint
    in_use = ChannelStoppedError(Stopped("id-in-use", "another process is heard"))
    assert "membership={'take_over': True}" in in_use.hint
    assert "--take-over" in in_use.hint


@pytest.mark.parametrize("reason", ["closed", "shutdown"])
def test_after_an_orderly_end_nothing_is_left_to_be_repaired(reason: str) -> None:
    assert "nothing is left to be repaired" in ChannelStoppedError(Stopped(reason, "this broker left on request")).hint
    assert "repaired by the others" in ChannelStoppedError(Stopped("part-failed", "the reader")).hint


def test_the_version_is_that_of_the_command() -> None:
    command = [sys.executable, "-m", "statechannel", "--version"]
    out = subprocess.run(command, capture_output=True, text=True, check=True, timeout=WAIT_S).stdout
    assert out.split() == ["statechannel", statechannel.__version__]
    with pytest.raises(AttributeError, match="has no attribute 'version'"):
        _ = statechannel.version  # type: ignore[attr-defined]


def test_it_says_once_that_it_waits_for_its_predecessor_and_how_not_to() -> None:
    bench = PresenceBench(end=1)
    bench.hear("a", "a-0")
    for _ in range(3):
        bench.presence.tick()
    (facts,) = [facts for name, facts in bench.context.events if name == "predecessor.awaited"]
    assert (facts["incarnation"], facts["seconds"]) == ("a-0", EXPIRY_S)
    assert "membership.expiry_s" in facts["why"]
    assert "take_over" in facts["hint"]


@pytest.mark.parametrize("options", [{"take_over": True}, {"end": 0}])
def test_who_does_not_wait_says_nothing(options: dict[str, Any]) -> None:
    bench = PresenceBench(**{"end": 1, **options})
    if options.get("end") != 0:
        bench.hear("a", "a-0")
    bench.presence.tick()
    assert bench.context.announced
    assert all(name != "predecessor.awaited" for name, _ in bench.context.events)
