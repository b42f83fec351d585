"""Engines as automata: a state is told apart by what is in it, and the step from a state by an input is taken once.

An engine has no clock, client or randomness, so its next state depends on its state and the input alone. A state is stored as a
pickle; two states are one where their object graphs hold the same values in the same shape (`digest_of`).
"""

from __future__ import annotations

import pickle
from array import array
from collections import deque
from collections.abc import Callable, Mapping, Set
from enum import Enum
from functools import cache, partial
from hashlib import blake2b
from types import BuiltinFunctionType, FunctionType, MethodType, ModuleType
from typing import Any, NamedTuple

from pyspark import cloudpickle

from statechannel.engine.config import EngineConfig
from statechannel.engine.context import Mode
from statechannel.engine.effects import Effect, Emit
from statechannel.engine.engine import Engine
from statechannel.engine.inputs import Input, Now
from statechannel.engine.owner_cache import OwnerCache
from statechannel.engine.provenance import OwnIds

WALL_MS = 1_800_000_000_000
MONO_S = 100.0
LIVE_MAX = 3_000
"""Engines that are kept as objects, beside their pickles: going on from the newest states needs no unpickling."""


def now_at(time_s: float) -> Now:
    """Both clocks of every process at a virtual time."""
    return Now(MONO_S + time_s, WALL_MS + int(time_s * 1000))


Inspect = Callable[[Engine, tuple[str, ...]], bool]
"""Sees an engine after a step, with the names of what was emitted."""


class Step(NamedTuple):
    """What one input did.

    Attributes:
        state: Number of the state that it led to.
        effects: In order, without `Emit`.
        events: Names of what was emitted.
        flag: What `inspect` returned.
    """

    state: int
    effects: tuple[Effect, ...]
    events: tuple[str, ...]
    flag: bool


class EngineFacts(NamedTuple):
    """What checks and moves need to know of a state.

    Attributes:
        serving: Bundles and generations.
        holdings: Names of these, and of what is prepared.
        fit: It may lead, and takes bundles unless it leaves.
        cold: It starts cold.
        in_doubt: It has read the mark of a cold start, and does not know yet whose.
        lease_ends_s: Virtual time at which its lease runs out; None without the option.
    """

    serving: tuple[tuple[str, int], ...]
    holdings: frozenset[str]
    leading: bool
    caught_up: bool
    normal: bool
    fit: bool
    cold: bool
    in_doubt: bool
    lease_ends_s: float | None


def facts_of(engine: Engine) -> EngineFacts:
    lease_s = engine.config.lease_s
    return EngineFacts(
        tuple(sorted(engine.serving().items())),
        frozenset(engine.reactions.holdings),
        engine.leading,
        engine.caught_up,
        engine.mode is Mode.NORMAL,
        engine.candidacy.seat.fit and (engine.accepting or engine.draining),
        bool(engine.cold_start.running),
        bool(engine.context.doubtful),
        None if lease_s is None else lease_s - engine.presence.heartbeat_age_at_s(MONO_S),
    )


class Automaton:
    """All states of engines that were met.

    Attributes:
        facts: By the number of the state.
    """

    def __init__(self) -> None:
        self.facts: list[EngineFacts] = []
        self._numbers: dict[bytes, int] = {}
        self._pickles: list[bytes] = []
        self._steps: dict[tuple[int, float, Input], Step] = {}
        self._live: dict[int, Engine] = {}

    def __len__(self) -> int:
        return len(self._pickles)

    def add(self, engine: Engine) -> int:
        """Number of an engine's state. The engine is taken over."""
        digest = digest_of(engine)
        number = self._numbers.get(digest)
        if number is None:
            number = self._numbers[digest] = len(self._pickles)
            self._pickles.append(_dump(engine))
            self.facts.append(facts_of(engine))
        if number not in self._live:
            if len(self._live) >= LIVE_MAX:
                del self._live[next(iter(self._live))]
            self._live[number] = engine
        return number

    def take(self, number: int) -> Engine:
        """An engine in this state, of one's own."""
        engine = self._live.pop(number, None)
        return engine if engine is not None else pickle.loads(self._pickles[number])

    def step(self, number: int, time_s: float, event: Input, inspect: Inspect) -> Step:
        """The step from a state by an input; `inspect` sees the engine after it, the first time that it is taken."""
        place = (number, time_s, event)
        step = self._steps.get(place)
        if step is not None:
            return step
        engine = self.take(number)
        effects, events = split_effects(engine.step(now_at(time_s), event))
        flag = inspect(engine, events)
        step = self._steps[place] = Step(self.add(engine), effects, events, flag)
        return step


def split_effects(effects: list[Effect]) -> tuple[tuple[Effect, ...], tuple[str, ...]]:
    """What has to be done, and the names of the events."""
    done = tuple(effect for effect in effects if not isinstance(effect, Emit))
    return done, tuple(effect.event for effect in effects if isinstance(effect, Emit))


