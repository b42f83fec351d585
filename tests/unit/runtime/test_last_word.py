"""What a member says at its end where Kafka was away: the truth about its goodbye, which may be written at the last moment."""

import pytest

from statechannel.broker.exits import Stopped, TooManyCommandsError
from statechannel.broker.inbox import InboxLane
from statechannel.broker.requests import EngineSurroundings
from statechannel.engine import commands
from statechannel.engine.inputs import PartitionOpened, PositionReached
from statechannel.errors import ExitCode
from statechannel.protocol.log import Topic
from tests.support.killing import settled
from tests.support.lone_member import SilentLog, host_settings, lone_host

AWAY = Stopped("log-away", "the log did not answer")


class LateLog(SilentLog):
    """Kafka comes back while the member closes."""

    def close(self, timeout_s: float) -> bool:
        self.registered = True
        return True


async def test_a_goodbye_that_was_never_confirmed_is_not_promised() -> None:
    async with lone_host() as host:
        host.stop(AWAY)
        stopped = await host.wait_stopped()
    assert stopped.exit_code == ExitCode.KAFKA_AWAY
    assert "not in the registry as far as it knows" in stopped.detail


async def test_a_goodbye_that_is_written_while_the_clients_close_is_told_as_left() -> None:
    async with lone_host(LateLog()) as host:
        host.stop(AWAY)
        stopped = await host.wait_stopped()
        assert host.stopped == stopped
    assert stopped.clean
    assert "left on request" in stopped.detail


async def test_bundles_that_it_held_are_told_beside_the_goodbye(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(EngineSurroundings, "left_behind", lambda _: "3 bundles")
    async with lone_host(LateLog()) as host:
        host.stop(AWAY)
        stopped = await host.wait_stopped()
    assert stopped.exit_code == ExitCode.SHUTDOWN_LATE
    assert "3 bundles" in stopped.detail
    assert "goodbye was written" in stopped.detail


async def test_a_member_that_never_heard_itself_says_that_the_log_is_away() -> None:
    log = SilentLog()
    async with lone_host(log) as host:
        for event in (PartitionOpened(Topic.REGISTRY, 0, 0, 0), PositionReached(Topic.REGISTRY, 0, 0)):
            log.inbox.push(event, InboxLane.CALLS)  # type: ignore[attr-defined]
        await settled(lambda: host.engine.context.announced)
        outcome = await host.submit(commands.Shutdown(60.0))
        stopped = await host.wait_stopped()
    assert isinstance(outcome, commands.Rejected)
    assert outcome.reason == "log-away"
    assert stopped.exit_code == ExitCode.KAFKA_AWAY


async def test_a_shutdown_passes_where_too_many_commands_wait() -> None:
    async with lone_host(settings=host_settings(commands_max=1)) as host:
        waiting = host.submit(commands.Lookup("a/b/t", 60.0))
        with pytest.raises(TooManyCommandsError):
            host.submit(commands.Lookup("a/b/t", 60.0))
        assert isinstance(await host.submit(commands.Shutdown(1.0)), commands.Done)
        await waiting
