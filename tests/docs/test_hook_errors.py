"""The hook of design/hooks.md that keeps a driver's error, and the password in it, out of the log and out of records."""

import logging
import re
from pathlib import Path

import pytest

from statechannel.broker.hook_runner import HookRunner
from statechannel.broker.hooks import BrokerHooks
from statechannel.broker.observe.metrics import Metrics
from statechannel.broker.observe.observer import Observer
from statechannel.cli.doctor.checks import Severity
from statechannel.cli.doctor.checks_channel import lag
from statechannel.engine.effects import CallHook, Hook
from statechannel.engine.engine import Engine
from statechannel.engine.inputs import HookFinished
from statechannel.settings import load, to_engine, to_identity
from tests.support.doctor_facts import healthy, with_standing
from tests.support.waits import until

PAGE = Path(__file__).parents[2] / "design" / "hooks.md"
SECRET = "hunter2"


class StoreError(Exception):
    """What a driver raises."""


class Store:
    async def open(self, bundle: str, generation: int) -> None:
        raise StoreError(f"could not connect to postgres://app:{SECRET}@db1/topics")


class PlainHooks(BrokerHooks):
    """Lets the driver's error through."""

    def __init__(self) -> None:
        self.store = Store()

    async def on_own(self, bundle: str, generation: int) -> None:
        await self.store.open(bundle, generation)


def page_hooks() -> PlainHooks:
    (text,) = (code for code in re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL) if "StoreError" in code)
    found: dict = {"StoreError": StoreError}
    exec(text, found)
    return type("PageHooks", (PlainHooks,), {"on_own": found["on_own"]})()


async def reported_by(hooks: PlainHooks, caplog: pytest.LogCaptureFixture) -> tuple[str, str]:
    """What the engine is given as the reason, and what a program's log has."""
    finished: list[HookFinished] = []
    observer = Observer(Engine(to_identity("b1"), to_engine(load())), Metrics("c", "b1"))
    runner = HookRunner(hooks, feed=finished.append, urls_of=dict, on_end=observer.hook_ended)  # type: ignore[arg-type]
    runner.call(CallHook(1, Hook.ON_OWN, "t/n/0x00000000_0xffffffff", 3, None, 60.0))
    await until(lambda: finished)
    (ended,) = finished
    return ended.error or "", "\n".join(logging.Formatter().format(record) for record in caplog.records)


async def test_a_drivers_text_reaches_the_record_and_the_log(caplog: pytest.LogCaptureFixture) -> None:
    reason, log = await reported_by(PlainHooks(), caplog)
    assert SECRET in reason
    assert SECRET in log


async def test_the_hook_of_the_page_keeps_it_out_of_both(caplog: pytest.LogCaptureFixture) -> None:
    reason, log = await reported_by(page_hooks(), caplog)
    assert reason == "on_own raised RuntimeError: the store is out of reach (StoreError)"
    assert "the store is out of reach" in log
    assert SECRET not in log


@pytest.mark.parametrize(
    ("raised", "reason"),
    [
        (RuntimeError("a\nb\x1b[31mred\u202e"), "RuntimeError: a b\ufffd[31mred\ufffd"),
        (TimeoutError(), "TimeoutError in on_own (test_hook_errors.py:LINE)"),
        (RuntimeError("x" * 5_000), f"RuntimeError: {'x' * 5_000}"),
    ],
)
async def test_an_error_is_one_line_without_controls_and_names_the_place_where_it_has_no_text(
    raised: Exception, reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    class Failing(PlainHooks):
        async def on_own(self, bundle: str, generation: int) -> None:
            raise raised

    line = Failing.on_own.__code__.co_firstlineno + 1
    said, _ = await reported_by(Failing(), caplog)
    assert said == f"on_own raised {reason.replace('LINE', str(line))[:1_000]}"


@pytest.mark.parametrize(
    ("hook", "effect", "todo"),
    [
        ("on_serve", "t/n/x is assigned to b2: lookups name it", "`statechannel unload t/n/x`"),
        ("on_release", "until its deadline", "Move no bundles from b2"),
        ("on_moved", "Nothing waits for it", "Fix the cause"),
        ("on_split", "given up, and b2 serves the parent on", "`statechannel split t/n/x`"),
        ("on_split_done", "The split is done", "delete what is left of t/n/x"),
        ("on_later", "Nothing waits for it", "Fix the cause"),  # of a newer version
    ],
)
def test_each_hook_that_fails_has_its_own_remedy(hook: str, effect: str, todo: str) -> None:
    failed = {"times": 1, "since_ms": 0, "ago_ms": 900, "bundle": "t/n/x", "error": f"{hook} raised"}
    row = {"broker": "b2", "lag_records": 0, "lag_ms": 0, "hooks_failed": {hook: failed}}
    (finding,) = lag(with_standing(healthy(), brokers=[row]))
    assert finding.severity is Severity.WARNING
    assert finding.what.startswith(f"b2's hook {hook} failed once")
    assert effect in finding.why
    assert todo in finding.todo
    assert "{" not in finding.why + finding.todo
