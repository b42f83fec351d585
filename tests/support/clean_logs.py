"""Honest logs of one partition that end without a debt, so that a heartbeat may vouch for all of them."""

from dataclasses import replace

from statechannel.protocol.log import RecordRead, Topic
from statechannel.protocol.view import View
from tests.support.lone_engine import heartbeat
from tests.twin import loggen
from tests.twin.wire import Line
from tests.unit.core.against_twin import KNOBS


def clean_lines(seed: int, steps: int) -> list[Line]:
    """The longest prefix of a generated log at whose end nothing is owed."""
    log = loggen.generate(seed, replace(KNOBS["honest"], partitions=1, steps=steps))
    view, clean_to = View(0, 1), -1
    for line in log.lines:
        view.read(line.offset, line.key, line.value)
        clean_to = clean_to if view.ledger.open else line.offset
    return log.lines[: clean_to + 1]


def vouching(offset: int, timestamp_ms: int = 0) -> RecordRead:
    """A heartbeat at this offset whose writer had read everything before it."""
    return RecordRead(Topic.CHANNEL, 0, offset, timestamp_ms, b"!heartbeat", heartbeat("m-1", offset - 1))
