"""Checks and topics of other packages, from the entry point group `statechannel.doctor`."""

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
    """Checks and topics of a package; the entry point names a plug-in.

    Attributes:
        checks: Run after ours. They may query Kafka (`DoctorFacts.connection`), within `Connection.timeout_s`.
        topics: Optional topics whose settings and replicas are checked as well as the channel's own.
    """

    checks: Sequence[DoctorCheck] = ()
    topics: Callable[[Connection], Sequence[WantedTopic]] = lambda _: ()


def plugins() -> Iterator[tuple[str, Plugin]]:
    """Installed plug-ins by name; one that cannot be loaded becomes a check that reports it."""
    for point in sorted(entry_points(group=GROUP), key=lambda point: point.name):
        try:
            loaded = point.load()
        except (ImportError, AttributeError) as error:
            yield point.name, Plugin((_unusable(point.name, str(error)),))
            continue
        if isinstance(loaded, Plugin):
            yield point.name, loaded
        else:
            yield point.name, Plugin((_unusable(point.name, f"{point.value} is not a Plugin"),))


def _unusable(name: str, why: str) -> DoctorCheck:
    finding = DoctorFinding(
        Severity.WARNING,
        f"the checks of {name} cannot be loaded: {why}",
        "Their subjects were not checked.",
        "Reinstall the package that registers them.",
    )
    return DoctorCheck(name, f"the checks of {name}", lambda _: [finding])
