"""Test kit for those who embed the channel: brokers in the test's own process, in virtual time, without Kafka.

`ChannelKit` is the cluster, also as the pytest fixture `channel_kit`; `check_hooks` runs a broker's hooks through every order of
calls that the documentation promises, and says which promise of theirs broke.
"""

from statechannel.testing.check import HOOK_ORDERS, check_hooks
from statechannel.testing.kit import ChannelKit, NotSettledError, OutcomeError
from statechannel.testing.kit_broker import KitBroker, KitLog
from statechannel.testing.kit_parts import KitEvent
from statechannel.testing.loop import KitError, NothingHappensError, RealIoError, TimeLimitError
from statechannel.testing.promises import HookFinding, HookPromise, HookPromiseError, HookReport

__all__ = [
    "HOOK_ORDERS",
    "ChannelKit",
    "HookFinding",
    "HookPromise",
    "HookPromiseError",
    "HookReport",
    "KitBroker",
    "KitError",
    "KitEvent",
    "KitLog",
    "NotSettledError",
    "NothingHappensError",
    "OutcomeError",
    "RealIoError",
    "TimeLimitError",
    "check_hooks",
]
