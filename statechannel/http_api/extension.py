"""The extension by which a broker serves the admin API. It loads the libraries of the extra only where a port is set."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

from statechannel.errors import ExitCode, StateChannelError
from statechannel.extras import install_command

if TYPE_CHECKING:
    from statechannel.api.member import ChannelMember
    from statechannel.engine.placement import Placement
    from statechannel.http_api.server import HttpServer
    from statechannel.settings import Settings
    from statechannel.settings.groups_cluster import HttpSettings

NAME: Final = "http"


class HttpExtraMissingError(StateChannelError):
    """The admin API is switched on, and its libraries are not installed."""

    exit_code = ExitCode.EXTRA_MISSING


def require_extra(http: HttpSettings | None = None) -> None:
    """Refuse to go on without the libraries.

    Args:
        http: What they have to serve; None: any API.

    Raises:
        HttpExtraMissingError: They are not installed.
    """
    needed = [("starlette", "http", "http.port"), ("uvicorn", "http", "http.port")]
    if http is not None and http.oidc_issuer is not None:
        needed += [("jwt", "oidc", "http.oidc_issuer"), ("cryptography", "oidc", "http.oidc_issuer")]
    for library, extra, unset in needed:
        try:
            import_module(library)
        except ImportError as error:
            raise HttpExtraMissingError(
                f"the admin API needs the extra `{extra}`: {error.name} is not installed",
                hint=f"Install it with `{install_command(extra)}`, or set no {unset}.",
            ) from error


def make(settings: Settings, values: Mapping[str, Any]) -> HttpExtension | None:
    """The extension; None where `http.port` is not set.

    Raises:
        HttpExtraMissingError, HttpAccessError: It cannot be served.
    """
    del values
    if settings.http.port is None:
        return None
    require_extra(settings.http)
    # Its import takes a second: in `start` it would block the member's event loop.
    import_module("statechannel.http_api.serving")
    return HttpExtension(settings)


class HttpExtension:
    """Serves the admin API as long as its member runs."""

    name = NAME

    def __init__(self, settings: Settings) -> None:
        from statechannel.http_api.access import HttpCallers  # noqa: PLC0415 - the extra

        self._settings = settings
        self._server: HttpServer | None = None
        HttpCallers(settings.http)  # before the member joins

    @property
    def placement(self) -> Placement | None:
        return None

    async def start(self, channel: ChannelMember) -> None:
        """Open the port.

        Raises:
            HttpPortError: It cannot be opened.
        """
        from statechannel.http_api.cluster import announce, router_of  # noqa: PLC0415 - the extra
        from statechannel.http_api.serving import server_of  # noqa: PLC0415 - the same

        self._server = server_of(
            router_of(channel), self._settings, asyncio.get_running_loop(), broker=channel.identity.broker
        )
        url = await asyncio.to_thread(self._server.start)
        announce(channel, self._settings.http.advertised_url or url)

    async def close(self) -> None:
        if self._server is not None:
            await asyncio.to_thread(self._server.close)

    def status(self) -> Mapping[str, Any]:
        return {"url": None if self._server is None else self._server.url}
