"""What opening a member returns."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Generator
    from types import TracebackType
    from typing import Any

    from statechannel.api.channel import StateChannel


class Opening:
    """What `StateChannel.open` returns: await it, or enter it."""

    def __init__(self, make: Callable[[], Coroutine[Any, Any, StateChannel]]) -> None:
        self._make = make
        self._channel: StateChannel | None = None

    def __await__(self) -> Generator[Any, Any, StateChannel]:
        return self._make().__await__()

    async def __aenter__(self) -> StateChannel:
        self._channel = await self
        return self._channel

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._channel is not None:
            await self._channel.close()
