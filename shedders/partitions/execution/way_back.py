"""Looks at the cluster and makes the plan back."""

from __future__ import annotations

from typing import TYPE_CHECKING

from loaddata.partitions.admin import open_admin
from shedders.partitions.execution.reverse import reverse
from shedders.partitions.execution.session import Place
from shedders.partitions.execution.settled import settled_layout

if TYPE_CHECKING:
    from shedders.partitions.plan import Plan


def way_back(place: Place, plan: Plan) -> Plan:
    """See `reverse.reverse`."""
    with open_admin(place.client, timeout_s=place.timeout_s) as admin:
        layout = settled_layout(admin, plan, timeout_s=place.timeout_s, settle_s=place.settings.pace.settle_s)
    return reverse(plan, layout, made_at_ms=layout.read_at_ms)
