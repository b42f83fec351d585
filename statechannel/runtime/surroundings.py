"""What the runtime around an engine may know of it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from statechannel.core import commands

if TYPE_CHECKING:
    from collections.abc import Mapping

    from statechannel.core.engine import Engine


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

    def held(self) -> int:
        """Bundles that this broker owns, or has not finished letting go, by its own view."""
        return sum(key.owner == self.broker for replica in self._engine.replicas for key in replica.view.live())

    def urls_of(self, broker: str) -> Mapping[str, str]:
        """Listeners of a broker as it registered them."""
        member = self._engine.presence.members.alive.get(broker)
        return {} if member is None else member.urls
