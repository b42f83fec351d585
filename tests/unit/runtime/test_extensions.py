"""Extensions of a member: how they are found and made, and their life from its start to its end."""

import asyncio
from collections.abc import Mapping
from importlib.metadata import EntryPoint
from types import SimpleNamespace
from typing import Any

import pytest

from statechannel.api import extensions
from statechannel.api.extensions import ExtensionError, Running, make_installed, placement_of
from statechannel.engine.placement import FewestBundles
from statechannel.errors import StateChannelError
from statechannel.settings import Settings, load
from statechannel.settings.errors import SettingsError
from tests.support.log_lines import capture_logs
from tests.support.waits import WAIT_S, until


class Mine:
    """An extension that notes what is done to it."""

    def __init__(self, name: str, log: list[str], *, fails: Exception | None = None, hangs: bool = False) -> None:
        self.name = name
        self.log = log
        self.fails = fails
        self.hangs = hangs
        self.placement: FewestBundles | None = None
        self.closing_fails: Exception | None = None

    async def start(self, channel: Any) -> None:
        self.log.append(f"start {self.name}")
        if self.hangs:
            await asyncio.Event().wait()
        if self.fails is not None:
            raise self.fails

    async def close(self) -> None:
        self.log.append(f"close {self.name}")
        if self.closing_fails is not None:
            raise self.closing_fails

    def status(self) -> Mapping[str, Any]:
        if self.name == "dumb":
            raise RuntimeError("cannot say")
        return {"log": len(self.log)}


CHANNEL: Any = SimpleNamespace(identity=SimpleNamespace(broker="b1"), settings=load(overrides={}))


# --- life -----------------------------------------------------------------------------------------------------------


async def test_they_start_in_order_and_are_closed_in_reverse_order() -> None:
    log: list[str] = []
    running = Running([Mine("a", log), Mine("b", log)], close_timeout_s=5)
    own = {"http": {"port": 1}, "extensions": {"a": {"x": 1}, "c": {"x": 1}}}  # whose maker may say that it is off
    with capture_logs() as lines:
        await running.start(SimpleNamespace(**vars(CHANNEL) | {"settings": load(overrides=own)}))  # type: ignore[arg-type]
    assert [(line["event"], line["extensions"]) for line in lines] == [("extensions.missing", ["http"])]
    assert running.status() == {"a": {"log": 2}, "b": {"log": 2}}
    await running.close()
    await running.close()
    assert (log, running.status()) == (["start a", "start b", "close b", "close a"], {})


async def test_one_that_cannot_start_is_closed_with_those_before_it() -> None:
    log: list[str] = []
    running = Running([Mine("a", log), Mine("b", log, fails=OSError("no port")), Mine("c", log)], close_timeout_s=5)
    with pytest.raises(ExtensionError, match="extension b cannot be started: OSError") as result:
        await running.start(CHANNEL)
    assert "extensions.b.enabled=false" in result.value.hint
    assert log == ["start a", "start b"], "the member hands over before they are closed"
    await running.close()
    assert log == ["start a", "start b", "close b", "close a"]


async def test_what_it_says_itself_of_its_failure_stands() -> None:
    error = StateChannelError("topic missing", hint="create it")
    running = Running([Mine("a", [], fails=error)], close_timeout_s=5)
    with pytest.raises(StateChannelError) as result:
        await running.start(CHANNEL)
    assert result.value is error


async def test_a_start_that_is_given_up_leaves_nothing_running() -> None:
    log: list[str] = []
    running = Running([Mine("a", log), Mine("b", log, hangs=True)], close_timeout_s=5)
    starting = asyncio.create_task(running.start(CHANNEL))
    await until(lambda: "start b" in log)
    starting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await starting
    await running.close()
    assert log == ["start a", "start b", "close b", "close a"]


