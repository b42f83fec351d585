"""Checks and their findings."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, NamedTuple

from statechannel.cli.doctor.facts import DoctorFacts
from statechannel.errors import ExitCode


class Severity(StrEnum):
    """Severity of a finding, the lowest first."""

    OK = "ok"
    INFO = "info"  # worth knowing; nothing need be done
    WARNING = "warning"  # works, and will not for ever, or not under all faults
    ERROR = "error"  # something does not work, or safety hangs by a thread
    CRITICAL = "critical"  # bundles are not served, or what the protocol rests on is void

    @property
    def rank(self) -> int:
        """0 for the lowest."""
        return list(Severity).index(self)


class DoctorFinding(NamedTuple):
    """One result of a check.

    Attributes:
        check: Name of the check; filled in by `examine`.
        checked: False: facts that the check needs are missing, and `what` says why.
        what: The finding, with its figures.
        why: Consequences. Empty without a problem.
        todo: Next step, if possible a command. Empty if nothing is to be done.
    """

    severity: Severity
    what: str
    why: str = ""
    todo: str = ""
    check: str = ""
    checked: bool = True


@dataclass(frozen=True, slots=True)
class DoctorCheck:
    """A check.

    Attributes:
        name: One word, or several with hyphens.
        about: Subject of the check; also its output without findings.
        look: DoctorFacts in, findings out. Our own checks do no I/O.
        needs: Facts that it needs (`DoctorFacts.failed`).
    """

    name: str
    about: str
    look: Callable[[DoctorFacts], Iterable[DoctorFinding]]
    needs: Sequence[str] = ()


def examine(checks: Iterable[DoctorCheck], facts: DoctorFacts) -> list[DoctorFinding]:
    """Run all checks; the worst findings first, within a severity in the order of the checks."""
    findings = [finding._replace(check=check.name) for check in checks for finding in _examine(check, facts)]
    return sorted(findings, key=lambda finding: -finding.severity.rank)


def _examine(check: DoctorCheck, facts: DoctorFacts) -> Iterator[DoctorFinding]:
    missing = next((facts.failed[need] for need in check.needs if need in facts.failed), None)
    if missing is not None:
        yield DoctorFinding(Severity.INFO, missing.what, checked=False)
        return
    try:
        findings = list(check.look(facts))
    except Exception as error:
        yield DoctorFinding(
            Severity.ERROR,
            f"the check itself failed: {type(error).__name__}: {error}",
            "Its subject was not checked.",
            "This is a bug of the package of the check. Report it.",
        )
        return
    yield from findings or [DoctorFinding(Severity.OK, check.about)]


_CODES = {
    Severity.WARNING: ExitCode.DOCTOR_WARNING,
    Severity.ERROR: ExitCode.DOCTOR_ERROR,
    Severity.CRITICAL: ExitCode.DOCTOR_CRITICAL,
}


def exit_code(findings: Iterable[DoctorFinding]) -> ExitCode:
    """Exit code for the worst finding."""
    worst = max((finding.severity for finding in findings), key=lambda severity: severity.rank, default=Severity.OK)
    return _CODES.get(worst, ExitCode.OK)


def finding_fields(finding: DoctorFinding) -> dict[str, Any]:
    """A finding for the JSON output."""
    return {
        "check": finding.check,
        "severity": finding.severity.value,
        "checked": finding.checked,
        "what": finding.what,
        "why": finding.why,
        "todo": finding.todo,
    }
