"""Whether this process may serve a request: one answer, from memory, for each request of a client.

What it admits it counts, by bundle: the figures of a load source (`loaddata.source.AdmittedLoad`).
"""

from __future__ import annotations

import threading
from collections import defaultdict
from typing import TYPE_CHECKING, Any, NamedTuple, Self

from statechannel.broker.peeks import Peeks
from statechannel.engine.commands import BoundTo, NotFound, Owned, Undetermined, listener_url
from statechannel.protocol.bounded import remember

if TYPE_CHECKING:
    from collections.abc import Mapping

    from statechannel.broker.host import Host
    from statechannel.engine.commands import Outcome

BUNDLES_COUNTED_MAX = 100_000
OTHER_OWNER, NO_OWNER, STOPPED = "other-owner", "no-owner", "stopped"


class Admission(NamedTuple):
    """This process may serve the request now.

    Attributes:
        generation: By which it does; storage that saw a higher one refuses this.
    """

    bundle: str
    generation: int


class Redirect(NamedTuple):
    """This process may not serve the request now.

    Attributes:
        reason: A stable code: `other-owner`; `no-owner`; `stopped`; `forked` (processes.md); else that of `NotFound` or
            `Undetermined`.
        bundle: Key of the bundle; empty if the name means none.
        broker: Who serves it, by this process's view; None where no broker does, or it is not known: ask again.
        urls: Listeners of that broker, by protocol name.
        generation: Of that owner; -1 without one.
    """

    reason: str
    message: str
    bundle: str = ""
    broker: str | None = None
    urls: Mapping[str, str] = {}
    generation: int = -1

    def url(self, protocol: str) -> str:
        """See `Owned.url`."""
        return listener_url(self.broker, self.urls, protocol)

    def to_json(self) -> dict[str, Any]:
        """Object for JSON, such as the body of a 307 or 503."""
        return {**self._asdict(), "urls": dict(self.urls)}

    @classmethod
    def from_json(cls, fields: object) -> Self | None:
        """The redirect in an answer of a server; None for anything else."""
        if not isinstance(fields, dict):
            return None
        reason, message, bundle = (fields.get(name, "") for name in ("reason", "message", "bundle"))
        broker, urls, generation = fields.get("broker"), fields.get("urls", {}), fields.get("generation", -1)
        texts = all(isinstance(text, str) for text in (reason, message, bundle))
        if not (texts and reason and isinstance(urls, dict) and type(generation) is int):
            return None
        if not (broker is None or isinstance(broker, str)):
            return None
        if not all(isinstance(text, str) for pair in urls.items() for text in pair):
            return None
        return cls(reason, message, bundle, broker, urls, generation)


class AdmittedCounts(NamedTuple):
    """What was admitted of one bundle since the start of this process."""

    reads: int = 0
    read_bytes: int = 0
    writes: int = 0
    write_bytes: int = 0


class Guard:
    """Admits requests, or redirects them. From any thread; each thread has counters of its own, so that none is lost."""

    def __init__(self, host: Host) -> None:
        self._host = host
        self._peeks = Peeks(host.engine)
        self._counts: defaultdict[int, dict[str, list[int]]] = defaultdict(dict)

    def admit(self, name: str, *, write: bool, size_bytes: int) -> Admission | Redirect:
        """See `ChannelMember.guard`."""
        host = self._host
        owner: Outcome | None = host.cached_owner(name)
        if owner is None and (forked := host.process.forked) is not None:
            return Redirect(forked.reason, forked.detail)
        bundle = owner.bundle if isinstance(owner, Owned) else self._peeks.bundle(name)
        if isinstance(bundle, NotFound | Undetermined):
            return Redirect(bundle.reason, bundle.message)
        generation = host.accepts_writes(bundle) if write else host.serves(bundle)
        if generation is not None:
            self._count(bundle, write=write, size_bytes=size_bytes)
            return Admission(bundle, generation)
        return self._redirect(bundle, owner or self._peeks.answer(name))

    def _redirect(self, bundle: str, outcome: Outcome) -> Redirect:
        if isinstance(outcome, Owned) and outcome.broker != self._host.engine.identity.broker:
            message = f"{bundle} is served by {outcome.broker}"
            return Redirect(OTHER_OWNER, message, bundle, outcome.broker, outcome.urls, outcome.generation)
        if isinstance(outcome, BoundTo):
            return Redirect(OTHER_OWNER, f"{bundle} belongs to {outcome.broker}", bundle, outcome.broker, outcome.urls)
        if isinstance(outcome, NotFound | Undetermined):
            return Redirect(outcome.reason, outcome.message, bundle)
        if self._host.stopped is not None:
            return Redirect(STOPPED, "this broker has stopped: another one answers", bundle)
        return Redirect(NO_OWNER, f"{bundle} is not served here now, nor by another broker yet", bundle)

    def _count(self, bundle: str, *, write: bool, size_bytes: int) -> None:
        counts = self._counts[threading.get_ident()]
        entry = counts.get(bundle)
        if entry is None:
            entry = [0, 0, 0, 0]
            remember(counts, bundle, entry, BUNDLES_COUNTED_MAX)
        first = 2 if write else 0
        entry[first] += 1
        entry[first + 1] += size_bytes

    def counts(self) -> dict[str, AdmittedCounts]:
        """Counts by bundle, of all threads together."""
        total: dict[str, list[int]] = {}
        for counts in list(self._counts.values()):
            for bundle, entry in list(counts.items()):
                known = total.setdefault(bundle, [0, 0, 0, 0])
                for place, number in enumerate(entry):
                    known[place] += number
        return {bundle: AdmittedCounts(*entry) for bundle, entry in total.items()}
