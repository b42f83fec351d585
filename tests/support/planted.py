"""Mistakes of embedders, each planted into a broker that keeps its promises otherwise: the list of them."""

from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple

from statechannel.api import BlockingBrokerHooks, BrokerHooks
from statechannel.testing import HookPromise as P
from tests.support.hook_stores import Disk, Shards


class Planted(NamedTuple):
    """One mistake.

    Attributes:
        hooks: The class; a `Shards` shares one disk.
        found: Promises of which one at least has to be reported.
        by: An order or story that finds it.
        attach: It needs its channel.
    """

    hooks: type[Any]
    found: frozenset[P]
    by: str
    attach: bool = False


PLANTED: dict[str, Planted] = {}


def planted(by: str, *found: P, attach: bool = False) -> Callable[[type[Any]], type[Any]]:
    def add(hooks: type[Any]) -> type[Any]:
        PLANTED[hooks.__name__] = Planted(hooks, frozenset(found), by, attach)
        return hooks

    return add


def arguments_of(hooks: type[Any], *, attach: bool = False) -> dict[str, Any]:
    """How `check_hooks` is asked about a class."""
    arguments: dict[str, Any] = {"make": hooks}
    if issubclass(hooks, Shards):
        disk = Disk()
        arguments["make"] = lambda: hooks(disk)
        arguments["accepts_writes"] = lambda store, bundle: store.writable.get(bundle)
        arguments["write"] = _put
        arguments["read"] = _get
    if issubclass(hooks, BrokerHooks | BlockingBrokerHooks):
        arguments["serves"] = lambda store, bundle: store.serving.get(bundle)
    if attach:
        arguments["attach"] = lambda store, channel: setattr(store, "channel", channel)
    return arguments


def _put(store: Shards, bundle: str, topic: str, value: str) -> Awaitable[None]:
    return store.put(bundle, topic, value)


def _get(store: Shards, bundle: str, topic: str) -> Awaitable[str | None]:
    return store.get(bundle, topic)
