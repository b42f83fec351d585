"""Checks and topics of other packages: they join by the entry point group `statechannel.doctor`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from importlib.metadata import entry_points

from statechannel.cli.doctor.facts import WantedTopic
from statechannel.cli.doctor.findings import DoctorCheck, DoctorFinding, Severity
from statechannel.cli.kit.connection import Connection

GROUP = "statechannel.doctor"


@dataclass(frozen=True, slots=True)
class Plugin:
    """What a package adds; the entry point names one of these.

    Attributes:
        checks: Run behind ours. They may ask Kafka themselves (`Facts.connection`), within `Connection.timeout_s`.
        topics: Topics whose settings and replicas are looked at beside the channel's own, optional ones.
    """

    checks: Sequence[DoctorCheck] = ()
    topics: Callable[[Connection], Sequence[WantedTopic]] = lambda _: ()


def plugins() -> Iterator[tuple[str, Plugin]]:
    """Those that are installed, by name; one that cannot be loaded is a check that says so."""
    for point in sorted(entry_points(group=GROUP), key=lambda point: point.name):
        try:
            loaded = point.load()
        except (ImportError, AttributeError) as error:
            yield point.name, Plugin((_unusable(point.name, str(error)),))
            continue
        if isinstance(loaded, Plugin):
            yield point.name, loaded
        else:
            yield point.name, Plugin((_unusable(point.name, f"{point.value} is no Plugin"),))


def _unusable(name: str, why: str) -> DoctorCheck:
    finding = DoctorFinding(
        Severity.WARNING,
        f"the checks of {name} cannot be loaded: {why}",
        "What they look at is not known.",
        "Install the package that registers them again.",
    )
    return DoctorCheck(name, f"the checks of {name}", lambda _: [finding])
