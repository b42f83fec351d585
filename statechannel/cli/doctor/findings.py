"""What a check is, and what it finds."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, NamedTuple

from statechannel.cli.doctor.facts import DoctorFacts
from statechannel.errors import ExitCode


class Severity(StrEnum):
    """How bad it is, the least first."""

    OK = "ok"
    INFO = "info"  # worth knowing; nothing need be done
    WARNING = "warning"  # works, and will not for ever, or not under all faults
    ERROR = "error"  # something does not work, or safety hangs by a thread
    CRITICAL = "critical"  # bundles are not served, or what the protocol rests on is void

    @property
    def rank(self) -> int:
        """0 for the least."""
        return list(Severity).index(self)


class DoctorFinding(NamedTuple):
    """One thing that a check has to say.

    Attributes:
        check: Name of the check; filled in by `examine`.
        checked: False: facts that the check needs are not known, and `what` says why.
        what: What was found, with the figures.
        why: Why it matters. Empty for what is well.
        todo: What to do next, a command where there is one. Empty where nothing is to be done.
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
        name: One word, or words with hyphens.
        about: What it looks at, for people; and what it says where it finds nothing.
        look: DoctorFacts in, findings out. It neither asks anybody nor waits, if it is one of ours.
        needs: DoctorFacts without which it cannot look (`facts.Facts.failed`).
    """

    name: str
    about: str
    look: Callable[[DoctorFacts], Iterable[DoctorFinding]]
    needs: Sequence[str] = ()


def examine(checks: Iterable[DoctorCheck], facts: DoctorFacts) -> list[DoctorFinding]:
    """Run all checks; the worst findings first, and those of one severity in the order of the checks."""
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
            "What it looks at is not known.",
            "This is a bug of the package that brings the check. Report it.",
        )
        return
    yield from findings or [DoctorFinding(Severity.OK, check.about)]


_CODES = {
    Severity.WARNING: ExitCode.DOCTOR_WARNING,
    Severity.ERROR: ExitCode.DOCTOR_ERROR,
    Severity.CRITICAL: ExitCode.DOCTOR_CRITICAL,
}


def exit_code(findings: Iterable[DoctorFinding]) -> ExitCode:
    """By the worst finding."""
    worst = max((finding.severity for finding in findings), key=lambda severity: severity.rank, default=Severity.OK)
    return _CODES.get(worst, ExitCode.OK)


def finding_fields(finding: DoctorFinding) -> dict[str, Any]:
    """A finding as the JSON output has it."""
    return {
        "check": finding.check,
        "severity": finding.severity.value,
        "checked": finding.checked,
        "what": finding.what,
        "why": finding.why,
        "todo": finding.todo,
    }