async def test_one_that_hangs_or_fails_at_the_end_does_not_keep_the_others(caplog: pytest.LogCaptureFixture) -> None:
    log: list[str] = []

    class Hanging(Mine):
        async def close(self) -> None:
            await super().close()
            await asyncio.Event().wait()

    failing = Mine("b", log)
    failing.closing_fails = RuntimeError("late")
    running = Running([Mine("a", log), failing, Hanging("c", log)], close_timeout_s=0.05)
    await running.start(CHANNEL)
    async with asyncio.timeout(WAIT_S):
        await running.close()
    assert log[3:] == ["close c", "close b", "close a"]
    hanging, raised = caplog.records
    assert hanging.facts["limit_s"] == 0.05
    assert (hanging.exc_info is None, raised.exc_info is None) == (True, False), "a limit that passed is no bug"


async def test_one_that_cannot_say_how_it_stands_does_not_keep_the_status_from_others() -> None:
    running = Running([Mine("a", []), Mine("dumb", [])], close_timeout_s=5)
    await running.start(CHANNEL)
    assert running.status() == {"a": {"log": 1}, "dumb": {"failing": {"status": "RuntimeError('cannot say')"}}}


def test_the_first_placement_that_is_offered_counts() -> None:
    mine, other = Mine("a", []), Mine("b", [])
    assert placement_of([mine, other]) is None
    other.placement = FewestBundles()
    assert placement_of([mine, other]) is other.placement


# --- by entry point -------------------------------------------------------------------------------------------------

MADE: list[Mapping[str, Any]] = []


def maker(settings: Settings, values: Mapping[str, Any]) -> Any:
    MADE.append(values)
    return {"off": None, "odd": object(), None: Mine("a", [])}[values.get("kind")]


def failing_maker(settings: Settings, values: Mapping[str, Any]) -> Any:
    raise KeyError("x")


def refusing_maker(settings: Settings, values: Mapping[str, Any]) -> Any:
    raise SettingsError(["extensions.a.x: too large."])


@pytest.fixture
def point(monkeypatch: pytest.MonkeyPatch) -> Any:
    MADE.clear()

    def install(what: str = "maker") -> None:
        point = EntryPoint("a", f"{__name__}:{what}", extensions.GROUP)
        monkeypatch.setattr(extensions, "entry_points", lambda group: [point])

    install()
    return install


def settings(**own: Any) -> Settings:
    return load(overrides={"kafka": {"bootstrap_servers": "127.0.0.1:1"}, "extensions": own})


def test_an_installed_extension_is_made_with_its_own_settings(point: Any) -> None:
    extensions = make_installed(settings(a={"x": "1", "enabled": "true"}))
    assert [extension.name for extension in extensions] == ["a"]
    assert MADE == [{"x": "1"}]
    assert len(make_installed(settings())) == 1


@pytest.mark.parametrize("own", [*({"enabled": off} for off in (False, "false", "off", "0", 0)), {"kind": "off"}])
def test_it_is_switched_off_also_by_the_text_that_an_option_gives_or_by_its_maker(point: Any, own: Any) -> None:
    assert make_installed(settings(a=own)) == []
    assert ([] if "enabled" in own else [own]) == MADE


def test_what_is_neither_true_nor_false_is_refused(point: Any) -> None:
    with pytest.raises(SettingsError, match=r"extensions\.a\.enabled"):
        make_installed(settings(a={"enabled": "perhaps"}))


def test_settings_of_an_extension_that_is_not_there_are_refused_and_what_is_there_is_listed(point: Any) -> None:
    with pytest.raises(SettingsError, match=r"extensions\.balanser") as result:
        make_installed(settings(balanser={"x": 1}))
    assert result.value.hint == "Installed: a."


def test_what_is_no_extension_is_refused(point: Any) -> None:
    with pytest.raises(ExtensionError, match="is not an extension: object does not implement the port"):
        make_installed(settings(a={"kind": "odd"}))


@pytest.mark.parametrize(
    ("what", "error", "text"),
    [
        ("nothing_there", ExtensionError, "cannot be imported"),
        ("failing_maker", ExtensionError, "cannot be created: KeyError"),
        ("refusing_maker", SettingsError, "too large"),
    ],
)
def test_one_that_cannot_be_made_is_an_error_with_its_name(point: Any, what: str, error: type[Exception], text: str):
    point(what)
    with pytest.raises(error, match=text):
        make_installed(settings())
