"""The examples of hooks.md and observability.md for programs that embed the channel, as they stand there."""

import importlib.util
import json
import logging
import subprocess
import sys
from types import ModuleType
from typing import Any

import pytest

from statechannel.api import BoundTo, ChannelStoppedError, NotFound, Owned, Stopped, Undetermined
from statechannel.logger import SafeLogger
from tests.docs.generate import ROOT
from tests.support.waits import WAIT_S

TOPIC = "t/n/topic"
BUNDLE = "t/n/0x00000000_0xffffffff"


def example(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, ROOT / f"design/examples/{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


WRITES = example("client_writes")


class StubChannel:
    """Answers what the test says; `cached` is asked first."""

    def __init__(self, answer: Any, *, cached: bool, generation: int | None = 7) -> None:
        self._answer = answer
        self._cached = cached
        self._generation = generation
        self.identity = type("Identity", (), {"broker": "b1"})

    def lookup_cached(self, name: str) -> Any:
        assert name == TOPIC
        return self._answer if self._cached else None

    async def lookup(self, name: str, timeout_s: float) -> Any:
        assert not self._cached, "memory had the answer"
        if isinstance(self._answer, Exception):
            raise self._answer
        return self._answer

    def accepts_writes(self, bundle: str) -> int | None:
        assert bundle == BUNDLE
        return self._generation


class Store:
    def __init__(self, highest: int) -> None:
        self.highest = highest
        self.written: list[tuple[str, int, str, str]] = []

    async def put(self, bundle: str, generation: int, topic: str, value: str) -> None:
        if generation < self.highest:
            raise WRITES.FencedError
        self.written.append((bundle, generation, topic, value))


HERE = Owned(BUNDLE, "b1", 7, {"http": "http://b1:80"})
THERE = Owned(BUNDLE, "b2", 7, {"http": "http://b2:80"})


@pytest.mark.parametrize(
    ("answer", "cached", "generation", "status"),
    [
        (HERE, True, 7, 200),
        (HERE, False, 7, 200),
        (THERE, True, None, 307),
        (THERE, False, None, 307),
        (Owned(BUNDLE, "b2", 7, {"amqp": "amqp://b2"}), True, None, 503),
        (HERE, True, None, 503),
        (HERE, True, 6, 503),
        (Undetermined("timed-out"), False, None, 503),
        (ChannelStoppedError(Stopped("closed", "by the test")), False, None, 503),
        (NotFound("unknown-namespace", "there is no namespace t/n"), False, None, 404),
        (BoundTo("b2", {"http": "http://b2:80"}), False, None, 307),
        (BoundTo("b1"), False, None, 404),
    ],
)
async def test_a_write_of_a_client(answer: Any, cached: bool, generation: int | None, status: int) -> None:
    store = Store(highest=7)
    writes = WRITES.ClientWrites(StubChannel(answer, cached=cached, generation=generation), store, "http")
    reply = await writes.put(TOPIC, "value")
    assert reply.status == status
    assert store.written == ([(BUNDLE, 7, TOPIC, "value")] if status == 200 else [])
    assert (reply.text == "http://b2:80") is (status == 307)


def test_log_lines_as_json() -> None:
    formatter = example("json_lines").JsonLines()
    lines: list[dict[str, Any]] = []

    class Keeper(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            lines.append(json.loads(formatter.format(record)))

    logger, keeper = logging.getLogger("statechannel.json"), Keeper()
    logger.addHandler(keeper)
    try:
        SafeLogger("statechannel.json").error("hook.failed", broker="b1", error="on_own raised")
        logger.error("a line of %s", "another library", exc_info=OSError("disk full"))
    finally:
        logger.removeHandler(keeper)
    first, second = lines
    assert {name: first[name] for name in ("event", "level", "logger", "broker", "error")} == {
        "event": "hook.failed", "level": "error", "logger": "statechannel.json", "broker": "b1", "error": "on_own raised",
    }  # fmt: skip
    assert second["event"] == "a line of another library"
    assert "OSError: disk full" in second["exception"]


@pytest.mark.parametrize(("keeps", "lines"), [(None, 0), (True, 0), (False, 1)])
def test_a_configuration_of_logging_keeps_the_lines_only_if_it_disables_no_loggers(
    keeps: bool | None, lines: int
) -> None:
    """What observability.md says of `dictConfig`; in a process of its own, as it would silence this one."""
    config: dict[str, Any] = {
        "version": 1,
        "handlers": {"out": {"class": "logging.StreamHandler", "stream": "ext://sys.stdout"}},
        "root": {"handlers": ["out"], "level": "WARNING"},
    }
    if keeps is not None:
        config["disable_existing_loggers"] = keeps
    code = (
        "import logging.config, statechannel.api\n"
        "from statechannel.broker.hook_runner import _log\n"
        f"logging.config.dictConfig({config!r})\n"
        "_log.error('hook.failed', hook='on_own')\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=WAIT_S, check=True)
    assert done.stdout.count("hook.failed") == lines
