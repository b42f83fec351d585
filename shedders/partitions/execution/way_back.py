"""Looks at the cluster and makes the plan back."""

from __future__ import annotations

from typing import TYPE_CHECKING

from loaddata.partitions.admin import open_admin
from loaddata.partitions.kafka_cluster import read_layout
from shedders.partitions.execution.reverse import reverse
from shedders.partitions.execution.session import Place, now_ms

if TYPE_CHECKING:
    from shedders.partitions.plan import Plan


def way_back(place: Place, plan: Plan) -> Plan:
    """See `reverse.reverse`."""
    with open_admin(place.client, timeout_s=place.timeout_s) as admin:
        layout = read_layout(admin, now_ms=now_ms(), timeout_s=place.timeout_s)
    return reverse(plan, layout, made_at_ms=layout.read_at_ms)
