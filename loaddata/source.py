"""The sources of load: two small ports that an embedding broker implements.

Host usage is measured here unless the embedder knows better (`loaddata.measure.host_usage`); what bundles and topics do only the
broker itself knows, unless it asks `StateChannel.guard` for each request: then `AdmittedLoad` is a source.
`loaddata.measure.synthetic` generates load for the demo.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from loaddata.model.broker_load import HostUsage
from loaddata.model.bundle_load import BundleStats
from statechannel.api.guard import AdmittedCounts


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


NOTHING = AdmittedCounts()
LEAST_S = 0.001


class AdmittingMember(Protocol):
    def admitted(self) -> Mapping[str, AdmittedCounts]:
        """Requests since the start, by bundle."""
        ...

    def serving(self) -> Mapping[str, int]: ...


class AdmittedLoad:
    """A `LoadSource` by the requests that a broker has admitted: writes come in, reads go out.

    Topics are not counted, so that bundles are split by hash only.

    Args:
        clock: Seconds, monotonic.
    """

    def __init__(self, member: AdmittingMember, clock: Callable[[], float] = time.monotonic) -> None:
        self._member = member
        self._clock = clock
        self._before: Mapping[str, AdmittedCounts] = member.admitted()
        self._before_s = clock()

    def bundles(self) -> Mapping[str, MeasuredBundle]:
        """Rates of every bundle since the call before, by bundle key."""
        now_s, counts = self._clock(), self._member.admitted()
        passed_s = max(LEAST_S, now_s - self._before_s)
        before, self._before, self._before_s = self._before, counts, now_s
        return {
            bundle: MeasuredBundle(_rates(counts.get(bundle, NOTHING), before.get(bundle, NOTHING), passed_s))
            for bundle in self._member.serving()
        }

    def topics(self, bundle: str) -> Sequence[TopicRates]:
        del bundle
        return ()


def _rates(now: AdmittedCounts, before: AdmittedCounts, passed_s: float) -> BundleStats:
    # A bundle that was forgotten, as many others came, begins again at 0.
    since = [max(0, newer - older) / passed_s for newer, older in zip(now, before, strict=True)]
    reads, read_bytes, writes, write_bytes = since
    return BundleStats(
        msg_rate_in=writes, msg_rate_out=reads, msg_throughput_in=write_bytes, msg_throughput_out=read_bytes
    )
