"""Small parts of a kit's brokers: what is noted of them, where they place bundles, what they read beside their engine."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from prometheus_client import CollectorRegistry

from statechannel.broker.observe.events import Level
from statechannel.broker.observe.metrics import Metrics
from statechannel.engine.placement import FewestBundles

if TYPE_CHECKING:
    from statechannel.broker.changes import PastReader
    from statechannel.broker.host_platform import HostPlatform
    from statechannel.engine.effects import Emit, Hook
    from statechannel.engine.placement import Placement
    from statechannel.engine.troubles import NoBroker
    from statechannel.operations.request_record import Request
    from statechannel.settings import Settings
    from statechannel.testing.network import KitProcess
    from statechannel.testing.watched_hooks import HookCall

EVENTS_MAX = 100_000


class KitEvent(NamedTuple):
    """Something that happened in one broker.

    Attributes:
        at_s: Virtual time since the kit began.
        broker: Its id, with the number of its process: `a#1`.
        name: An event of the engine (design/observability.md), or `hook.began`, `hook.ended`, `hook.failed`.
        facts: Of a hook: `hook`, `bundle`, `arguments`, and `error` at the end.
    """

    at_s: float
    broker: str
    name: str
    facts: Mapping[str, Any]


class KitNotes:
    """What happened in a kit, and the metrics of its brokers.

    Args:
        now_s: Time since the kit began.

    Attributes:
        events: The newest last; bounded.
    """

    def __init__(self, now_s: Callable[[], float]) -> None:
        self._now_s = now_s
        self.events: deque[KitEvent] = deque(maxlen=EVENTS_MAX)
        self.registry = CollectorRegistry()

    def note(self, process: str, name: str, facts: Mapping[str, Any]) -> None:
        self.events.append(KitEvent(self._now_s(), process, name, facts))


async def call_at_once(function: Callable[..., Any], /, *args: Any) -> Any:
    """Call a function directly, as nothing in a kit blocks."""
    return function(*args)


class NoWatch:
    """No thread watches the loop: in virtual time it stands still only while a callback runs."""

    def __init__(self, beats: Callable[[], int], **limits: Any) -> None: ...

    def start(self) -> None: ...

    end = close = start


class KitPlacement:
    """Where the test wants a bundle; else as the broker's own placement says."""

    def __init__(self, wanted: Mapping[str, str], placement: Placement | None) -> None:
        self._wanted = wanted
        self._placement = placement or FewestBundles()

    def choose(self, bundle: str, candidates: Sequence[str], load: Mapping[str, int]) -> str | None:
        wanted = self._wanted.get(bundle)
        return wanted if wanted in candidates else self._placement.choose(bundle, candidates, load)

    def refusal(self, bundle: str) -> NoBroker | None:
        return self._placement.refusal(bundle)


class KitMemberLog:
    """The past of the kit's log, and its requests topic."""

    def __init__(self, process: KitProcess, settings: Settings, platform: HostPlatform) -> None:
        self._process = process
        self._lag_s = settings.channel.min_compaction_lag_ms / 1_000
        self._platform = platform

    def past(self, partition: int) -> PastReader:
        stage = self._process.stage
        return stage.past(partition, partitions=len(stage.logs), lag_s=self._lag_s, platform=self._platform)

    async def write_request(self, request: Request, *, answer_within_s: float) -> None:
        self._process.write_request(request, answer_within_s)


class KitMetrics(Metrics):
    """Metrics of one broker, which also note each event for the test."""

    def __init__(self, notes: KitNotes, process: KitProcess) -> None:
        super().__init__("kit", process.name.partition("#")[0], notes.registry, least=Level.WARNING)
        self._notes = notes
        self._process = process

    def timed(self, name: str, took_s: float, *values: str) -> None:
        """Nothing takes any time in virtual time."""

    def hook_failed(self, hook: Hook, error: str) -> None:
        self._notes.note(self._process.name, "hook.failed", {"hook": hook, "error": error})
        super().hook_failed(hook, error)

    def take(self, event: Emit) -> None:
        self._notes.note(self._process.name, event.event, event.facts)
        super().take(event)


class HookEvents:
    """Notes the calls of one broker's hooks; a `HookWatcher`."""

    def __init__(self, notes: KitNotes, process: KitProcess) -> None:
        self._notes = notes
        self._process = process

    def began(self, call: HookCall) -> None:
        self._notes.note(self._process.name, "hook.began", call._asdict())

    def holds_s(self, call: HookCall) -> float:  # noqa: ARG002
        return 0.0

    def stepped(self, call: HookCall, took_s: float) -> None:
        """Of no interest here."""

    def cancelling(self, call: HookCall) -> None:
        """Of no interest here."""

    def ended(self, call: HookCall, raised: BaseException | None) -> None:
        self._notes.note(self._process.name, "hook.ended", {**call._asdict(), "error": raised})
