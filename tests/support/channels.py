"""Settings and hooks for tests that run members of a channel."""

import asyncio

from statechannel.api import BrokerHooks, Done, StateChannel, Ticket
from statechannel.settings import Settings, load
from tests.support.waits import KNOWN_S, WAIT_S

NOBODY_LOST_S = 120.0
"""So long a member that a slow machine holds up is not lost for the others."""
EXPIRY = {"expiry_s": 8.0}
"""Of tests that lose a member and wait until the others notice: short enough for that."""


def make_settings(bootstrap: str, channel: str, /, **groups: dict) -> Settings:
    """Settings with times short enough for tests, in the relations checked at start; nobody is lost but by `EXPIRY`."""
    expiry_s = float(groups.get("membership", {}).get("expiry_s", NOBODY_LOST_S))
    settings: dict[str, dict] = {
        "kafka": {"bootstrap_servers": bootstrap, "command_timeout_s": WAIT_S, "topic_grace_s": KNOWN_S},
        "channel": {"name": channel},
        "membership": {"interval_s": 0.3, "expiry_s": expiry_s},
        "safe_mode": {"after_s": expiry_s / 2, "settle_s": 3.0},
        "leader": {"cold_start_after_s": 5.0, "heartbeat_interval_s": 0.5},
        "limits": {"command_timeout_s": WAIT_S},
    }
    for group, values in groups.items():
        settings.setdefault(group, {}).update(values)
    return load(overrides=settings)


async def created(channel: StateChannel, namespace: str, bundles: int, timeout_s: float = WAIT_S) -> Ticket:
    """A new namespace; a busy machine may keep a member from its log for a moment, and it says that one has to try again."""
    async with asyncio.timeout(timeout_s):
        while True:
            ticket = await channel.create_namespace(namespace, bundles)
            outcome = await ticket.outcome(timeout_s)
            if isinstance(outcome, Done):
                return ticket
            assert outcome.reason in ("safe-mode", "settling-mode"), outcome  # one follows the other
            await asyncio.sleep(0.1)


class Recorder(BrokerHooks):
    """Notes every call of a hook, in order."""

    def __init__(self) -> None:
        self.calls: list[tuple] = []
        self._came = asyncio.Event()

    def note(self, *call: object) -> None:
        self.calls.append(call)
        self._came.set()

    async def until(self, call: tuple, timeout_s: float = WAIT_S) -> None:
        """Wait until a call was made."""
        async with asyncio.timeout(timeout_s):
            while call not in self.calls:
                self._came.clear()
                await self._came.wait()

    async def on_own(self, bundle, generation) -> None:
        self.note("on_own", bundle, generation)

    async def on_serve(self, bundle, generation) -> None:
        self.note("on_serve", bundle, generation)

    async def on_release(self, bundle, generation, destination) -> None:
        self.note("on_release", bundle, generation, destination)

    async def on_moved(self, bundle, owner, urls) -> None:
        self.note("on_moved", bundle, owner)
