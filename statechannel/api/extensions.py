"""Extensions that run in a member's process, such as load reports, a balancer or exporters: port and life cycle.

    [project.entry-points."statechannel.extensions"]
    balancer = "shedders.balancer.extension:make"

An embedder hands extensions to `StateChannel.open(extensions=...)`, installed ones by `make_installed`, as `broker run` does.
They start once the member has caught up, in order, and are closed once it has ended, in reverse order, however it ended.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from importlib.metadata import EntryPoint, entry_points
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from pydantic import TypeAdapter, ValidationError

from statechannel.errors import StateChannelError
from statechannel.logger import SafeLogger
from statechannel.settings.errors import SettingsError
from statechannel.settings.names import EXTENSIONS

if TYPE_CHECKING:
    from statechannel.api.member import ChannelMember
    from statechannel.engine.placement import Placement
    from statechannel.settings import Settings

GROUP = "statechannel.extensions"

_log = SafeLogger(__name__)
_BOOL = TypeAdapter(bool)


class ExtensionError(StateChannelError):
    """An extension cannot be created or started, or is not a valid extension."""

    def __init__(self, name: str, why: str) -> None:
        super().__init__(
            f"extension {name} {why}", hint=f"Fix it, or switch it off with extensions.{name}.enabled=false."
        )


@runtime_checkable
class Extension(Protocol):
    """One extension of one member. All methods are called in the loop's thread.

    One that checks requests before its broker executes them names the checks in a further attribute, `checks`, which heartbeats
    carry, and registers each with `check_before` in `start`; until then such requests are rejected.
    """

    name: str

    @property
    def placement(self) -> Placement | None:
        """Chooses brokers for bundles, from before the member opens; None: this extension does not."""
        ...

    async def start(self, channel: ChannelMember) -> None:
        """Start the extension; the member has caught up.

        Raises:
            StateChannelError: It cannot start; the member is closed then.
        """
        ...

    async def close(self) -> None:
        """Stop the extension; the member has stopped, or `start` has failed. Bounded by `runtime.close_timeout_s`."""
        ...

    def status(self) -> Mapping[str, Any]:
        """Status of the extension. JSON-able."""
        ...


def checks_of(extensions: Sequence[Extension]) -> list[str]:
    """Checks that extensions make before their broker executes requests: their `checks`, where they have any."""
    return sorted({name for extension in extensions for name in getattr(extension, "checks", ())})


class ExtensionMaker(Protocol):
    """Signature of an entry point."""

    def __call__(self, settings: Settings, values: Mapping[str, Any]) -> Extension | None:
        """Create the extension; None if it is switched off.

        Args:
            settings: Of the member.
            values: `extensions.NAME.*` of the settings, not validated yet.

        Raises:
            SettingsError: A value is wrong.
        """
        ...


def installed() -> Mapping[str, EntryPoint]:
    return {point.name: point for point in sorted(entry_points(group=GROUP), key=lambda point: point.name)}


def make_installed(settings: Settings) -> list[Extension]:
    """Every installed extension that is switched on.

    Raises:
        ExtensionError: One cannot be imported, is not an extension, or cannot be created.
        SettingsError: Settings name an extension that is not installed, or a value of one is wrong.
    """
    points = installed()
    unknown = [name for name in settings.extensions if name not in points]
    if unknown:
        raise SettingsError(
            [f"`{EXTENSIONS}.{name}`: this extension does not exist." for name in unknown],
            hint=f"Installed: {', '.join(points) or 'none'}.",
        )
    made_extensions = (_make(name, point, settings) for name, point in points.items())
    return [extension for extension in made_extensions if extension is not None]


def _make(name: str, point: EntryPoint, settings: Settings) -> Extension | None:
    values = dict(settings.extensions.get(name, {}))
    if not _enabled(name, values.pop("enabled", True)):
        return None
    try:
        maker: ExtensionMaker = point.load()
    except Exception as error:
        raise ExtensionError(name, f"cannot be imported: {error!r}") from error
    try:
        extension = maker(settings, values)
    except StateChannelError:
        raise
    except Exception as error:
        raise ExtensionError(name, f"cannot be created: {error!r}") from error
    if extension is not None and not isinstance(extension, Extension):
        raise ExtensionError(name, f"is not an extension: {type(extension).__name__} does not implement the port")
    return extension


def _enabled(name: str, value: object) -> bool:
    """Whether the extension is switched on; options and variables give texts."""
    try:
        return _BOOL.validate_python(value)
    except ValidationError:
        raise SettingsError([f"`{EXTENSIONS}.{name}.enabled`: neither true nor false (found {value!r})."]) from None


class Running:
    """The extensions of one member, from its start to its end."""

    def __init__(self, extensions: Sequence[Extension], *, close_timeout_s: float) -> None:
        self._extensions = list(extensions)
        self._started: list[Extension] = []
        self._log = _log
        self.close_timeout_s = close_timeout_s

    async def start(self, channel: ChannelMember) -> None:
        """Start all, in order. Those before one that fails, and that one, are open until `close`.

        Raises:
            StateChannelError: One cannot start.
        """
        self._log = _log.bound(broker=channel.identity.broker)
        port, own = channel.settings.http.port, channel.settings.extensions.get("http", {})
        is_wanted = port is not None and _enabled("http", own.get("enabled", True))
        if is_wanted and not any(extension.name == "http" for extension in self._extensions):
            hint = "Pass `extensions=make_installed(settings)`."
            self._log.warning("extensions.missing", extensions=["http"], hint=hint)
        for extension in self._extensions:
            self._started.append(extension)
            await self._start(extension, channel)

    @staticmethod
    async def _start(extension: Extension, channel: ChannelMember) -> None:
        try:
            await extension.start(channel)
        except StateChannelError:
            raise
        except Exception as error:
            raise ExtensionError(extension.name, f"cannot be started: {error!r}") from error

    async def close(self) -> None:
        """Close the started ones in reverse order; one that fails or hangs does not block the others."""
        while self._started:
            extension = self._started.pop()
            limit = asyncio.timeout(self.close_timeout_s)
            try:
                async with limit:
                    await extension.close()
            except Exception:
                if limit.expired():
                    self._log.error("extension-not-closed", extension=extension.name, limit_s=self.close_timeout_s)
                else:
                    self._log.exception("extension-not-closed", extension=extension.name, limit_s=self.close_timeout_s)

    def status(self) -> dict[str, Any]:
        """Status of each by name; one that fails does not affect the others."""
        return {extension.name: _status(extension, self._log) for extension in self._started}


def _status(extension: Extension, log: SafeLogger) -> dict[str, Any]:
    try:
        return dict(extension.status())
    except Exception as error:
        log.exception("extension-status-failed", extension=extension.name)
        return {"failing": {"status": repr(error)}}


def placement_of(extensions: Sequence[Extension]) -> Placement | None:
    return next((extension.placement for extension in extensions if extension.placement is not None), None)