def _dump(engine: Engine) -> bytes:
    try:
        return pickle.dumps(engine, pickle.HIGHEST_PROTOCOL)
    except (pickle.PicklingError, AttributeError, TypeError):  # it holds a function that was made inside another one
        return bytes(cloudpickle.dumps(engine))


# --- telling states apart ---------------------------------------------------------------------------------------------

Seen = dict[int, int]
Writer = Callable[[Any, list[object], Seen], None]
_ATOMS = (str, bytes, int, float, bool, type(None))
_NAMED = (type, BuiltinFunctionType, ModuleType)


def digest_of(engine: Engine) -> bytes:
    """The same for two engines whose object graphs hold the same values in the same shape."""
    parts: list[object] = []
    _write(engine, parts, {})
    return blake2b(repr(parts).encode(), digest_size=16).digest()


def _write(value: Any, parts: list[object], seen: Seen) -> None:
    kind = type(value)
    if kind in _ATOMS:
        parts.append(value)
    else:
        _writer_of(kind)(value, parts, seen)


@cache
def _writer_of(kind: type) -> Writer:
    """How values of a type are written down; those that may change are numbered, so that two are told from one seen twice."""
    if issubclass(kind, Enum):
        return lambda value, parts, _: parts.append((kind.__name__, value.name))
    if issubclass(kind, _NAMED):
        return lambda value, parts, _: parts.append(getattr(value, "__qualname__", value.__name__))
    if issubclass(kind, EngineConfig):  # the same for all
        return lambda _, parts, __: parts.append(kind.__name__)
    if issubclass(kind, OwnerCache):  # no step looks at it, and it counts the steps
        return lambda _, parts, __: parts.append(kind.__name__)
    if issubclass(kind, OwnIds):  # without the cache of the newest
        return lambda value, parts, _: parts.append((kind.__name__, value._first, value._count))
    if issubclass(kind, tuple | frozenset):
        return _write_items
    parameters = getattr(kind, "__dataclass_params__", None)
    if parameters is not None and parameters.frozen:
        return _attributes_writer(kind)
    return _once(_changing_writer(kind))


def _changing_writer(kind: type) -> Writer:
    if issubclass(kind, Mapping):
        return _write_mapping
    if issubclass(kind, list | deque | array | Set):
        return _write_items
    if issubclass(kind, MethodType):
        return _write_method
    if issubclass(kind, FunctionType):
        return _write_function
    if issubclass(kind, partial):
        return lambda value, parts, seen: _write((value.func, value.args, tuple(value.keywords.items())), parts, seen)
    if kind.__module__ in ("builtins", "itertools") and kind is not object:  # an iterator: what it is pickled as
        return lambda value, parts, seen: _write(value.__reduce__(), parts, seen)
    return _attributes_writer(kind)


def _once(write: Writer) -> Writer:
    def write_once(value: Any, parts: list[object], seen: Seen) -> None:
        number = seen.get(id(value))
        if number is not None:
            parts.append(("seen", number))
            return
        seen[id(value)] = len(seen)
        write(value, parts, seen)

    return write_once


def _write_items(values: Any, parts: list[object], seen: Seen) -> None:
    parts.append((type(values).__name__, len(values)))
    for member in sorted(values, key=repr) if isinstance(values, Set) else values:
        _write(member, parts, seen)


def _write_mapping(values: Mapping[Any, Any], parts: list[object], seen: Seen) -> None:
    parts.append((type(values).__name__, len(values)))
    for key, member in values.items():
        _write(key, parts, seen)
        _write(member, parts, seen)
    if hasattr(values, "__dict__"):
        _write_mapping(vars(values), parts, seen)


def _write_method(method: MethodType, parts: list[object], seen: Seen) -> None:
    parts.append(("method", method.__func__.__qualname__))
    _write(method.__self__, parts, seen)


def _write_function(function: FunctionType, parts: list[object], seen: Seen) -> None:
    parts.append(("function", function.__module__, function.__qualname__, function.__code__.co_firstlineno))
    for cell in function.__closure__ or ():
        _write(cell.cell_contents, parts, seen)
    _write_items(function.__defaults__ or (), parts, seen)


def _attributes_writer(kind: type) -> Writer:
    slots = _slots(kind)
    if not slots and kind is not object and not any("__dict__" in owner.__dict__ for owner in kind.__mro__):
        raise TypeError(f"what a {kind.__qualname__} holds cannot be written down")

    def write(value: Any, parts: list[object], seen: Seen) -> None:
        parts.append(kind.__qualname__)
        for name in slots:
            _write(getattr(value, name, "unset"), parts, seen)
        for name, member in getattr(value, "__dict__", {}).items():
            parts.append(name)
            _write(member, parts, seen)

    return write


def _slots(kind: type) -> tuple[str, ...]:
    """Names of the places for attributes that a type has besides a dictionary."""
    names: list[str] = []
    for owner in kind.__mro__:
        slots = owner.__dict__.get("__slots__", ())
        for name in (slots,) if isinstance(slots, str) else slots:
            if name not in ("__dict__", "__weakref__"):
                names.append(f"_{owner.__name__.lstrip('_')}{name}" if name.startswith("__") else name)
    return tuple(names)
