"""Whether the topic of policies is still the one that was read, and what settles it where it is not. Pure.

A topic that was deleted and made anew has forgotten what was forbidden; so has one whose end was cut off. Nobody can tell from
its records that they are all. An operator can: who has laid down again what should hold sets the policy `shedding` (on or off).
Such a record says that the topic may be gone by; until it comes what was known stands, and nothing is moved.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from shedders.live.policy_kinds import CLUSTER, PolicyKind
from shedders.live.policy_record import PolicyKey

if TYPE_CHECKING:
    from shedders.live.policy_book import PolicyBook
    from shedders.live.policy_topic import TopicSeen

_WORD: Final = PolicyKey(PolicyKind.SHEDDING, CLUSTER)
_SETTLE: Final = (
    "what was known before stands, and nothing is moved; lay down again what should hold, then say "
    "`statechannel policy set shedding on` (or off)"
)


class Doubt:
    """See the module.

    Args:
        topic_id: Of the topic that is read from the start on.

    Attributes:
        why: For people; empty: there is none.
        other_topic: Another topic is there, or the rest of the one that was read: it is to be read from its beginning.
    """

    def __init__(self, topic_id: str) -> None:
        self._topic_id = topic_id
        self._other = ""
        self._unfit = ""
        self._may_lack = False
        self._known = -1
        self._after = -1
        self._seen_in = -1

    @property
    def why(self) -> str:
        """See the class."""
        return self._other or self._unfit

    @property
    def other_topic(self) -> bool:
        """See the class."""
        return bool(self._other)

    def seen(self, topic: TopicSeen, opening: int, known: int) -> None:
        """The topic was looked at.

        Args:
            opening: Which reading from the beginning this is: what it brings is of the topic as it was seen.
            known: Largest offset of what stands, before the look.
        """
        self._unfit = topic.unfit
        self._may_lack = self._may_lack or bool(topic.unfit)
        self._known = max(self._known, known)
        if not topic.topic_id:
            return
        self._seen_in = opening
        if topic.topic_id != self._topic_id:
            self._topic_id = topic.topic_id
            self._doubted("was deleted and made anew", after=-1)
        elif not self._other and topic.end <= known:
            self._doubted(f"ends at offset {topic.end}, and had been read to {known}", after=topic.end - 1)

    def settled(self, opening: int, reading: PolicyBook) -> bool:
        """Whether what is read since that opening may be gone by; asked when it was read to its end, until it may."""
        if self._seen_in != opening:
            return False
        if self._may_lack and not self._other:
            self._doubted("had settings by which it may have forgotten some", after=self._known)
        if self._other and reading.newest(_WORD) > self._after:
            self._other, self._may_lack, self._known = "", bool(self._unfit), -1
        return not self.why

    def _doubted(self, what: str, *, after: int) -> None:
        self._other, self._after = f"the topic of policies {what}: {_SETTLE}", after
