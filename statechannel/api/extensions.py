"""What runs beside a member in the same process: load reports, a balancer, exporters. Port and life cycle.

    [project.entry-points."statechannel.extensions"]
    balancer = "shedders.live.extension:make"

An embedder hands extensions to `StateChannel.open(extensions=...)`; `statechannel broker run` finds them by entry point. They
start once the member has caught up, in order, and are closed once it has ended, in reverse order, however it ended.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from importlib.metadata import EntryPoint, entry_points
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

import structlog

from statechannel.errors import StateChannelError

if TYPE_CHECKING:
    from statechannel.api.channel import StateChannel
    from statechannel.core.placement import Placement
    from statechannel.settings import Settings

GROUP = "statechannel.extensions"

_log = structlog.get_logger(__name__)


class ExtensionError(StateChannelError):
    """An extension cannot be made, started, or is not one."""

    def __init__(self, name: str, why: str, *, hint: str = "") -> None:
        super().__init__(
            f"extension {name} {why}",
            hint=hint or f"Mend it, or leave it out with extensions.{name}.enabled=false.",
        )


@runtime_checkable
class Extension(Protocol):
    """One extension of one member. All methods are called in the loop's thread."""

    name: str

    @property
    def placement(self) -> Placement | None:
        """Chooses brokers for bundles, from before the member opens; None leaves that to others."""
        ...

    async def start(self, channel: StateChannel) -> None:
        """Begin beside a member that has caught up.

        Raises:
            StateChannelError: It cannot; the member is closed then.
        """
        ...

    async def close(self) -> None:
        """End; the member has stopped. Bounded by `runtime.close_timeout_s`."""
        ...

    def status(self) -> Mapping[str, Any]:
        """How it stands. JSON-able."""
        ...


class ExtensionMaker(Protocol):
    """What an entry point names."""

    def __call__(self, settings: Settings, values: Mapping[str, Any]) -> Extension | None:
        """Make the extension; None if it is switched off.

        Args:
            settings: Of the member.
            values: `extensions.NAME.*` of the settings, not validated yet.

        Raises:
            SettingsError: A value is wrong.
        """
        ...


def installed() -> Mapping[str, EntryPoint]:
    """Entry points by name."""
    return {point.name: point for point in sorted(entry_points(group=GROUP), key=lambda point: point.name)}


def make_installed(settings: Settings) -> list[Extension]:
    """Every installed extension that is switched on.

    Raises:
        ExtensionError: One cannot be imported, or is not one.
        SettingsError: Settings name an extension that is not installed, or a value of one is wrong.
    """
    made = []
    for name, point in installed().items():
        values = dict(settings.extensions.get(name, {}))
        if not values.pop("enabled", True):
            continue
        try:
            maker: ExtensionMaker = point.load()
        except Exception as error:
            raise ExtensionError(name, f"cannot be imported: {error!r}") from error
        extension = maker(settings, values)
        if extension is None:
            continue
        if not isinstance(extension, Extension):
            raise ExtensionError(name, f"is not an extension: {type(extension).__name__} lacks a part of the port")
        made.append(extension)
    return made


class Running:
    """The extensions of one member, from its start to its end."""

    def __init__(self, extensions: Sequence[Extension], *, close_timeout_s: float) -> None:
        self._extensions = list(extensions)
        self._started: list[Extension] = []
        self._close_timeout_s = close_timeout_s

    async def start(self, channel: StateChannel) -> None:
        """Start all, in order; those that were started are closed again if one fails."""
        for extension in self._extensions:
            try:
                await extension.start(channel)
            except StateChannelError:
                await self.close()
                raise
            except Exception as error:
                await self.close()
                raise ExtensionError(extension.name, f"cannot be started: {error!r}") from error
            self._started.append(extension)

    async def close(self) -> None:
        """Close what was started, in reverse order; one that fails or hangs does not keep the others."""
        while self._started:
            extension = self._started.pop()
            try:
                async with asyncio.timeout(self._close_timeout_s):
                    await extension.close()
            except Exception:
                _log.exception("extension-not-closed", extension=extension.name)

    def status(self) -> dict[str, Any]:
        """How each stands, by name."""
        return {extension.name: dict(extension.status()) for extension in self._started}


def placement_of(extensions: Sequence[Extension]) -> Placement | None:
    """The first placement that an extension offers."""
    return next((one.placement for one in extensions if one.placement is not None), None)
