"""How an engine stands, for people and programs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from statechannel.engine.commands import Rejected
from statechannel.engine.freshness import lag_s
from statechannel.engine.presence import Mode
from statechannel.protocol.replica import Phase
from statechannel.protocol.verdict import Verdict

if TYPE_CHECKING:
    from statechannel.engine.engine import Engine


def refusal_of(engine: Engine) -> Rejected | None:
    """Why no operation can be started now."""
    stopped = next((replica for replica in engine.replicas if replica.phase is Phase.STOPPED), None)
    if stopped is not None:
        return Rejected(Verdict.UNSUPPORTED_FORMAT, stopped.why)
    if not engine.caught_up:
        return Rejected(
            "joining", "this broker has not caught up with the channel yet", "Try again, or ask another broker."
        )
    if engine.mode is not Mode.NORMAL:
        return Rejected(f"{engine.mode}-mode", "the log is, or was a moment ago, out of reach", "Try again later.")
    return Rejected("draining", "this broker is shutting down", "Ask another one.") if engine.draining else None


def status_of(engine: Engine) -> dict[str, Any]:
    """JSON-able values: mode, leadership, what is served, what is under way, how far each partition was read."""
    in_flight = [key for replica in engine.replicas for key in replica.view.in_flight]
    return {
        "broker": engine.identity.broker,
        "incarnation": engine.identity.incarnation,
        "mode": str(engine.mode),
        "leading": engine.leading,
        "term": engine.presence.term,
        "deputizing": engine.deputizing,
        "suspended": engine.lease.suspended,
        "withdrawn": engine.candidacy.seat.withdrawn,
        "draining": engine.draining,
        "caught_up": engine.caught_up,
        "serving": engine.reactions.serving_count,
        "lookups_waiting": engine.lookups.waiting,
        "pending": len(engine.proposals),
        "oldest_debt_s": engine.duties.oldest_debt_s(),
        "repair_paused": engine.repair.paused_why,
        "forged": engine.provenance.fields(),
        "in_flight": [{"bundle": key.name, "state": str(key.state), "version": key.version} for key in in_flight],
        "verdicts": {str(verdict): count for verdict, count in engine.counts.items()},
        "partitions": [
            {
                "partition": replica.partition,
                "phase": str(replica.phase),
                "why": replica.why,
                "applied": replica.applied,
                "lag_s": lag_s(engine, replica),
                "debts": len(replica.view.ledger.open),
            }
            for replica in engine.replicas
        ],
    }
