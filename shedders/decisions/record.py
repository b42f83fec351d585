"""Records of the decisions topic (design/reference/decisions-topic.md): a decision record a cycle, an outcome record a move.

The format is strict: a missing field or one of another type is refused with a reason; unknown fields are ignored, so that
a later version may add some. JSON has no NaN and no infinity: scores that are not finite are null.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum
from typing import Annotated, Final, Literal

from pydantic import BaseModel, ConfigDict, Field, JsonValue, TypeAdapter, ValidationError

from shedders.decision.distance import DistanceToBest
from shedders.model.amounts import BYTES, LoadUnit
from statechannel.protocol.side_record import InvalidRecord, load_object

FORMAT: Final = 1
VALUE_MAX_BYTES: Final = 900_000
DRAIN: Final = "drain"
"""Strategy of the decisions of a drain: an operator orders them; they are independent of the balancer's cycle."""

Id = Annotated[str, Field(pattern=r"^[0-7][0-9A-HJKMNP-TV-Z]{25}$", description="A ULID.")]
Score = Annotated[float | None, Field(description="null: not finite, as an overloaded broker's may be.")]
Word = Annotated[str, Field(pattern=r"^[A-Za-z][A-Za-z0-9_-]{0,63}$")]
Count = Annotated[int, Field(ge=0)]
# No literal: pydantic takes `true` for 1.
Format = Annotated[int, Field(ge=FORMAT, le=FORMAT)]


class Subject(StrEnum):
    """What was decided about."""

    SHED = "shed"
    PLACE = "place"
    SPLIT = "split"


class RecordPart(BaseModel):
    """Base of everything in a record."""

    model_config = ConfigDict(frozen=True, strict=True, extra="ignore", allow_inf_nan=False)


class Inputs(RecordPart):
    """How far each log had been read: offset of the newest record taken in; -1: none."""

    channel: dict[str, int] = Field(description="By partition of the channel.")
    broker_load: int | None = Field(None, description="Topic of the brokers' loads; null: not looked at.")
    top_bundles: int | None = Field(None, description="Topic of the heaviest bundles; null: not looked at.")
    policies: int | None = Field(None, description="Topic of the policies; null: not looked at.")


class RecordedBudget(RecordPart):
    """Limits on what may be in flight at once."""

    moves_max: Count
    moves_left: Count = Field(description="Bundles that may still start to move after this decision.")
    load_percent_max: float
    load_percent_left: float = Field(description="Traffic that may still start to move, in percent of the cluster's.")
    on_the_way: Count = Field(description="Moves that were in flight before this decision.")


class DistancePart(RecordPart):
    """How far a decision is from the best; uses are parts of a broker's limit, 1 is a full broker."""

    largest_use: float = Field(
        description="After the decision, the largest of all brokers and of CPU, direct memory and both bandwidths."
    )
    broker: str = Field(description="Where it is.")
    resource: Word = Field(description="`cpu`, `direct_memory`, `bandwidth_in` or `bandwidth_out`.")
    bound: float = Field(description="No decision that moves at most as much load gets below it.")
    gap_percent: float | None = Field(
        None, description="How far the largest use is above the bound, in percent of the bound; null: the bound is 0."
    )
    any_load_bound: float = Field(description="No decision gets below it, whatever load it moves.")
    load_moved: float = Field(description="Traffic that the decision moves, in bytes a second of both directions.")

    @classmethod
    def of(cls, distance: DistanceToBest, name: Callable[[str], str] = str) -> DistancePart:
        return cls(
            largest_use=distance.largest_use,
            broker=name(distance.broker),
            resource=distance.resource,
            bound=distance.bound,
            gap_percent=distance.gap_percent,
            any_load_bound=distance.any_load_bound,
            load_moved=distance.load_moved,
        )

    @property
    def sentence(self) -> str:
        largest = f"largest use {self.largest_use:.2f}"
        resource = "CPU" if self.resource == "cpu" else self.resource.replace("_", " ")
        where = f"({resource} of {self.broker})"
        least = f"below {self.any_load_bound:.2f}"
        if not self.load_moved > 0:
            return f"{largest} {where}; no decision gets {least}"
        more = "" if f"{self.bound:.2f}" == f"{self.any_load_bound:.2f}" else f", none at all {least}"
        return f"{largest} after the moves {where}; no decision that moves as much gets below {self.bound:.2f}{more}"


