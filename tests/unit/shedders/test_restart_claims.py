"""Claims of rolling restarts: which one holds, by the log alone; and commands that race for it."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shedders.cli.drain import claim as module
from shedders.cli.drain.claim import CLAIM, ClaimedRestart, RestartClaim, RestartUnderWayError, holder_of, read_claims
from statechannel.broker.request_writer import BALANCER
from statechannel.cli.kit.requests import SentRequest
from statechannel.errors import ExitCode
from statechannel.operations.request_record import Request, encode
from statechannel.operations.table import RequestCommand
from statechannel.protocol.log import RecordRead, Topic
from statechannel.stories.requests import stories_of

LEASE_S = 60.0


class RequestLog:
    """The requests topic, in which other commands may write between two steps of one."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.at_ms = 1_000
        self.items: list[RecordRead] = []
        self.before_write: list[ClaimedRestart] = []
        monkeypatch.setattr(module, "extension_requests", lambda *_: stories_of(self.items).values())
        monkeypatch.setattr(module, "send", self.send)
        monkeypatch.setattr(module, "now_ms", lambda: self.at_ms)

    def send(self, _: object, ask: str, args: dict[str, Any], wait_s: float, *, by: str | None) -> SentRequest:
        if self.before_write:
            self.before_write.pop().hold(["b1", "b2"], LEASE_S)
        self.at_ms += 1
        offset = len(self.items)
        identifier = f"request-{offset}"
        all_args = {"extension": BALANCER, "ask": ask, **args}
        request = Request(identifier, RequestCommand.EXTENSION.value, self.at_ms + 1_000, all_args, by or "me@here")
        self.items.append(RecordRead(Topic.REQUESTS, 0, offset, self.at_ms, identifier.encode(), encode(request)))
        return SentRequest(identifier, offset, wait_s)

    def command(self, restart: str, instead_of: str = "") -> ClaimedRestart:
        return ClaimedRestart.new(None, restart, instead_of, None)  # type: ignore[arg-type]

    @property
    def holder(self) -> str | None:
        holder = holder_of(read_claims(None), self.at_ms)  # type: ignore[arg-type]
        return None if holder is None else holder.restart


@pytest.fixture
def log(monkeypatch: pytest.MonkeyPatch) -> RequestLog:
    return RequestLog(monkeypatch)


def test_the_second_is_refused_before_it_writes_and_begins_after_the_end_of_the_first(log: RequestLog) -> None:
    first, second = log.command("r1"), log.command("r2")
    first.hold(["b1", "b2"], LEASE_S)
    with pytest.raises(RestartUnderWayError, match="rolling restart r1 of me@here is under way, of b1, b2") as refused:
        second.check()
    assert (refused.value.exit_code, refused.value.code) == (ExitCode.REJECTED, "restart-under-way")
    assert "--operation r1" in refused.value.hint
    assert "--instead-of r1" in refused.value.hint
    assert len(log.items) == 1
    first.end()
    second.check()
    second.hold(["b1"], LEASE_S)
    assert log.holder == "r2"


def test_of_two_that_begin_at_the_same_time_the_first_in_the_log_wins(log: RequestLog) -> None:
    first, second = log.command("r1"), log.command("r2")
    first.check()
    second.check()
    log.before_write = [first]
    with pytest.raises(RestartUnderWayError):
        second.hold(["b1"], LEASE_S)
    first.hold(["b1", "b2"], 2 * LEASE_S)
    assert log.holder == "r1"


def test_a_claim_is_renewed_only_where_it_would_lapse(log: RequestLog) -> None:
    first = log.command("r1")
    first.hold(["b1"], LEASE_S)
    first.hold(["b1"], LEASE_S / 2)
    assert len(log.items) == 1
    log.at_ms += 40_000
    first.hold(["b1"], LEASE_S / 2)
    assert len(log.items) == 2


def test_a_killed_command_lets_others_begin_when_its_claim_lapses_and_stops_if_it_was_only_paused(log: RequestLog):
    first, second = log.command("r1"), log.command("r2")
    first.hold(["b1"], LEASE_S)
    log.at_ms += 60_001
    second.check()
    second.hold(["b2"], LEASE_S)
    with pytest.raises(RestartUnderWayError, match="rolling restart r2 of"):
        first.hold(["b1"], LEASE_S)
    assert log.holder == "r2"


