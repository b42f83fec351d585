"""The command `broker run` with a data plane: `python -m tests.support.plane_broker broker run --id b1 ...`."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from statechannel.api.extensions import make_installed
from statechannel.cli import broker as command
from statechannel.cli.main import main as run
from tests.support.data_plane import PROTOCOL, DataPlane, listen, url_of

if TYPE_CHECKING:
    from statechannel.api.extensions import Extension
    from statechannel.api.member import ChannelMember
    from statechannel.settings import Settings


class PlaneHooks(command.SimulatedHooks):
    """Hooks that tell a data plane what is served."""

    plane: DataPlane

    async def on_serve(self, bundle: str, generation: int) -> None:
        self.plane.served.serve(bundle, generation)
        await super().on_serve(bundle, generation)

    async def on_release(self, bundle: str, generation: int, destination: str | None) -> None:
        self.plane.served.release(bundle)
        await super().on_release(bundle, generation, destination)

    async def on_moved(self, bundle: str, owner: str | None, urls: Mapping[str, str]) -> None:
        self.plane.served.moved(bundle, urls.get(PROTOCOL))
        await super().on_moved(bundle, owner, urls)


class PlaneExtension:
    """Gives the plane its channel, and closes it after all else."""

    name = "data-plane"
    placement = None

    def __init__(self, plane: DataPlane, starting: asyncio.Future[str]) -> None:
        self._plane, self._starting = plane, starting

    async def start(self, channel: ChannelMember) -> None:
        await self._starting
        self._plane.attach(channel)

    async def close(self) -> None:
        await self._plane.close()

    def status(self) -> Mapping[str, Any]:
        return {}


def run_with(plane: DataPlane) -> None:
    """Run the command of this process's arguments with that data plane; clients find it in the broker's listeners."""
    listening = listen()
    sys.argv += ["--advertised", f"{PROTOCOL}={url_of(listening)}"]

    def extensions(settings: Settings) -> list[Extension]:
        # Called in the loop as the channel is opened: from then on hooks count.
        starting = asyncio.ensure_future(plane.start(listening))
        return [PlaneExtension(plane, starting), *make_installed(settings)]

    PlaneHooks.plane = plane
    vars(command).update(SimulatedHooks=PlaneHooks, make_installed=extensions)
    run()


if __name__ == "__main__":
    run_with(DataPlane(sys.argv[sys.argv.index("--id") + 1]))