class DrainPart(RecordPart):
    """The drain that a decision belongs to."""

    id: str
    broker: str = Field(description="The one that is emptied.")


class Deed(RecordPart):
    """What a decision says about one bundle."""

    bundle: str
    why: str = Field(description="A sentence with the numbers that decided.")
    operation: str | None = Field(None, description="Id of the operation on the channel; null: none was started.")
    outcome: Word | None = Field(None, description="Its state when the record was written; outcome records follow.")
    outcome_why: str | None = None


class MoveEntry(Deed):
    """One move of the plan."""

    source: str
    destination: str | None = Field(description="null: it is only unloaded, or stays.")
    planned: str | None = Field(description="The destination that the strategy named; null: left to the placement.")
    reason: str = Field(description="Upstream's reason.")
    load: Score = Field(description="Traffic that moves with it, in the strategy's own measure.")
    load_unit: LoadUnit = Field(
        BYTES, description="Unit of `load`; bytes a second where an earlier version left it out."
    )
    swap: bool = Field(description="It is returned in exchange for others.")
    refused: str | None = Field(
        description="Why it was not executed: `filter: reason` or `budget: reason`; null: it was."
    )


class SplitEntry(Deed):
    """One bundle to be split."""

    positions: list[int] = Field(description="Hashes to cut at; empty: its owner is asked to split, and decides where.")
    reason: str = Field(description="Upstream's reason; `Balance`: the leader's strategy wants it.")
    refused: str | None = Field(None, description="Why its owner was not asked: `word: reason`; null: it was.")


class PlacedEntry(Deed):
    """One bundle that a client looked up, and where it is placed."""

    broker: str | None = Field(description="null: no broker may take it.")
    score: Score = Field(description="The chosen broker's score, where the placement has any.")
    best: list[str] = Field(description="Brokers among which the choice was free; the first few.")
    best_count: Count
    removed: dict[str, Count] = Field(description="How many brokers each filter removed.")


class LeftEntry(RecordPart):
    """A broker or bundle that was examined and left alone."""

    name: str
    reason: str = Field(description="A stable word.")
    why: str


class DecisionRecord(RecordPart):
    """One cycle of the balancer, one batch of placements, or one search for bundles to split."""

    kind: Literal["decision"] = "decision"
    format: Format = FORMAT
    id: Id
    subject: Literal["shed", "place", "split"]
    term: Count = Field(description="Of the leader that decided.")
    leader: str
    cycle: Count = Field(description="1, 2, 3, ... of this leader and subject.")
    at_ms: Count = Field(description="Estimate of the log's time, milliseconds since 1970.")
    took_ms: float | None = Field(
        None, description="Time that the decision took, including the collection of its inputs."
    )
    trigger: Word = Field(
        description="Why the decision was made now: `cycle`, `new-leader`, `policy`, `children`, `request`."
    )
    manager: Word = Field(description="`extensible` or `modular`.")
    strategy: str
    drain: DrainPart | None = Field(None, description="null: not part of a drain, or written before version 0.2.")
    placement: str | None = Field(None, description="Strategy that chose destinations that were left open.")
    profile: str
    fingerprint: str = Field(description="Of all settings; equal ones, equal settings.")
    settings: dict[str, JsonValue] | None = Field(
        None, description="The settings themselves; null: as in the last record with this fingerprint that has them."
    )
    memory: dict[str, JsonValue] | None = Field(
        None, description="What the strategy remembers for the next decision, also under another leader; null: no room."
    )
    inputs: Inputs
    label: Word = Field(description="Upstream's label.")
    reason: Word = Field(description="Upstream's reason.")
    skipped: Word | None = Field(description="Why no decision was made; null: one was made.")
    why: str
    scores: dict[str, Score] = Field(description="By broker.")
    stats: dict[str, Score] = Field(description="The strategy's own figures: average, deviation, thresholds.")
    distance: DistancePart | None = Field(
        None, description="Distance to the best; null: not known, or not a decision of the balancer's strategy."
    )
    moves: list[MoveEntry]
    splits: list[SplitEntry]
    placed: list[PlacedEntry]
    left: list[LeftEntry]
    left_counts: dict[str, Count] = Field(
        description="How many were left alone, by reason, including those that were cut."
    )
    budget: RecordedBudget | None
    cut: dict[str, Count] = Field(
        description="What did not fit: entries by field; `texts`: sentences that were shortened."
    )

    @property
    def deeds(self) -> list[MoveEntry | SplitEntry | PlacedEntry]:
        """Everything that was done or refused about a bundle."""
        return [*self.moves, *self.splits, *self.placed]


