"""What a caller's name means: a topic, or a bundle."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from statechannel.engine.commands import NotFound
from statechannel.protocol.bundle import looks_like_bounds, parse_key, split_topic, topic_hash
from statechannel.protocol.states import State

if TYPE_CHECKING:
    from statechannel.engine.context import Context
    from statechannel.protocol.keys import KeyState


BUNDLE_HINT = (
    "Use tenant/namespace/0xLLLLLLLL_0xUUUUUUUU, lower-case, eight digits each; "
    "a topic of that name: persistent://tenant/namespace/topic."
)


class NameTarget(NamedTuple):
    """Where a lookup's name points: a namespace, and a hash on its ring or a bundle's key."""

    namespace: str
    hash: int
    key: str | None


def place(name: str) -> NameTarget | NotFound:
    """What a name means: a bundle key, or a topic."""
    try:
        parts = parse_key(name.encode())
    except UnicodeEncodeError:  # a lone surrogate, as some JSON parsers let them through
        return NotFound("bad-name", f"{name!a} is not valid Unicode text", "Give the name as UTF-8.")
    if parts is not None and not parts.is_namespace:
        return NameTarget(parts.namespace, parts.lower, name)
    topic = split_topic(name)
    if topic is None:
        return NotFound(
            "bad-name",
            f"`{name}` is not the name of a topic or bundle",
            "Use tenant/namespace/topic, no part of it . or .., or tenant/namespace/0x..._0x...",
        )
    return NameTarget(topic[0], topic_hash(topic[1]), None)


def mistyped(name: str) -> NotFound | None:
    """Why a name must not change anything: it looks like a bundle, and as a topic's it would mean another one; None: it may."""
    if not looks_like_bounds(name):
        return None
    return NotFound("bad-name", f"`{name}` is not a bundle", BUNDLE_HINT)


def locate(context: Context, name: str) -> KeyState | NotFound:
    """The live bundle that a name means, in this process's view."""
    target = place(name)
    return target if isinstance(target, NotFound) else locate_target(context, target)


def locate_target(context: Context, target: NameTarget) -> KeyState | NotFound:
    bundle = None if target.key is None else context.key(target.key)
    if bundle is None:
        namespace = context.key(target.namespace)
        if namespace is None or namespace.ring is None:
            return NotFound("unknown-namespace", f"there is no namespace {target.namespace}", "Create it first.")
        if target.key is None:
            return namespace.ring.at(target.hash)
        return NotFound(
            "unknown-bundle", f"{target.key} is not a bundle of {target.namespace}", "`bundles` lists them."
        )
    if bundle.state is State.DELETED:
        return NotFound("split-bundle", f"{target.key} was split", "`bundles` lists its children.")
    return bundle
