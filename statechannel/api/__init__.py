"""Embedding API: a broker opens the channel, registers its hooks, and looks up the owners of bundles.

Asyncio first; `BlockingStateChannel` is the same with plain calls, on a private loop in a thread of its own.
Expected ends are values (`statechannel.engine.commands`): accepted, rejected with a reason, or unknown. Exceptions mean
that something could not be done at all; every one has a hint.
"""

from statechannel.api.blocking import BlockingStateChannel, BlockingTicket
from statechannel.api.channel import Opening, StateChannel
from statechannel.api.guard import Admission, AdmittedCounts, Redirect
from statechannel.api.member import PendingTicket, Ticket, WrongLoopError
from statechannel.api.status import FlightStatus, MemberStatus, PartitionStatus, RuntimeStatus
from statechannel.broker.changes import Change, ChangesError, Derived, StreamEnd
from statechannel.broker.exits import ChannelStoppedError, JoinTimeoutError, Stopped
from statechannel.broker.hooks import BlockingBrokerHooks, BrokerHooks, HookReentryError
from statechannel.engine.commands import (
    BoundTo,
    Declined,
    Done,
    NoListenerError,
    NotFound,
    Outcome,
    Owned,
    Rejected,
    Started,
    Undetermined,
    Unknown,
    Unowned,
)
from statechannel.errors import StateChannelError
from statechannel.kafka.errors import KafkaAdapterError
from statechannel.operations.checks import ArgumentTypeError, ArgumentValueError
from statechannel.protocol.bundle import BundleRange
from statechannel.protocol.bundle import named_topic_hash as topic_hash
from statechannel.settings import SettingGroups, Settings, SettingsError, load_settings

__all__ = [
    "Admission",
    "AdmittedCounts",
    "ArgumentTypeError",
    "ArgumentValueError",
    "BlockingBrokerHooks",
    "BlockingStateChannel",
    "BlockingTicket",
    "BoundTo",
    "BrokerHooks",
    "BundleRange",
    "Change",
    "ChangesError",
    "ChannelStoppedError",
    "Declined",
    "Derived",
    "Done",
    "FlightStatus",
    "HookReentryError",
    "JoinTimeoutError",
    "KafkaAdapterError",
    "MemberStatus",
    "NoListenerError",
    "NotFound",
    "Opening",
    "Outcome",
    "Owned",
    "PartitionStatus",
    "PendingTicket",
    "Redirect",
    "Rejected",
    "RuntimeStatus",
    "SettingGroups",
    "Settings",
    "SettingsError",
    "Started",
    "StateChannel",
    "StateChannelError",
    "Stopped",
    "StreamEnd",
    "Ticket",
    "Undetermined",
    "Unknown",
    "Unowned",
    "WrongLoopError",
    "load_settings",
    "topic_hash",
]
