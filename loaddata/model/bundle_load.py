"""Load of one bundle: this moment's figures and their averages (upstream `NamespaceBundleStats`, `BundleData`)."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class BundleStats:
    """Present figures of a bundle (upstream `NamespaceBundleStats`).

    Attributes:
        msg_rate_in: Messages a second, received; `_out` sent.
        msg_throughput_in: Bytes a second, received; `_out` sent.
        cache_size_bytes: Bytes of its topics in the broker's cache.
    """

    msg_rate_in: float = 0.0
    msg_rate_out: float = 0.0
    msg_throughput_in: float = 0.0
    msg_throughput_out: float = 0.0
    topics: int = 0
    consumers: int = 0
    producers: int = 0
    cache_size_bytes: int = 0

    @property
    def msg_rate(self) -> float:
        """Messages a second in both directions."""
        return self.msg_rate_in + self.msg_rate_out

    @property
    def msg_throughput(self) -> float:
        """Bytes a second in both directions."""
        return self.msg_throughput_in + self.msg_throughput_out

    @property
    def sessions(self) -> int:
        """Producers and consumers."""
        return self.consumers + self.producers


@dataclass(frozen=True, slots=True)
class MessageAverage:
    """Averages over time (upstream `TimeAverageMessageData`).

    Attributes:
        samples: How many samples are in it, at most the window's size; 0 for a default that the first sample replaces.
    """

    msg_rate_in: float = 0.0
    msg_rate_out: float = 0.0
    msg_throughput_in: float = 0.0
    msg_throughput_out: float = 0.0
    samples: int = 0

    @property
    def msg_rate(self) -> float:
        """Messages a second in both directions."""
        return self.msg_rate_in + self.msg_rate_out

    @property
    def msg_throughput(self) -> float:
        """Bytes a second in both directions."""
        return self.msg_throughput_in + self.msg_throughput_out


UNSEEN = MessageAverage(50.0, 50.0, 50_000.0, 50_000.0)
"""Upstream's default for an unmeasured bundle."""


@dataclass(frozen=True, slots=True)
class BundleAverages:
    """Short-term (10 samples) and long-term (1,000 samples) averages of one bundle (upstream `BundleData`)."""

    short: MessageAverage = field(default=UNSEEN)
    long: MessageAverage = field(default=UNSEEN)
