"""What the runtime around an engine may know of it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from statechannel.core import commands
from statechannel.core.effects import CallHook, Hook

if TYPE_CHECKING:
    from collections.abc import Mapping

    from statechannel.core.engine import Engine
    from statechannel.runtime.exits import Stopped


class EngineSurroundings:
    """What desk and hooks may know of the engine (see `requests.Surroundings`)."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    @property
    def broker(self) -> str:
        """Id of this broker."""
        return self._engine.identity.broker

    @property
    def incarnation(self) -> str:
        """This process."""
        return self._engine.identity.incarnation

    @property
    def leading(self) -> bool:
        """Whether this process leads and may act on it."""
        return self._engine.leading

    @property
    def deputizing(self) -> bool:
        """Whether this process acts for a leader that is not heard."""
        return self._engine.deputizing

    @property
    def acting(self) -> bool:
        """Whether this process may begin operations."""
        return self._engine.stopped is None and self._engine.refusal() is None

    def owner_of(self, name: str) -> str | None:
        """Owner of a bundle, or of a topic's bundle."""
        found = self._engine.locate(name)
        return None if isinstance(found, commands.NotFound) else found.owner

    def is_alive(self, broker: str, incarnation: str | None = None) -> bool:
        """Whether the registry hears this broker (this very process)."""
        member = self._engine.presence.members.alive.get(broker)
        return member is not None and incarnation in (None, member.incarnation)

    def left_behind(self) -> str:
        """What a departure has not handed over, for people; empty where nothing was left."""
        return self._engine.departure.left_behind

    def let_go(self, stopped: Stopped) -> list[CallHook]:
        """End the engine between two steps, for a cause outside of it; the hooks for what it served or prepared until now."""
        engine = self._engine
        releases = []
        if engine.stopped is None:
            deadline_s = engine.config.hook_deadline_s
            for name, held in engine.reactions.holdings.items():
                generation = held.generation if held.generation is not None else held.prepared
                releases.append(CallHook(0, Hook.ON_RELEASE, name, generation or 0, None, deadline_s))
            engine.stop(stopped.reason, stopped.detail)
        return releases

    def urls_of(self, broker: str) -> Mapping[str, str]:
        """Listeners of a broker as it registered them."""
        member = self._engine.presence.members.alive.get(broker)
        return {} if member is None else member.urls
