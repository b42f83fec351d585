"""An operator says that a lost broker will not come back: the leader confirms which process it was."""

from statechannel.engine.commands import DismissBroker, Done, Outcome, Rejected
from tests.unit.core.test_floods import leader


def test_only_a_lost_broker_can_be_dismissed() -> None:
    alone = leader()
    alone.hear("z")
    answers: list[Outcome] = []
    alone.ask(DismissBroker("z"), answers.append)
    alone.ask(DismissBroker("y"), answers.append)
    alone.run(40)  # z is not heard any more
    alone.ask(DismissBroker("z"), answers.append)
    alive, unknown, dismissed = answers
    assert isinstance(alive, Rejected)
    assert isinstance(unknown, Rejected)
    assert (alive.reason, unknown.reason) == ("broker-alive", "broker-not-lost")
    assert isinstance(dismissed, Done)
    lost = alone.engine.context.members.lost["z"]
    assert dismissed.result == "dismissed"
    assert dict(dismissed.facts) == {"incarnation": lost.incarnation, "last_heard_ms": lost.last_heard_ms}
