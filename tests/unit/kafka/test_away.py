"""Nobody listens where Kafka should be: one error that a person can read, without the client library's own below it."""

import os
import socket
import subprocess
import sys
import traceback
from collections.abc import Iterator
from pathlib import Path

import pytest

from statechannel.kafka.client_settings import ClientSettings
from statechannel.kafka.errors import KafkaUnavailableError
from statechannel.kafka.topic_policy import ChannelTopics
from statechannel.kafka.topics import create_topics, inspect_topics

EXAMPLE = Path(__file__).parents[3] / "design" / "examples" / "broker.py"


@pytest.fixture
def nobody() -> Iterator[str]:
    """An address that is taken, so that nobody else gets it, and does not listen."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        yield f"127.0.0.1:{taken.getsockname()[1]}"


@pytest.mark.parametrize("call", [create_topics, inspect_topics])
def test_the_librarys_own_error_is_not_told_twice(nobody: str, call) -> None:
    client = ClientSettings.from_sources(bootstrap_servers=nobody)
    with pytest.raises(KafkaUnavailableError) as caught:
        call(client, ChannelTopics("away"), timeout_s=1.0)
    result = "".join(traceback.format_exception(caught.value))
    assert result.count("Traceback") == 1
    assert "KafkaException" not in result
    assert caught.value.hint


def test_the_readmes_broker_says_it_in_a_line(nobody: str) -> None:
    ended = subprocess.run(
        [sys.executable, str(EXAMPLE), "b1", nobody],
        capture_output=True,
        text=True,
        timeout=60,
        env={"PATH": os.environ["PATH"], "STATECHANNEL_KAFKA__COMMAND_TIMEOUT_S": "1"},
        check=False,
    )
    assert ended.returncode != 0
    assert f"Kafka at {nobody} refuses the connection" in ended.stderr
    assert "statechannel kafka status" in ended.stderr
    assert len(ended.stderr.splitlines()) <= 3
