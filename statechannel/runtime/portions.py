"""Puts records that lie one behind the other in the inbox together, so that a replay takes them in faster."""

from __future__ import annotations

from typing import TYPE_CHECKING

from statechannel.core.inputs import RecordRead, RecordsRead, Topic

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from statechannel.core.inputs import Input

# Live traffic comes a few at a time, and each record's effects are wanted before the next one is looked at.
_FEW = 128


def portions(inputs: Sequence[Input]) -> Iterator[Input]:
    """The inputs in their order, long runs of one channel partition as one `RecordsRead`."""
    if len(inputs) < _FEW:
        yield from inputs
        return
    run: list[RecordRead] = []
    partition = -1
    for item in inputs:
        if isinstance(item, RecordRead) and item.topic is Topic.CHANNEL:
            if item.partition != partition:
                yield from _together(run)
                run, partition = [], item.partition
            run.append(item)
            continue
        yield from _together(run)
        run, partition = [], -1
        yield item
    yield from _together(run)


def _together(run: list[RecordRead]) -> list[Input]:
    return [RecordsRead(run)] if len(run) >= _FEW else [*run]
