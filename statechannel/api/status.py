"""The document that `status` of a channel returns, typed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypedDict


class PartitionStatus(TypedDict):
    """How far one partition of the channel was read.

    Attributes:
        phase: Of its reader: `closed`, `replaying`, `waiting`, `caught-up`, `start-over`, `stopped`, ...
        why: Why it is in this phase, for people.
        applied: Offset of the last applied record; -1 before the first.
        lag_s: Since the whole log was applied.
        debts: Keys in debt, which keep other brokers from joining.
    """

    partition: int
    phase: str
    why: str
    applied: int
    lag_s: float
    debts: int


class FlightStatus(TypedDict):
    """A bundle between two owners."""

    bundle: str
    state: str
    version: int


class RuntimeStatus(TypedDict):
    """The process around the member.

    Attributes:
        steps: Inputs that were processed.
        waiting_inputs: Inputs queued for the loop; `waiting_inputs_bytes` their size.
        stalls: Longest delays of the loop in milliseconds: `turn_max_ms` by other code in it, `burst_max_ms` by the member.
        waiting_commands: Calls without an answer, such as lookups.
        running_hooks: Hooks that have not returned; `late_hooks` those past their deadline.
        owed_releases: `on_release` calls that wait behind a late hook.
        open_requests: Of the requests topic.
        unwritten_log_lines: Log lines that could not be written.
        metrics_port: Port of the HTTP endpoint; None without one.
        stopped: Reason of `Stopped`, once this member ends.
    """

    steps: int
    waiting_inputs: int
    waiting_inputs_bytes: int
    stalls: Mapping[str, float]
    waiting_commands: int
    running_hooks: int
    late_hooks: int
    owed_releases: int
    open_requests: int
    unwritten_log_lines: int
    metrics_port: int | None
    stopped: str | None


class MemberStatus(TypedDict):
    """One member of the channel, as it knows itself; JSON-able.

    Attributes:
        broker: Id of this broker; `incarnation` that of its process.
        mode: `starting`, `normal`, `safe` or `settling`: how far it trusts its view of the cluster; `stopped` once it ends.
        leading: It leads and may act on it; `term` is the offset of its claim, -1 without one.
        deputizing: It acts for a leader that is lost.
        suspended: It writes no heartbeats, so that its bundles are repaired by others.
        withdrawn: Why it does not stand for leader; None if it does.
        draining: It hands over its bundles and accepts none.
        caught_up: It judges every partition.
        serving: Bundles that it serves.
        lookups_waiting: Lookups without an answer.
        pending: Own records whose verdict has not been read back.
        oldest_debt_s: Age of the oldest debt; 0 without one.
        repair_paused: Why repair is paused, since many brokers were lost at once; None if it is not.
        forged: Records in its name that it did not write: their number and the newest of them; None without any.
        differs: With which brokers it differs in accepted states, as its registry record has it; None if with none.
        in_flight: Bundles between two owners.
        verdicts: Channel records that were read, by verdict.
        partitions: How far each partition was read.
        runtime: The process.
        extensions: Status of each extension, by its name.
    """

    broker: str
    incarnation: str
    mode: str
    leading: bool
    term: int
    deputizing: bool
    suspended: bool
    withdrawn: str | None
    draining: bool
    caught_up: bool
    serving: int
    lookups_waiting: int
    pending: int
    oldest_debt_s: float
    repair_paused: str | None
    forged: Mapping[str, Any] | None
    differs: list[dict[str, Any]] | None
    in_flight: list[FlightStatus]
    verdicts: Mapping[str, int]
    partitions: list[PartitionStatus]
    runtime: RuntimeStatus
    extensions: Mapping[str, Any]
