"""What a developer is told around `StateChannel.open`: mistakes, waiting, and the end."""

import asyncio
import contextlib
import socket
import subprocess
import sys
import threading
import traceback
from collections.abc import Iterator
from typing import Any

import pytest

import statechannel
from statechannel.api import StateChannel, StateChannelError
from statechannel.broker import assembly
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


@pytest.mark.parametrize("address", ["127.0.0.1", "kafka", "a:9092,b", "[::1]", "kafka:", "PLAINTEXT://kafka"])
async def test_an_address_without_a_port_is_refused(address: str) -> None:
    error = await refused(kafka={"bootstrap_servers": address})
    assert "has no port" in str(error) or "has no valid port" in str(error)
    assert ":9092" in error.hint
    assert error.hint in "".join(traceback.format_exception(error)), "all that a server of the web shows of its start"


@pytest.fixture
def silent() -> Iterator[str]:
    """The address of a server that takes connections and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"127.0.0.1:{server.getsockname()[1]}"


SILENT_S = 8.0
"""A thread of the client that was given up waits for as long, and the test's loop for it."""


async def test_a_kafka_that_does_not_answer_is_named_long_before_the_time_is_up(silent: str, monkeypatch):
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


async def test_what_is_known_of_the_silence_is_said_while_it_lasts(refusing: str, monkeypatch: pytest.MonkeyPatch):
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
