"""What others' packages may bring: a strategy that raises, and a snapshot from elsewhere."""

from typing import ClassVar

from shedders.model.strategy import StrategySettings
from shedders.snapshots.cluster import snapshot_of
from shedders.snapshots.model import Snapshot
from tests.support.snapshots import Shape, cluster


class Raising:
    """Raises."""

    name: ClassVar[str] = "raising"
    Settings: ClassVar[type[StrategySettings]] = StrategySettings

    def __init__(self, settings: StrategySettings) -> None:
        self.settings = settings

    def plan(self, cluster: object, memory: object) -> None:
        raise ZeroDivisionError("oh")


def taken(connect: object) -> Snapshot:
    return snapshot_of(cluster(1, Shape(brokers=2)))
