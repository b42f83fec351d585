"""The port of sources of samples, and their look-up by name (entry points `loaddata.partition_sources`)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib.metadata import entry_points
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, Protocol

from loaddata.samples.formulas import Hole, SampledMinute
from loaddata.samples.partitions import ClusterLayout
from statechannel.errors import ExitCode, StateChannelError

GROUP: Final = "loaddata.partition_sources"
ANSWER_BYTES_MAX: Final = 64 * 2**20


class SourceError(StateChannelError):
    """A source cannot be used with these options; nothing was measured."""

    exit_code = ExitCode.USAGE


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceOptions:
    """The options of a source.

    Attributes:
        endpoints: Addresses of brokers' metrics, `ID=URL` or a URL whose host is the broker's.
        server: Address of a Prometheus server; empty: brokers are asked themselves.
        broker_label: Label of that server's series that names their broker.
        brokers: Broker ids by values of the label that are not the broker's host.
        selector: Labels and values that a series must have.
        admin: An admin client (kafka-python's), for sources that ask the cluster.
        retries: Further tries of a request that was not answered.
    """

    endpoints: tuple[str, ...] = ()
    server: str = ""
    broker_label: str = "instance"
    brokers: Mapping[str, int] = field(default_factory=lambda: MappingProxyType({}))
    selector: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    file: Path | None = None
    admin: Any = None
    timeout_s: float = 10.0
    retries: int = 1
    answer_bytes_max: int = ANSWER_BYTES_MAX


class PartitionSource(Protocol):
    """Measures all partitions once.

    A broker that does not answer is in `SampledMinute.silent`; samples of the others are complete. `FIRST_LOOK` holes say that a
    second reading a while later fills them.
    """

    name: str

    def take(self, layout: ClusterLayout, *, taken_at_ms: int, mono_s: float) -> SampledMinute:
        """Samples of this minute.

        Args:
            mono_s: Monotonic time, for rates over two looks.
        """
        ...


def names() -> list[str]:
    return sorted(point.name for point in entry_points(group=GROUP))


def open_source(name: str, options: SourceOptions) -> PartitionSource:
    points = [point for point in entry_points(group=GROUP) if point.name == name]
    if not points:
        raise SourceError(f"unknown source of samples `{name}`", hint=f"Installed are: {', '.join(names()) or 'none'}.")
    try:
        make: Callable[[SourceOptions], PartitionSource] = points[0].load()
    except Exception as error:  # a plug-in may raise anything
        raise SourceError(
            f"the source {name} cannot be loaded: {error}",
            hint="Install it again, or check its package.",
            exit_code=ExitCode.FAILED,
        ) from error
    return make(options)


def looks_again(taken: SampledMinute) -> bool:
    """Whether a second reading would fill holes."""
    return any(hole is Hole.FIRST_LOOK for _, hole in taken.holes)
