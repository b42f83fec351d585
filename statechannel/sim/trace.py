"""What happened in a run: its lines, as text and as a digest that shows determinism, and the violation that ended it.

The order of hook calls is checked here as well (design/hooks.md), whatever the engine that calls them holds. A store with data
by bundle drops a parent's data at `on_split_done`: every part has to have copied it by then. And whatever was prepared or served
has to end with `on_release` or, for the parent of a split, with `on_split_done`.
"""

from __future__ import annotations

from collections import Counter
from hashlib import sha256
from typing import TYPE_CHECKING, NamedTuple

from statechannel.engine.effects import CallHook, Hook

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable


class SimTrace:
    """Lines of one run; all of them go into the digest.

    Attributes:
        counts: How often each thing of interest happened, so that nothing is silently never reached.
    """

    def __init__(self, *, keep: bool = False) -> None:
        self.lines: list[str] = []
        self.counts: Counter[str] = Counter()
        self._keep = keep
        self._hash = sha256()

    def add(self, line: str) -> None:
        self._hash.update(line.encode())
        self._hash.update(b"\n")
        if self._keep:
            self.lines.append(line)

    def count(self, name: str, number: int = 1) -> None:
        self.counts[name] += number

    @property
    def digest(self) -> str:
        return self._hash.hexdigest()


class Violation(Exception):  # noqa: N818 - the simulator's finding, not a failure of the simulator
    """An invariant was broken.

    Attributes:
        kind: Stable word by which shrinking recognises the same finding.
    """

    def __init__(self, kind: str, detail: str) -> None:
        super().__init__(f"{kind}: {detail}")
        self.kind = kind
        self.detail = detail


# --- the order of hook calls --------------------------------------------------------------------------------------


class OpenedBundle(NamedTuple):
    """A bundle that one process was asked to prepare or to serve, and not to release."""

    bundle: str
    generation: int
    served: bool = False


OpenedBundles = tuple[OpenedBundle, ...]
"""Of one process, in the order of their names; a value, for states that are compared."""


def opened_by(opened: OpenedBundles, call: CallHook) -> OpenedBundles:
    """What is open after a call.

    Raises:
        Violation: The call may not come now.
    """
    bundles = {entry.bundle: entry for entry in opened}
    before = bundles.get(call.bundle)
    match call.hook:
        case Hook.ON_OWN:
            bundles[call.bundle] = OpenedBundle(call.bundle, call.generation)
        case Hook.ON_SERVE:
            if before is None or before.generation != call.generation:
                raise Violation("hooks", f"{_words(call)}, and on_own was called for {before}")
            bundles[call.bundle] = before._replace(served=True)
        case Hook.ON_RELEASE:
            bundles.pop(call.bundle, None)
        case Hook.ON_SPLIT:
            if before is None or not before.served or before.generation >= call.generation:
                raise Violation("hooks", f"{_words(call)}, which is not served: {before}")
        case Hook.ON_SPLIT_DONE:
            _check_split(bundles, call)
            del bundles[call.bundle]
        case Hook.ON_MOVED:
            pass
    return tuple(sorted(bundles.values()))


def _check_split(bundles: dict[str, OpenedBundle], call: CallHook) -> None:
    parent = bundles.get(call.bundle)
    if parent is None or not parent.served or parent.generation >= call.generation:
        raise Violation("hooks", f"{_words(call)}, which is not served: {parent}")
    for child in call.children:
        part = bundles.get(child)
        if part is None or part.generation != call.generation:
            raise Violation("hooks", f"{_words(call)}, and its part {child} is not prepared: {part}")


def check_opened(opened: Iterable[OpenedBundle], holdings: Collection[str]) -> None:
    """Compare what is open by the calls with what the engine holds, after a step.

    Raises:
        Violation: The engine holds a bundle no more, and neither `on_release` nor `on_split_done` was called.
    """
    for entry in opened:
        if entry.bundle not in holdings:
            raise Violation("hooks", f"{entry} is held no more, and neither on_release nor on_split_done was called")


def _words(call: CallHook) -> str:
    return f"{call.hook} of {call.bundle} at {call.generation}"
