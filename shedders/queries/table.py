"""The questions about balancing that the admin API answers (entry point group `statechannel.queries`)."""

from __future__ import annotations

from typing import Final

from shedders.queries.decisions import (
    DECISION,
    DECISIONS,
    WHY,
    WHY_NOT,
    DecisionQuery,
    DecisionsQuery,
    WhyQuery,
    decision,
    decisions,
    why,
    why_not,
)
from shedders.queries.live_source import LoadsDocument, LoadsQuery, loads
from shedders.queries.policies import POLICIES, CordonsDocument, PoliciesQuery, cordons, overrides, policies
from statechannel.queries.query import Query

QUERIES: Final = (
    Query("list-policies", "List the policies", "/v1/policies", policies, POLICIES, PoliciesQuery),
    Query("list-overrides", "List the overrides", "/v1/overrides", overrides, POLICIES, PoliciesQuery),
    Query(
        "list-cordons", "List the brokers that are cordoned, and what has become of their drains", "/v1/cordons", cordons,
        CordonsDocument,
    ),
    Query(
        "list-decisions", "List the balancer's decisions, the oldest first", "/v1/decisions", decisions, DECISIONS,
        DecisionsQuery,
    ),
    Query("show-decision", "Show one decision", "/v1/decisions/{decision}", decision, DECISION, DecisionQuery),
    Query("list-loads", "List the load that brokers report", "/v1/loads", loads, LoadsDocument, LoadsQuery),
    Query("why", "Explain why a bundle is where it is", "/v1/why", why, WHY, WhyQuery),
    Query(
        "why-not", "Explain why the balancer leaves a bundle where it is", "/v1/why-not", why_not, WHY_NOT, WhyQuery
    ),
)  # fmt: skip
