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

_PYTHON = re.compile(r"^```python\n(.*?)^```", re.DOTALL | re.MULTILINE)


def _example() -> str:
    blocks = _PYTHON.findall((ROOT / "README.md").read_text(encoding="utf-8"))
    router = (ROOT / "design/examples/router.py").read_text(encoding="utf-8")  # runs in tests/kafka/test_router.py
    own = [block for block in blocks if block.strip() != router.strip()]
    assert len(own) == len(blocks) - 1 == 1, "each Python block of the README needs a test that runs it"
    return own[0]


def test_example_is_short():
    code = [line for line in _example().splitlines() if line.strip()]
    assert len(code) <= 37


@pytest.mark.parametrize("words", [[], ["b1"], ["b1", "127.0.0.1:1", "more"]])
def test_without_its_two_words_the_example_says_how_it_is_run(words: list[str]):
    script = ROOT / "design/examples/broker.py"
    ended = subprocess.run(
        [sys.executable, script, *words], capture_output=True, text=True, timeout=WAIT_S, check=False
    )
    assert ended.returncode == 1
    assert ended.stderr == "usage: python broker.py ID HOST:PORT\n"


@pytest.mark.kafka
def test_example_owns_serves_and_lets_go(kafka: Kafka, topic_prefix: str, tmp_path: Path):
    script = tmp_path / "broker.py"
    script.write_text(_example(), encoding="utf-8")
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
        broker.send_signal(signal.SIGTERM)
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
