"""The sources of load: two small ports that an embedding broker implements.

Host usage is measured here unless the embedder knows better (`loaddata.measure.host_usage`); what bundles and topics do only the
broker itself knows. `loaddata.measure.synthetic` generates it for the demo.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from loaddata.model.broker_load import HostUsage
from loaddata.model.bundle_load import BundleStats


@dataclass(frozen=True, slots=True)
class MeasuredBundle:
    """What one bundle does now.

    Attributes:
        non_persistent: It holds a non-persistent topic: it may only go where those are served.
    """

    stats: BundleStats
    non_persistent: bool = False


class TopicRates(NamedTuple):
    """What one topic does now: messages and bytes a second. `name` is the full name, `persistent://...`."""

    name: str
    msg_rate_in: float = 0.0
    msg_rate_out: float = 0.0
    msg_throughput_in: float = 0.0
    msg_throughput_out: float = 0.0


class LoadSource(Protocol):
    """Rates of what this broker serves. Called in the loop's thread: answer from memory, do not wait."""

    def bundles(self) -> Mapping[str, MeasuredBundle]:
        """This moment's figures of every bundle that this broker serves, by bundle key.

        A bundle that is missing counts as not served. What is not finite, negative or absurd is left out and counted.
        """
        ...

    def topics(self, bundle: str) -> Sequence[TopicRates]:
        """The topics of one bundle, for splitting; empty where this broker does not serve it."""
        ...


class HostSource(Protocol):
    """Usage of the machine, or of the part of it that this broker may use. Called in a worker thread."""

    def read(self, now_s: float) -> HostUsage | None:
        """The usage since the last call; None while it is not known yet: no load is reported until then.

        Args:
            now_s: Monotonic.
        """
        ...
