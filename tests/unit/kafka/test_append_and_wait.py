"""One record, written and waited for: what the client says of it (a scripted producer, no broker)."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from statechannel.kafka import tail
from statechannel.kafka.client_settings import ClientSettings
from statechannel.kafka.errors import AppendOutcomeUnknownError
from statechannel.kafka.tail import append_and_wait

CONFIGS: list[dict[str, Any]] = []


@pytest.fixture
def reported(monkeypatch: pytest.MonkeyPatch) -> Callable[[int | None], int]:
    """Append one record, whose report names this offset."""

    def append(offset: int | None, **options: bool) -> int:
        class Producer:
            def __init__(self, config: dict[str, Any]) -> None:
                CONFIGS.append(config)

            def produce(self, *_: object, on_delivery: Callable[[None, Any], None], **__: object) -> None:
                self.deliver = on_delivery

            def poll(self, _: float) -> None:
                self.deliver(None, SimpleNamespace(offset=lambda: offset))

        monkeypatch.setattr(tail, "Producer", Producer)
        return append_and_wait(ClientSettings("h:1"), "t", 0, key=b"k", value=b"v", **options)

    return append


def test_the_offset_is_that_of_the_report(reported: Callable[[int | None], int]) -> None:
    assert [reported(offset) for offset in (0, 7)] == [0, 7]


@pytest.mark.parametrize("offset", [None, -1, -1001])
def test_a_success_without_an_offset_is_not_one_at_offset_0(
    reported: Callable[[int | None], int], offset: int | None
) -> None:
    with pytest.raises(AppendOutcomeUnknownError, match="without its offset"):
        reported(offset)


def test_only_what_may_be_there_twice_is_written_without_an_id_of_the_producer(
    reported: Callable[..., int],
) -> None:
    CONFIGS.clear()
    reported(3)
    reported(3, repeatable=True)
    assert [config["enable.idempotence"] for config in CONFIGS] == [True, False]
    assert [config["acks"] for config in CONFIGS] == ["all", "all"]