class OutcomeRecord(RecordPart):
    """How a move, split or placement of an earlier decision ended."""

    kind: Literal["outcome"] = "outcome"
    format: Format = FORMAT
    decision: Id
    bundle: str
    operation: str | None
    result: Word = Field(description="A stable word; design/reference/decisions-topic.md lists them.")
    why: str
    at_ms: Count
    took_ms: float | None = Field(None, description="From the start of the operation to its end.")
    term: Count = Field(description="Of the leader that saw it.")
    leader: str


AnyRecord = DecisionRecord | OutcomeRecord
RECORDS: TypeAdapter[AnyRecord] = TypeAdapter(Annotated[AnyRecord, Field(discriminator="kind")])


class InvalidDecisionReason(StrEnum):
    """Why a record cannot be read."""

    TOO_LARGE = "too-large"
    NOT_JSON = "not-json"
    FORMAT = "format"
    KIND = "kind"
    KEY = "key"
    FIELDS = "fields"


class UnwritableRecordError(ValueError):
    """A record that no reader would accept: too large, or with text that is not valid Unicode."""


def key_of(record: AnyRecord) -> bytes:
    """The decision's id: of an outcome that of its decision."""
    return (record.id if isinstance(record, DecisionRecord) else record.decision).encode()


def encode(record: AnyRecord, max_bytes: int = VALUE_MAX_BYTES) -> bytes:
    """The record's value.

    Raises:
        UnwritableRecordError: It is larger than `max_bytes`, or cannot be encoded as JSON.
    """
    try:
        value = record.model_dump_json().encode()
    except (ValueError, TypeError) as error:
        raise UnwritableRecordError(f"the {record.kind} record cannot be written: {error}") from error
    if len(value) > max_bytes:
        raise UnwritableRecordError(f"the {record.kind} record has {len(value)} bytes, more than {max_bytes}")
    return value


def decode(key: bytes | None, value: bytes | None) -> AnyRecord | InvalidRecord:
    if value is None:
        return InvalidRecord(InvalidDecisionReason.NOT_JSON, "no value")
    if len(value) > VALUE_MAX_BYTES:
        return InvalidRecord(InvalidDecisionReason.TOO_LARGE, f"{len(value)} bytes, more than {VALUE_MAX_BYTES}")
    try:
        record = RECORDS.validate_json(value)
    except ValidationError as error:
        return _fault(value, error)
    if key != key_of(record):
        return InvalidRecord(InvalidDecisionReason.KEY, f"the key is not {key_of(record).decode()}")
    return record


def _fault(value: bytes, error: ValidationError) -> InvalidRecord:
    loaded = load_object(value, InvalidDecisionReason, max_bytes=VALUE_MAX_BYTES, format_number=FORMAT)
    if isinstance(loaded, InvalidRecord):
        return loaded
    if loaded.get("kind") not in ("decision", "outcome"):
        return InvalidRecord(InvalidDecisionReason.KIND, "kind is neither decision nor outcome")
    first = error.errors(include_url=False, include_input=False)[0]
    place = ".".join(str(part) for part in first["loc"][1:])
    return InvalidRecord(InvalidDecisionReason.FIELDS, f"{place}: {first['msg']}")
