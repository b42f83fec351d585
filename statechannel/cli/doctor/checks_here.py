"""Checks of this machine: settings, Java, embedded Kafka and its disk, clock."""

from __future__ import annotations

from collections.abc import Iterator

from statechannel.cli.doctor.facts import DoctorFacts
from statechannel.cli.doctor.findings import DoctorCheck, DoctorFinding, Severity
from statechannel.cli.kit.output import duration
from statechannel.embedded import BrokerState
from statechannel.settings.relations import RELATIONS

MIB = 1024 * 1024
CLOCK_WARNING_MS = 1_000
"""Ages are shown in seconds: an error of a second is visible."""
_LITTLE_FREE = 0.05
_FREE_TIMES = 10


def settings(facts: DoctorFacts) -> Iterator[DoctorFinding]:
    """Settings that are invalid, or contradict each other."""
    for problem in facts.problems:
        yield DoctorFinding(
            Severity.CRITICAL,
            problem.rstrip("."),
            "No broker starts with these settings."
            + ("" if facts.settings_known else " Kafka is not queried until they are fixed."),
            "Change it where it is set (`--set`, STATECHANNEL_ variables, `--config`); design/settings.md lists all settings.",
        )
    if not facts.problems:
        yield DoctorFinding(Severity.OK, f"settings are valid, and the {len(RELATIONS)} rules between them are met")


def java(facts: DoctorFacts) -> Iterator[DoctorFinding]:
    """Java, needed by the embedded Kafka and the Spark jobs."""
    failed = facts.failed.get("java")
    if failed is not None:
        used = facts.embedded is not None and facts.embedded.used
        yield DoctorFinding(
            Severity.ERROR if used else Severity.INFO,
            failed.what,
            "The embedded Kafka cannot be started again."
            if used
            else "Only the embedded Kafka and Spark jobs need it.",
            failed.hint if used else "",
        )
    elif facts.java is not None:
        yield DoctorFinding(Severity.OK, f"Java {facts.java.major} at {facts.java.executable}")


_NEXT = {
    BrokerState.STOPPED: "`statechannel kafka up`",
    BrokerState.SUSPENDED: "`kill -CONT` its process, which `statechannel kafka status` names.",
}


def embedded(facts: DoctorFacts) -> Iterator[DoctorFinding]:
    """The embedded Kafka of this machine: whether it runs, and its disk."""
    kafka = facts.embedded
    if kafka is None or not (kafka.used or kafka.exists):
        yield DoctorFinding(Severity.OK, "this machine has no embedded Kafka")
        return
    if kafka.state is BrokerState.CRASHED:
        yield DoctorFinding(
            Severity.CRITICAL if kafka.used else Severity.INFO,
            f"the embedded Kafka of {kafka.folder} crashed",
            "The channel cannot be read or written." if kafka.used else "It is not the Kafka of this channel.",
            f"Read the end of {kafka.log}, then `statechannel kafka up`." if kafka.used else "",
        )
    elif kafka.state is not BrokerState.RUNNING and kafka.used:
        yield DoctorFinding(
            Severity.CRITICAL,
            f"the embedded Kafka of {kafka.folder} is {kafka.state}",
            "The channel cannot be read or written.",
            _NEXT.get(kafka.state, "Wait; `statechannel kafka status`."),
        )
    yield from _disk(facts)


def _disk(facts: DoctorFacts) -> Iterator[DoctorFinding]:
    kafka = facts.embedded
    if kafka is None:
        return
    share = kafka.free_bytes / kafka.total_bytes if kafka.total_bytes else 0.0
    what = (
        f"{kafka.free_bytes // MIB:,} MiB free ({share:.0%}) on the disk of {kafka.folder}, "
        f"whose data takes {kafka.data_bytes // MIB:,} MiB"
    )
    if kafka.free_bytes < kafka.least_free_bytes:
        severity = Severity.CRITICAL if kafka.used else Severity.WARNING
    elif kafka.free_bytes < _FREE_TIMES * kafka.least_free_bytes:
        severity = Severity.ERROR if kafka.used else Severity.INFO
    elif share < _LITTLE_FREE:
        severity = Severity.WARNING if kafka.used else Severity.INFO
    else:
        yield DoctorFinding(Severity.OK, what)
        return
    yield DoctorFinding(
        severity,
        what,
        f"Kafka stops on a full disk, and does not start with less than {kafka.least_free_bytes // MIB} MiB.",
        "Free space on that disk. Never delete files in the folder while it runs.",
    )


def clock(facts: DoctorFacts) -> Iterator[DoctorFinding]:
    """This machine's clock compared with Kafka's."""
    ahead_ms = facts.clock.ahead_ms
    if ahead_ms is None:
        newest_ms = facts.clock.newest_ahead_ms
        if newest_ms is not None and newest_ms < -CLOCK_WARNING_MS:
            ahead_ms = newest_ms
        else:
            yield DoctorFinding(
                Severity.INFO, "this machine's clock cannot be compared with Kafka's: no heartbeat arrived"
            )
            return
    apart = f"{duration(abs(ahead_ms))} {'ahead of' if ahead_ms > 0 else 'behind'} Kafka's"
    if abs(ahead_ms) < CLOCK_WARNING_MS:
        yield DoctorFinding(Severity.OK, f"this machine's clock is {apart}, including the delay of a record")
        return
    much = abs(ahead_ms) >= facts.settings.membership.expiry_s * 1_000
    yield DoctorFinding(
        Severity.ERROR if much else Severity.WARNING,
        f"this machine's clock is {apart}",
        "Brokers are not affected: they use the log's time and monotonic clocks. But ages that "
        "commands show here, `--since` and `--as-of` with times, and the ends of overrides are wrong by that much.",
        "Synchronize the clock of this machine or of the Kafka brokers by NTP (`chronyc tracking`, `timedatectl`).",
    )


CHECKS = (
    DoctorCheck("settings", "settings and the rules between them", settings),
    DoctorCheck("java", "Java", java),
    DoctorCheck("embedded-kafka", "the embedded Kafka and its disk", embedded, needs=("embedded",)),
    DoctorCheck("clock", "this machine's clock and Kafka's", clock, needs=("kafka", "registry")),
)
