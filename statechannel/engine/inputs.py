"""What may happen to an engine: the inputs of `Engine.step`."""

from __future__ import annotations

from dataclasses import dataclass

from statechannel.engine.commands import Command
from statechannel.engine.effects import Hook
from statechannel.engine.kafka_limits import AppendRefusal, RefusedRecords, ThrottledClient
from statechannel.protocol.log import RecordRead, RecordsRead, Topic


@dataclass(frozen=True, slots=True)
class Now:
    """The two clocks at one moment.

    Attributes:
        mono_s: Monotonic seconds that pass also while the machine sleeps; every deadline and age is measured with it.
        wall_ms: Milliseconds since 1970; only ever shown to people and used in ids.
    """

    mono_s: float
    wall_ms: int


@dataclass(frozen=True, slots=True)
class PartitionOpened:
    """A reader starts, or starts over, at the beginning of a partition.

    Attributes:
        first_offset: Low watermark of the partition when it was opened.
        end_offset: High watermark (next offset to be written) when it was opened.
    """

    topic: Topic
    partition: int
    first_offset: int
    end_offset: int


@dataclass(frozen=True, slots=True)
class PositionReached:
    """Everything below `position` has been delivered, whether or not records are left there.

    Attributes:
        as_of_s: By the engine's clock: the newest moment at which the log is known not to have ended beyond `position`. An
            engine that takes this in late, because much waits before it, knows by it how old its view is.
    """

    topic: Topic
    partition: int
    position: int
    as_of_s: float | None = None


@dataclass(frozen=True, slots=True)
class PartitionBroken:
    """The partition is not the one that was opened any more: re-created, or it ends before the reader's position."""

    topic: Topic
    partition: int
    detail: str


@dataclass(frozen=True, slots=True)
class HeadLost:
    """A partition of the channel begins above offset 0: records were deleted from its head."""

    partition: int
    first_offset: int


@dataclass(frozen=True, slots=True)
class LeaderEpochBegan:
    """The next record of a partition of the channel was taken by another leader in Kafka than the one before it.

    Attributes:
        offset: That of the record. What a lower epoch's leader had taken from there on was truncated.
        epoch: Each leader of a partition has a higher one than those before it.
    """

    partition: int
    offset: int
    epoch: int


@dataclass(frozen=True, slots=True)
class Appended:
    """Delivery report of an append: the log has it at `offset`. `session` names the producer session."""

    token: int
    offset: int
    session: int


@dataclass(frozen=True, slots=True)
class AppendFailed:
    """Delivery report of an append that ended in an error.

    Attributes:
        never_written: True only if the client knows that the record never left it (refused before sending, purged from
            the queue); otherwise the outcome is unknown.
        code: Kafka's name of the error, or a word of ours where it is none of Kafka's.
        refusal: Set where another try would fail as well. An earlier try of the client may be in the log all the same.
    """

    token: int
    error: str
    session: int
    never_written: bool
    code: str = "unanswered"
    refusal: AppendRefusal | None = None


def delivery_report(token: int, offset: int | None, session: int) -> Appended | AppendFailed:
    """What a client's report of a record that was written comes to.

    A report may name no offset: where a retry finds its batch in the log already, and the broker has forgotten where. Then
    only reading tells where the record lies.
    """
    if offset is None or offset < 0:
        return AppendFailed(
            token, "reported as written, without an offset", session, never_written=False, code="no-offset"
        )
    return Appended(token, offset, session)


@dataclass(frozen=True, slots=True)
class LeadershipChanged:
    elected: bool


@dataclass(frozen=True, slots=True)
class LoopBlocked:
    """Other code keeps the event loop of this process from running.

    Attributes:
        blocked_s: So far, when it was noticed.
        place: File, line and function of that code.
    """

    blocked_s: float
    place: str
    hook: str | None = None


@dataclass(frozen=True, slots=True)
class HookFinished:
    """A hook of the embedding broker returned (`error` None) or raised."""

    hook_id: int
    error: str | None = None


@dataclass(frozen=True, slots=True)
class HookFailed:
    """A hook raised, or did not return in time; for operators. `HookFinished` says so to the reaction that waits for it."""

    hook: Hook
    bundle: str
    error: str


@dataclass(frozen=True, slots=True)
class KafkaLimited:
    """What Kafka's limits do to the clients of this process now; None: nothing."""

    throttled: ThrottledClient | None
    refused: RefusedRecords | None


@dataclass(frozen=True, slots=True)
class ApiServed:
    """This process serves the admin API at a URL now; for its heartbeats."""

    url: str


@dataclass(frozen=True, slots=True)
class CommandReceived:
    """A caller asks for something; the answer is a `Complete` effect with the same token."""

    token: int
    command: Command


@dataclass(frozen=True, slots=True)
class Tick:
    """Time passed; nothing else happened."""


Input = (
    PartitionOpened
    | RecordRead
    | RecordsRead
    | PositionReached
    | PartitionBroken
    | HeadLost
    | LeaderEpochBegan
    | Appended
    | AppendFailed
    | LeadershipChanged
    | LoopBlocked
    | HookFailed
    | KafkaLimited
    | ApiServed
    | HookFinished
    | CommandReceived
    | Tick
)
