"""What others' packages may bring: a strategy that raises."""

from typing import ClassVar

from shedders.model.strategy import StrategySettings


class Raising:
    """Raises."""

    name: ClassVar[str] = "raising"
    Settings: ClassVar[type[StrategySettings]] = StrategySettings

    def __init__(self, settings: StrategySettings) -> None:
        self.settings = settings

    def plan(self, cluster: object, memory: object) -> None:
        raise ZeroDivisionError("oh")
