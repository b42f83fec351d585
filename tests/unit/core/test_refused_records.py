"""Records that Kafka refuses for good: the command is rejected with Kafka's code, and is never said to pass."""

import pytest

from statechannel.engine.commands import (
    AwaitOperation,
    CreateNamespace,
    DeleteNamespace,
    Lookup,
    Outcome,
    Rejected,
    Undetermined,
    Unknown,
    Unload,
)
from statechannel.engine.effects import Append
from statechannel.engine.inputs import AppendFailed
from statechannel.engine.kafka_limits import AppendRefusal, RefusalReason
from statechannel.protocol.bundle import namespace_bounds
from tests.support.lone_engine import BUNDLE, CREATED, NAMESPACE, LoneEngine

TOO_LARGE = AppendRefusal(
    RefusalReason.TOO_LARGE,
    "MSG_SIZE_TOO_LARGE",
    "bundle-state",
    "a record for bundle-state has 24,000 bytes, more than max.message.bytes of the topic allows (MSG_SIZE_TOO_LARGE)",
)
DENIED = AppendRefusal(
    RefusalReason.DENIED,
    "TOPIC_AUTHORIZATION_FAILED",
    "bundle-state",
    "no ACL allows this client to write to bundle-state (TOPIC_AUTHORIZATION_FAILED)",
)


def refusing(key: bytes | None, refusal: AppendRefusal, *, never_written: bool) -> LoneEngine:
    """Kafka refuses the records of this key, or all."""
    alone = LoneEngine([(NAMESPACE, CREATED, 1)])
    alone.run(5)

    def fail(append: Append) -> AppendFailed | None:
        if key in (None, append.key):
            return AppendFailed(append.token, "refused", 1, never_written, refusal.code, refusal)
        return None

    alone.fail = fail
    return alone


@pytest.mark.parametrize("never_written", [True, False])
def test_a_record_that_is_too_large_is_rejected_with_the_code_and_the_limit(never_written: bool) -> None:
    """Refused by a Kafka broker it is not in the log once a later record of this process was read back."""
    alone, answers = refusing(b"t/large", TOO_LARGE, never_written=never_written), []
    alone.ask(CreateNamespace("t/large", namespace_bounds(4), "op-refused", 30.0), answers.append)
    alone.run(4)
    (answer,) = answers
    assert isinstance(answer, Rejected)
    assert answer.reason == "record-too-large"
    assert TOO_LARGE.message in answer.message
    assert "again" not in answer.hint.lower()


def test_where_every_record_is_refused_the_outcome_is_unknown_soon_and_says_why() -> None:
    """Nothing that is read back shows that no earlier try was written."""
    alone, answers = refusing(None, DENIED, never_written=False), []
    alone.ask(CreateNamespace("t/new", namespace_bounds(4), "op-refused", 30.0), answers.append)
    alone.run(8)
    (answer,) = answers
    assert isinstance(answer, Unknown)
    assert "TOPIC_AUTHORIZATION_FAILED" in answer.message


def test_a_move_is_rejected_so_as_well() -> None:
    alone = refusing(BUNDLE, DENIED, never_written=True)
    alone.fail, fail = (lambda _: None), alone.fail
    alone.ask(Lookup(BUNDLE.decode(), 10.0), lambda _: None)
    alone.fail, answers = fail, []
    alone.ask(Unload(BUNDLE.decode(), "op-refused", 30.0), answers.append)
    (answer,) = answers
    assert isinstance(answer, Rejected)
    assert answer.reason == "write-denied"


def test_a_deletion_ends_where_its_record_is_refused() -> None:
    alone, answers = refusing(NAMESPACE, TOO_LARGE, never_written=True), []
    alone.ask(DeleteNamespace(NAMESPACE.decode(), "op-refused", 30.0), answers.append)
    alone.run(2)
    (answer,) = answers
    assert isinstance(answer, Rejected)
    assert answer.reason == "record-too-large"


@pytest.mark.parametrize("timeout_s", [1.0, 30.0])
@pytest.mark.parametrize("key", [None, BUNDLE])
def test_a_lookup_that_waits_in_vain_says_that_records_are_refused(key: bytes | None, timeout_s: float) -> None:
    """Those of its bundle, or all of this broker: then none accepts bundles after a while."""
    alone, answers = refusing(key, TOO_LARGE, never_written=False), []
    alone.run(3)
    alone.ask(Lookup(BUNDLE.decode(), timeout_s), answers.append)
    alone.run(timeout_s + 1)
    (answer,) = answers
    assert isinstance(answer, Undetermined)
    assert answer.reason == RefusalReason.TOO_LARGE
    assert TOO_LARGE.message in answer.message


def test_a_lookup_after_the_refusals_says_nothing_of_them() -> None:
    alone, answers = refusing(None, DENIED, never_written=False), []
    alone.run(3)
    alone.fail = lambda _: None
    alone.run(30)
    alone.hold = True
    alone.ask(Lookup(BUNDLE.decode(), 1.0), answers.append)
    alone.run(2)
    (answer,) = answers
    assert isinstance(answer, Undetermined)
    assert answer.reason == "timed-out"


def test_an_operation_whose_time_is_up_first_says_that_records_are_refused() -> None:
    alone = refusing(None, TOO_LARGE, never_written=False)
    alone.fail, fail = (lambda _: None), alone.fail
    alone.ask(Lookup(BUNDLE.decode(), 10.0), lambda _: None)
    first: list[Outcome] = []
    running: list[Outcome] = []
    alone.hold_hooks = True
    alone.ask(Unload(BUNDLE.decode(), "op-running", 30.0), lambda _: None)
    alone.fail = fail
    alone.ask(CreateNamespace("t/new", namespace_bounds(4), "op-refused", 1.0), first.append)
    alone.run(3)
    alone.ask(AwaitOperation("op-running", 1.0), running.append)
    alone.run(2)
    (unknown,), (undetermined,) = first, running
    assert isinstance(unknown, Unknown)
    assert isinstance(undetermined, Undetermined)
    assert TOO_LARGE.message in unknown.message
    assert TOO_LARGE.message in undetermined.message


def test_a_refusal_of_another_bundles_record_is_not_named() -> None:
    alone, answers = refusing(b"t/large", TOO_LARGE, never_written=False), []
    alone.ask(CreateNamespace("t/large", namespace_bounds(4), "op-refused", 30.0), lambda _: None)
    alone.hold = True
    alone.ask(Lookup(BUNDLE.decode(), 1.0), answers.append)
    alone.run(2)
    (answer,) = answers
    assert isinstance(answer, Undetermined)
    assert answer.reason == "timed-out"