def test_a_second_command_of_the_same_restart_takes_over_at_once(log: RequestLog) -> None:
    first, again = log.command("r1"), log.command("r1")
    first.hold(["b1"], LEASE_S)
    again.check()
    again.hold(["b1"], LEASE_S)
    with pytest.raises(RestartUnderWayError, match="another command of me@here continues rolling restart r1"):
        first.hold(["b1"], 2 * LEASE_S)
    first.end()
    assert log.holder == "r1", "the end of a command that was replaced ends nothing"


@pytest.mark.parametrize(("restart", "instead_of"), [("r1", ""), ("r2", "r1")])
def test_a_command_that_was_replaced_stops_also_after_the_end_of_its_successor(
    log: RequestLog, restart: str, instead_of: str
) -> None:
    paused, successor, third = log.command("r1"), log.command(restart, instead_of), log.command("r3")
    paused.hold(["b1", "b2"], LEASE_S)
    successor.hold(["b1", "b2"], LEASE_S)
    successor.end()
    with pytest.raises(RestartUnderWayError) as refused:
        paused.hold(["b1", "b2"], LEASE_S)
    assert refused.value.holder is None
    third.hold(["b1", "b2"], LEASE_S)
    assert log.holder == "r3"


def test_one_restart_replaces_another_where_it_is_told_so(log: RequestLog) -> None:
    first, second = log.command("r1"), log.command("r2", "r1")
    first.hold(["b1"], LEASE_S)
    second.check()
    second.hold(["b2"], LEASE_S)
    assert log.holder == "r2"
    with pytest.raises(RestartUnderWayError):
        first.hold(["b1"], 2 * LEASE_S)
    with pytest.raises(RestartUnderWayError):
        log.command("r3", "r1").hold(["b1"], LEASE_S)
    assert log.holder == "r2"


@pytest.mark.parametrize(
    "wrong",
    [
        {"restart": 1},
        {"run": None},
        {"brokers": "b1"},
        {"brokers": [1]},
        {"lease_s": True},
        {"lease_s": -1},
        {"lease_s": 1e9},
        {"instead_of": 1},
    ],
)
def test_what_is_malformed_claims_nothing(log: RequestLog, wrong: dict[str, Any]) -> None:
    args = {"restart": "r1", "run": "x", "brokers": ["b1"], "lease_s": 60.0, "instead_of": ""}
    log.send(None, CLAIM, args, 1.0, by=None)
    assert log.holder == "r1"
    log.items.clear()
    log.send(None, CLAIM, args | wrong, 1.0, by=None)
    assert log.holder is None


CLAIMS = st.lists(
    st.tuples(
        st.sampled_from("abc"),
        st.integers(1, 2),
        st.integers(0, 30),
        st.integers(0, 40),
        st.sampled_from(["", "a", "b"]),
    ),
    max_size=14,
)


@settings(max_examples=300, deadline=None)
@given(CLAIMS)
def test_a_holder_keeps_its_claim_until_it_lapses_ends_or_is_replaced(drawn: list[tuple[str, int, int, int, str]]):
    at_ms, claims = 0, list[RestartClaim]()
    for offset, (restart, run, later_ms, lease_ms, instead_of) in enumerate(drawn):
        at_ms += later_ms
        before = holder_of(claims, at_ms)
        written = RestartClaim(
            restart,
            f"{restart}{run}",
            (),
            "",
            offset,
            at_ms,
            at_ms + lease_ms,
            "" if instead_of == restart else instead_of,
        )
        claims.append(written)
        after = holder_of(claims, at_ms)
        assert after is None or after in claims
        if before is None or after == before:
            assert after in (before, written) or after is None
            continue
        if after is None:
            assert (written.restart, written.run, written.until_ms) == (before.restart, before.run, at_ms)
        else:
            assert after == written
            assert before.restart in (written.restart, written.instead_of)
            other_run = (before.restart, before.run) != (written.restart, written.run)
            again = RestartClaim(before.restart, before.run, (), "", offset + 1, at_ms, at_ms + 99)
            assert holder_of([*claims, again], at_ms) == (written if other_run else again)
