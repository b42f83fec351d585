"""The example of the README runs as it stands there: a broker that owns a bundle, serves it, and lets it go."""

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.docs.generate import ROOT
from tests.support.kafka_lanes import Kafka
from tests.support.waits import WAIT_S

KIT_EXAMPLE = ROOT / "design/examples/test_my_broker.py"
_PYTHON = re.compile(r"^```python\n(.*?)^```", re.DOTALL | re.MULTILINE)


def _example() -> str:
    blocks = _PYTHON.findall((ROOT / "README.md").read_text(encoding="utf-8"))
    router = (ROOT / "design/examples/router.py").read_text(encoding="utf-8")  # runs in tests/kafka/test_router.py
    others = {router.strip(), KIT_EXAMPLE.read_text(encoding="utf-8").strip()}
    own = [block for block in blocks if block.strip() not in others]
    assert len(own) == len(blocks) - 2 == 1, "each Python block of the README needs a test that runs it"
    return own[0]


MY_BROKER = """
from statechannel.api import BrokerHooks

class MyHooks(BrokerHooks):
    def __init__(self):
        self.serving = {}

    async def on_serve(self, bundle, generation):
        self.serving[bundle] = generation

    async def on_release(self, bundle, generation, destination):
        self.serving.pop(bundle, None)

    async def on_split(self, parent, children, generation):
        self.serving.pop(parent, None)
"""


@pytest.mark.parametrize(
    ("mistake", "code", "words"),
    [("", 0, "2 passed"), ("self.serving.pop(bundle, None)", 1, "serves-after-release: ")],
    ids=["good", "releases-nothing"],
)
def test_the_tests_of_a_broker_run_as_they_stand_there(mistake: str, code: int, words: str, tmp_path: Path):
    (tmp_path / "my_broker.py").write_text(MY_BROKER.replace(mistake, "pass", 1) if mistake else MY_BROKER)
    (tmp_path / "test_my_broker.py").write_text(KIT_EXAMPLE.read_text(encoding="utf-8"))
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        "--rootdir",
        str(tmp_path),
        str(tmp_path),
    ]
    environment = {**os.environ, "PYTHONPATH": f"{tmp_path}{os.pathsep}{ROOT}"}
    ended = subprocess.run(
        command, capture_output=True, text=True, timeout=WAIT_S, check=False, env=environment, cwd=tmp_path
    )
    assert ended.returncode == code, ended.stdout
    assert words in ended.stdout


def test_example_is_short():
    code = [line for line in _example().splitlines() if line.strip()]
    assert len(code) <= 40, "a broker in forty lines, says its first line"


@pytest.mark.parametrize("words", [[], ["b1"], ["b1", "127.0.0.1:1", "more"]])
def test_without_its_two_words_the_example_says_how_it_is_run(words: list[str]):
    script = ROOT / "design/examples/broker.py"
    ended = subprocess.run(
        [sys.executable, script, *words], capture_output=True, text=True, timeout=WAIT_S, check=False
    )
    assert ended.returncode == 1
    assert ended.stderr == "usage: python broker.py ID HOST:PORT\n"


WINDOWS = """
import asyncio

def add_signal_handler(*_):
    raise NotImplementedError

asyncio.SelectorEventLoop.add_signal_handler = add_signal_handler
"""
"""No loop of Windows takes handlers of signals."""


@pytest.mark.kafka
@pytest.mark.parametrize(("before", "number"), [("", signal.SIGTERM), (WINDOWS, signal.SIGINT)])
def test_example_owns_serves_and_lets_go(before: str, number: int, kafka: Kafka, topic_prefix: str, tmp_path: Path):
    script = tmp_path / "broker.py"
    script.write_text(before + _example(), encoding="utf-8")
    environment = {**os.environ, "STATECHANNEL_CHANNEL__NAME": topic_prefix, "PYTHONPATH": str(ROOT)}
    broker = subprocess.Popen(
        [sys.executable, script, "b1", kafka.bootstrap_servers],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env=environment,
        cwd=tmp_path,
    )
    try:
        said = _until(broker, "Owned(")
        assert any(line.startswith("serve example/orders/0x") for line in said), said
        broker.send_signal(number)
        rest, _ = broker.communicate(timeout=WAIT_S)
        assert "close example/orders/0x" in rest
        assert broker.returncode == 0
    finally:
        broker.kill()
        broker.wait()


def _until(broker: subprocess.Popen, beginning: str) -> list[str]:
    """Lines up to the one that begins so; the test's own time-out bounds the wait."""
    said: list[str] = []
    for line in broker.stdout:
        said.append(line)
        if line.startswith(beginning):
            return said
    raise AssertionError(f"the broker ended without {beginning!r}: {said}")
