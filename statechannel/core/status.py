"""How an engine stands, for people and programs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from statechannel.core.engine import Engine


def status_of(engine: Engine) -> dict[str, Any]:
    """JSON-able values: mode, leadership, what is served, what is under way, how far each partition was read."""
    in_flight = [key for replica in engine.replicas for key in replica.view.in_flight]
    return {
        "broker": engine.identity.broker,
        "incarnation": engine.identity.incarnation,
        "mode": str(engine.mode),
        "leading": engine.leading,
        "term": engine.presence.term,
        "draining": engine.draining,
        "caught_up": engine.caught_up,
        "serving": engine.reactions.serving_count,
        "lookups_waiting": engine.lookups.waiting,
        "pending": len(engine.proposals),
        "oldest_debt_s": engine.duties.oldest_debt_s(),
        "repair_paused": engine.repair.paused_why,
        "in_flight": [{"bundle": key.name, "state": str(key.state), "version": key.version} for key in in_flight],
        "verdicts": {str(verdict): count for verdict, count in engine.counts.items()},
        "partitions": [
            {
                "partition": replica.partition,
                "phase": str(replica.phase),
                "why": replica.why,
                "applied": replica.applied,
                "debts": len(replica.view.ledger.open),
            }
            for replica in engine.replicas
        ],
    }
