"""`statechannel partitions status [PLAN-ID]`: how far a plan is, who carries it out, what is left behind."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from shedders.amounts import rate, size
from shedders.cli.partitions_executing import PlanId, State, chosen, place_of, read_book
from shedders.partitions.errors import PlanUnknownError
from statechannel.cli.failures import CommandError
from statechannel.cli.options import Connect, OutputAs, reaching
from statechannel.cli.output import Output, duration, moment, print_json, print_table, say

if TYPE_CHECKING:
    from shedders.partitions.execution.status import Status


@reaching
def status(connect: Connect, plan_id: PlanId = None, state: State = None, output: OutputAs = Output.TABLE) -> None:
    """Show how far a plan is: partitions, bytes, rate, time left, who carries it out, why it stopped, throttles left."""
    place = place_of(connect, state)
    from shedders.partitions.execution.session import known  # noqa: PLC0415 - kafka-python is an extra
    from shedders.partitions.execution.status import status_of  # noqa: PLC0415

    book, trouble = read_book(place)
    try:
        plan = known(place, chosen(place, plan_id, book), book)
    except (CommandError, PlanUnknownError):
        if trouble is not None:  # the topic may know it
            raise trouble from None
        raise
    found = status_of(place, plan, now_ms=time.time_ns() // 1_000_000)
    if output is Output.JSON:
        print_json(found.fields() | {"topic_trouble": None if trouble is None else str(trouble)})
        return
    print_table(("plan", found.plan_id), _rows(found))
    if trouble is not None:
        say(f"note: the state topic could not be read: {trouble}")
    if found.throttles_left and not found.running:
        left = ", ".join(found.throttles_left)
        say(f"note: throttles are left on {left}: `statechannel partitions resume` or `cancel` removes them")


def _rows(found: Status) -> list[tuple[str, Any]]:
    figures = found.progress
    stopped = "" if found.stop is None else f"{found.stop['kind']}: {found.stop['reason']}".rstrip(": ")
    of_these = ", ".join(f"{number} {name}" for name, number in figures.partitions.items())
    return [
        ("state", found.state),
        ("carried out by", found.executor),
        ("begun", moment(found.began_at_ms or None)),
        ("partitions", f"{figures.done} of {figures.total} done"),
        *([("of these", of_these)] if of_these else []),
        ("bytes", f"{size(figures.bytes_done)} of {size(figures.bytes_total)}"),
        ("rate", None if figures.rate_bytes_per_s is None else rate(figures.rate_bytes_per_s)),
        ("left", None if figures.left_s is None else duration(figures.left_s * 1_000)),
        ("throttle", None if found.throttle_bytes_per_s is None else rate(found.throttle_bytes_per_s)),
        ("ended", stopped),
        ("next", None if found.stop is None else found.stop["hint"]),
        *(("refused", f"{name}: {why}") for name, why in found.refused.items()),
        *(("remark", text) for text in found.remarks),
    ]
