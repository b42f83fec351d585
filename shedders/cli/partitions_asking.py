"""Wishes for whoever carries a plan out, here or on another host: written to the state topic, and the answer awaited."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from shedders.cli.partitions_executing import chosen, read_book, who
from statechannel.cli.failures import CommandError
from statechannel.cli.output import Output, print_json, stdout, waiting
from statechannel.errors import ExitCode

if TYPE_CHECKING:
    from shedders.partitions.execution.seen import Wish
    from shedders.partitions.execution.session import Place
    from shedders.partitions.execution.state_book import StateBook

ANSWER_S = 15.0
_POLL_S = 0.3
_STATE = {"pause": "paused", "go": "begun", "cancel": "cancelling"}


def running_plan(place: Place, plan_id: str | None) -> tuple[str, bool, StateBook | None]:
    """The plan that is meant, whether somebody carries it out now, and what the state topic has (None: it is not there yet).

    Raises:
        KafkaAdapterError: The state topic cannot be read, so nobody knows.
    """
    from shedders.partitions.execution.session import alive_holder  # noqa: PLC0415 - kafka-python is an extra

    book, trouble = read_book(place)
    if trouble is not None:
        raise trouble
    found = chosen(place, plan_id, book)
    holder = alive_holder(book)
    return found, holder is not None and holder.plan_id == found, book


def tell_executor(
    place: Place, plan_id: str | None, wish: Wish, output: Output, *, hint: str, **throttle: int | None
) -> None:
    """Tell it, and wait until it has heard.

    Raises:
        CommandError: Nobody carries it out; or no answer came in time.
    """
    found, running, _ = running_plan(place, plan_id)
    if not running:
        raise CommandError(f"plan {found} is not being carried out", hint=hint, code=ExitCode.NOT_FOUND)
    from shedders.partitions.execution.session import ask  # noqa: PLC0415

    ask(place, found, wish=wish, by=who(), **throttle)
    heard = _answer(place, found, wish)
    facts: dict[str, Any] = {"plan": found, "asked": str(wish), "state": heard, **throttle}
    if output is Output.JSON:
        print_json(facts)
    else:
        stdout().print(f"plan {found}: {heard}", markup=False)


def _answer(place: Place, plan_id: str, wish: Wish) -> str:
    """What the executor says of it.

    Raises:
        CommandError: Nothing in time.
    """
    from shedders.partitions.execution.events import recorded  # noqa: PLC0415

    ends_s = time.monotonic() + ANSWER_S + place.settings.pace.poll_s
    with place.topic() as topic, waiting(f"waiting for the executor of plan {plan_id}", ANSWER_S) as told:
        while time.monotonic() < ends_s:
            past = recorded(topic.read().book(plan_id).in_order())
            if past.state == "ended" and past.stop is not None:
                return f"ended ({past.stop['kind']})"
            if past.state == _STATE[str(wish)]:
                return "running" if past.state == "begun" else past.state
            told("")
            time.sleep(_POLL_S)
    raise CommandError(
        f"the executor of plan {plan_id} has not answered in {ANSWER_S:g} s; it may still hear it",
        hint=f"`statechannel partitions status {plan_id}` shows what becomes of it.",
        code=ExitCode.UNDETERMINED,
    )
