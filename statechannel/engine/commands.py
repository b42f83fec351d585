"""What callers may ask of an engine, and what they are answered: values, never exceptions, for every expected outcome."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from statechannel.errors import StateChannelError
from statechannel.protocol.verdict import Verdict


class NoListenerError(StateChannelError, LookupError):
    """An answer was asked for an address that its broker has not registered, or it names no broker."""


def listener_url(broker: str | None, urls: Mapping[str, str], protocol: str) -> str:
    """The address of a broker for a protocol.

    Raises:
        NoListenerError: There is none.
    """
    if protocol in urls:
        return urls[protocol]
    if broker is None:
        raise NoListenerError("The answer names no broker, so there is no address.", hint="Look the topic up again.")
    registered = ", ".join(f"`{name}`" for name in urls) or "none"
    hint = f"That broker has to be opened with `listeners={{'{protocol}': URL}}`."
    raise NoListenerError(f"{broker} has no listener `{protocol}`; it has registered: {registered}.", hint=hint)


# --- commands -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Lookup:
    """Who serves a topic or bundle? Starts an assignment where no broker does, unless `read_only`.

    Attributes:
        name: `tenant/namespace/topic`, a full topic name, or a bundle key.
        timeout_s: How long the answer may be deferred.
    """

    name: str
    timeout_s: float
    read_only: bool = False


@dataclass(frozen=True, slots=True)
class CreateNamespace:
    """Create a namespace with the bundles between the given bounds."""

    namespace: str
    bounds: tuple[int, ...]
    operation: str
    timeout_s: float
    reason: str | None = None


@dataclass(frozen=True, slots=True)
class DeleteNamespace:
    """Close a namespace, unload its bundles, delete it."""

    namespace: str
    operation: str
    timeout_s: float
    reason: str | None = None


@dataclass(frozen=True, slots=True)
class Transfer:
    """Hand a bundle (or a topic's bundle) over to a named broker.

    Attributes:
        decision: Id of the balancer's decision that wants it; None: a person, or another program.
        if_generation: Only while its owner serves it by this generation; None: by any.
    """

    name: str
    destination: str
    operation: str
    timeout_s: float
    reason: str | None = None
    decision: str | None = None
    if_generation: int | None = None


@dataclass(frozen=True, slots=True)
class Unload:
    """Let a bundle go without naming a destination."""

    name: str
    operation: str
    timeout_s: float
    reason: str | None = None
    decision: str | None = None
    if_generation: int | None = None


@dataclass(frozen=True, slots=True)
class Split:
    """Split a bundle at the given hashes, or into `parts` even parts where none are given."""

    name: str
    operation: str
    timeout_s: float
    at: tuple[int, ...] = ()
    parts: int = 2
    reason: str | None = None
    if_generation: int | None = None


@dataclass(frozen=True, slots=True)
class AwaitOperation:
    """Answer when the operation has ended."""

    operation: str
    timeout_s: float


@dataclass(frozen=True, slots=True)
class ResumeRepair:
    """End a pause of repair (after many brokers vanished at once) before its time."""


@dataclass(frozen=True, slots=True)
class DismissBroker:
    """Confirm that a broker is lost, and which process it was: an operator says that it will not come back."""

    broker: str


@dataclass(frozen=True, slots=True)
class Shutdown:
    """Drain, hand over, resign, say goodbye, within a time budget. Answered just before the engine stops."""

    budget_s: float


@dataclass(frozen=True, slots=True)
class PreStop:
    """Prepare to be stopped: not ready any more at once, then hand over, and stay, without bundles, until `Shutdown`.

    Answered with `Done`: `handed-over` when nothing is left, else `handed-over-in-part` after `budget_s`; the hand-over goes on.

    Attributes:
        budget_s: Until the answer.
        notice_s: From the moment at which the broker is not ready until the first hand-over, for those who look at its readiness.
    """

    budget_s: float
    notice_s: float = 0.0


@dataclass(frozen=True, slots=True)
class UndoPreStop:
    """Take back a `PreStop`: ready again, and bundles are taken again; what is being handed over arrives at its destination."""


Command = (
    Lookup
    | CreateNamespace
    | DeleteNamespace
    | Transfer
    | Unload
    | Split
    | AwaitOperation
    | ResumeRepair
    | DismissBroker
    | Shutdown
    | PreStop
    | UndoPreStop
)


# --- outcomes -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Owned:
    """The bundle is served.

    Attributes:
        urls: Listeners of the owner as it registered them, by name; not every broker has every one.
        stale_age_s: None for an answer from a current view; else how old it is: the log is out of reach, or far ahead.
    """

    bundle: str
    broker: str
    generation: int
    urls: Mapping[str, str] = field(default_factory=dict)
    stale_age_s: float | None = None

    def url(self, protocol: str) -> str:
        """The owner's listener of this name; raises `NoListenerError` where it has none."""
        return listener_url(self.broker, self.urls, protocol)


@dataclass(frozen=True, slots=True)
class Unowned:
    """Nobody serves the bundle (the answer to a read-only lookup)."""

    bundle: str
    stale_age_s: float | None = None


@dataclass(frozen=True, slots=True)
class BoundTo:
    """A namespace that belongs to one broker by rule (heartbeat and SLA namespaces); the channel does not know it."""

    broker: str
    urls: Mapping[str, str] = field(default_factory=dict)

    def url(self, protocol: str) -> str:
        """See `Owned.url`."""
        return listener_url(self.broker, self.urls, protocol)


@dataclass(frozen=True, slots=True)
class NotFound:
    """The namespace, bundle or operation does not exist.

    Attributes:
        reason: A stable code: `unknown-namespace`, `unknown-bundle`, `split-bundle`, `being-deleted`, `bad-name`,
            `unknown-operation`.
        stale_age_s: Of a lookup, see `Owned`: what a view does not know that is so old may be there by now.
    """

    reason: str
    message: str
    hint: str = ""
    stale_age_s: float | None = None


@dataclass(frozen=True, slots=True)
class Declined:
    """A broker that was asked to take a bundle, and declined.

    Attributes:
        reason: Why, in its own words, such as what its hook raised; empty if it did not say. A text for people.
        ago_s: Since the answering broker read that, by its clock.
        again_in_s: Until it may be asked again, since no other broker may take the bundle (`repair.decline_memory_s`).
    """

    broker: str
    reason: str
    ago_s: float
    again_in_s: float


@dataclass(frozen=True, slots=True)
class Undetermined:
    """Not known within the time allowed; never a stale owner.

    Attributes:
        reason: A stable code: `timed-out`; `owner-not-heard`: its owner is lost, and not yet replaced; `no-broker`: a
            router reads that none lives; `declined`: no broker takes the bundle, since some declined it;
            `no-broker-allowed`: policies and cordons keep out every broker; `record-too-large`, `write-denied`,
            `record-refused`: Kafka refuses the records of this broker, or that of the bundle; `joining`: this broker has not
            caught up; `busy`; `running`: the operation has not ended; `stopped`: this broker stops; `forked`: this process is
            the child of a fork.
        declines: Of a lookup without an answer: who declined the bundle and would be asked otherwise, the newest last.
    """

    reason: str
    message: str = ""
    hint: str = ""
    declines: tuple[Declined, ...] = ()


@dataclass(frozen=True, slots=True)
class Started:
    """The first record of the operation was accepted at `offset`; the rest follows by reactions."""

    operation: str
    bundle: str
    partition: int
    offset: int


@dataclass(frozen=True, slots=True)
class Done:
    """The operation has ended as asked.

    Attributes:
        operation: Its id; empty where the command is none, such as `resume_repair`.
        result: A stable word: `owned` (assigned to a broker), `transferred`, `unloaded`, `split`, `created`, `deleted`,
            `repaired` (a broker was lost meanwhile), `resumed` and `not-paused` (of `resume_repair`: repair goes on, or was not
            paused), `dismissed` (of a lost broker, with its `incarnation` as a fact), `handed-over` and `handed-over-in-part`
            (of `PreStop`, with the numbers of bundles `began_with`, `handed_over` and `left`), `undone` and `not-stopping` (of
            `UndoPreStop`: the broker takes bundles again, or had no `PreStop`; of a `PreStop` that is taken back before its
            end, `undone` with the same numbers); extensions have words of their own.
        facts: Of an operation `bundle` (its subject: a bundle, or the namespace), `flow` (`assignment`, `transfer`, `unload`,
            `split`, `namespace`, `repair`) and `offset` (of its last record); extensions have facts of their own.
    """

    operation: str
    result: str
    facts: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Rejected:
    """The command was refused before any record was written, or its record was rejected.

    Attributes:
        reason: A stable code: a verdict of the protocol, or another one. All codes: design/reference/api.md.
        winner: Id of the accepted record that stood in the way, if one did.
        bundle: The one that the command was about, where the name in the command was another.
    """

    reason: Verdict | str
    message: str
    hint: str = ""
    winner: str | None = None
    bundle: str | None = None


@dataclass(frozen=True, slots=True)
class Unknown:
    """The record may or may not be in the log: it was not read back in time. The operation id tells later."""

    operation: str
    message: str
    hint: str = ""


Outcome = Owned | Unowned | BoundTo | NotFound | Undetermined | Started | Done | Rejected | Unknown
