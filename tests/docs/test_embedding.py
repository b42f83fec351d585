"""The examples of hooks.md and observability.md for programs that embed the channel, as they stand there."""

import importlib.util
import json
import logging
import subprocess
import sys
from types import ModuleType
from typing import Any

import pytest

from statechannel.api import Admission, ChannelStoppedError, Redirect, Stopped
from statechannel.logger import SafeLogger
from tests.docs.generate import ROOT
from tests.support.waits import WAIT_S

TOPIC = "t/n/topic"
BUNDLE = "t/n/0x00000000_0xffffffff"


def example(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, ROOT / f"design/examples/{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


REQUESTS = example("client_requests")
HERE = Admission(BUNDLE, 7)
THERE = Redirect("other-owner", "b2 serves it", BUNDLE, "b2", {"http": "http://b2:80"}, 7)
NOBODY = Redirect("no-owner", "nobody serves it", BUNDLE)


class StubChannel:
    """Its guard answers what the test says, one after the other."""

    def __init__(self, *answers: Admission | Redirect, lookup: Exception | None) -> None:
        self.answers = list(answers)
        self._lookup = lookup

    def guard(self, name: str) -> Admission | Redirect:
        assert name == TOPIC
        return self.answers.pop(0)

    async def lookup(self, name: str, timeout_s: float) -> None:
        if self._lookup is not None:
            raise self._lookup


class Store:
    def __init__(self, highest: int) -> None:
        self.highest = highest
        self.written: list[tuple[str, int, str, str]] = []

    async def put(self, bundle: str, generation: int, topic: str, value: str) -> None:
        if generation < self.highest:
            raise REQUESTS.FencedError
        self.written.append((bundle, generation, topic, value))


@pytest.mark.parametrize(
    ("answers", "lookup", "status"),
    [
        ((HERE,), None, 200),
        ((HERE._replace(generation=6),), None, 503),
        ((THERE,), None, 307),
        ((THERE._replace(urls={"amqp": "amqp://b2"}),), None, 503),
        ((NOBODY, HERE), None, 200),
        ((NOBODY, THERE), None, 307),
        ((NOBODY, NOBODY), None, 503),
        ((NOBODY, NOBODY), ChannelStoppedError(Stopped("closed", "by the test")), 503),
    ],
)
async def test_a_write_of_a_client(answers: tuple[Admission | Redirect, ...], lookup: Exception | None, status: int):
    store, channel = Store(highest=7), StubChannel(*answers, lookup=lookup)
    reply = await REQUESTS.ClientRequests(channel, store, "http").put(TOPIC, "value")
    assert reply.status == status
    assert store.written == ([(BUNDLE, 7, TOPIC, "value")] if status == 200 else [])
    assert (reply.text == "http://b2:80") is (status == 307)
    assert channel.answers == []


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
def test_a_configuration_of_logging_keeps_the_lines_only_if_it_disables_no_loggers(keeps: bool | None, lines: int):
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
