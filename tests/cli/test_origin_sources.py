"""From when on the topic of requests has all that was asked for."""

from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace

import pytest

from statechannel.broker.request_record import TIMEOUT_MAX_S, Request, RequestCommand, encode
from statechannel.cli.audit import origins
from statechannel.protocol.log import RecordRead, Topic

OLDEST_MS = 1_700_000_000_000
WAIT_MS = int(TIMEOUT_MAX_S * 1_000)


@pytest.mark.parametrize(("low", "since_ms"), [(0, 0), (9, OLDEST_MS + WAIT_MS)])
def test_what_a_deleted_request_may_have_asked_for_is_not_said_to_have_no_origin(
    monkeypatch: pytest.MonkeyPatch, low: int, since_ms: int
) -> None:
    request = Request("op-1", RequestCommand.TRANSFER.value, 0, {"name": "t/n/topic", "destination": "b2"}, "ops")
    oldest = RecordRead(Topic.REQUESTS, 0, low, OLDEST_MS, b"op-1", encode(request, timeout_s=5.0))

    @contextmanager
    def tail(*_: object) -> Iterator[SimpleNamespace]:
        yield SimpleNamespace(span=lambda: SimpleNamespace(low=low), records=lambda _: iter([oldest]))

    monkeypatch.setattr(origins, "open_tail", tail)
    requests = origins.requests(SimpleNamespace())  # type: ignore[arg-type]
    assert requests.since_ms == since_ms
    assert requests.asker({"operation": "op-1"}) is not None
