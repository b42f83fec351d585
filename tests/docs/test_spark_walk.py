"""The commands of the first walk through the Spark jobs run as they stand there, one after the other, on a real channel."""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import orjson
import pytest

from statechannel.kafka.client_settings import ClientSettings
from statechannel.kafka.topic_policy import LoadTopics
from statechannel.kafka.topics import create_topics
from tests.docs.generate import ROOT
from tests.spark.cluster_logs import write_log
from tests.support.kafka_lanes import Kafka
from tests.support.waits import WAIT_S

_SECTION = re.compile(r"^## First walk\n(.*?)^## ", re.DOTALL | re.MULTILINE)
_COMMAND = re.compile(r"^\$ (.+)$", re.MULTILINE)


def _commands() -> list[str]:
    found = _SECTION.search((ROOT / "design/spark.md").read_text(encoding="utf-8"))
    return [command for command in _COMMAND.findall(found.group(1)) if not command.startswith("make ")]


def _words(command: str) -> list[str]:
    words = shlex.split(command)
    if words[0] == "statechannel":
        return [sys.executable, "-c", "from statechannel.cli.main import main; main()", *words[1:]]
    assert words[0] == ".venv/bin/python"
    return [sys.executable, *words[1:]]


@pytest.mark.kafka
@pytest.mark.timeout(900)  # several Spark jobs one after the other, on a machine that may be slow
def test_commands_run_one_after_the_other(kafka: Kafka, topic_prefix: str, tmp_path: Path):
    written = write_log(kafka.bootstrap_servers, topic_prefix)
    # A broker makes these when it starts.
    client, topics = ClientSettings(kafka.bootstrap_servers), LoadTopics(topic_prefix)
    create_topics(client, topics, replication_factor=1, timeout_s=WAIT_S)
    environment = {
        **os.environ,
        "STATECHANNEL_CHANNEL__NAME": topic_prefix,
        "STATECHANNEL_KAFKA__BOOTSTRAP_SERVERS": kafka.bootstrap_servers,
        "PYTHONPATH": str(ROOT),
    }
    said = {}
    for command in _commands():
        done = subprocess.run(
            _words(command), check=False, capture_output=True, text=True, cwd=tmp_path, env=environment, timeout=WAIT_S
        )
        assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
        assert "Traceback" not in done.stderr
        said[command] = done.stdout
    pointer = orjson.loads((tmp_path / "tables/channel/view/LATEST").read_bytes())
    assert pointer["meta"]["digest"] == written.digest
    replayed = next(out for command, out in said.items() if "run replay" in command)
    assert written.digest in replayed
