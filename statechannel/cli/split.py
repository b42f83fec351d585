"""Commands `statechannel split`, and `statechannel positions`: hashes of topics in a bundle, and where to split it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

from statechannel.broker.request_writer import balancer_args
from statechannel.cli.kit.channel_view import bundle_of, locate_served
from statechannel.cli.kit.confirmation import Effect
from statechannel.cli.kit.options import (
    Connect,
    IfGeneration,
    OutputAs,
    Reason,
    argument,
    commands,
    option,
    with_connection,
)
from statechannel.cli.kit.output import Output, print_json, print_table, say
from statechannel.cli.kit.requests import BrokerRequest, confirmed_request, require_generation, require_name
from statechannel.errors import UsageError
from statechannel.files import UnreadableFileError, parse_value, read_text
from statechannel.operations.table import Addressee, RequestCommand
from statechannel.protocol.bundle import (
    FULL_UPPER,
    MAX_CHILDREN,
    KeyParts,
    bounds_at,
    children_of,
    even_bounds,
    is_bundle,
    parse_key,
    split_topic,
    split_typed_topic,
    topic_hash,
)
from statechannel.queries.connection import Connection

split_app = commands()


@split_app.command()
@confirmed_request
def split(
    _: Connect,
    name: Annotated[str, argument("BUNDLE|TOPIC")],
    own_flags: Sequence[str],
    at: Annotated[
        list[str] | None, option("--at HASH", "Split at this hash (0x... or decimal); may be repeated.")
    ] = None,
    parts: Annotated[int | None, option("--parts", "Number of equal parts.", min=2, max=MAX_CHILDREN)] = None,
    algorithm: Annotated[
        str | None,
        option("--algorithm NAME", "Split algorithm of the owner's balancer; its settings: --set NAME=VALUE."),
    ] = None,
    unload_children: Annotated[
        bool, option("--unload-children", "Unload the children, so that they are placed again.")
    ] = False,
    if_generation: IfGeneration = None,
    reason: Reason = None,
) -> BrokerRequest:
    """Split a bundle in one record: into halves, into equal parts, at given hashes, or by an algorithm."""
    require_name(name)
    _check_choice(at, parts, algorithm, own_flags)
    if if_generation is not None and (unload_children or algorithm is not None):
        raise UsageError(
            "--if-generation is checked by the owner itself, and its balancer does not know it",
            hint="Use it without --algorithm and --unload-children.",
        )
    if algorithm is not None:
        asked = {"algorithm": algorithm, "settings": _settings(own_flags)}
        request = _of_owner(name, asked, reason, f"split by {algorithm}", unload_children=unload_children)
        return replace(request, effect=lambda connection: _effect_of_algorithm(connection, name, algorithm))
    cuts = [_hash(text) for text in at or ()]
    _check_range(name, cuts, parts or 2)
    done = f"split into {len(cuts) + 1 if cuts else parts or 2} parts"
    where = {"at": cuts or None, "parts": None if cuts else parts or 2}
    request = (
        _of_owner(name, where, reason, done, unload_children=True)
        if unload_children
        else BrokerRequest(
            RequestCommand.SPLIT,
            {"name": name, **where, "reason": reason, "if_generation": if_generation},
            done,
            subject=name,
        )
    )
    return replace(request, effect=lambda connection: _effect(connection, name, cuts, parts or 2, if_generation))


def _effect(connection: Connection, name: str, cuts: list[int], parts: int, if_generation: int | None) -> Effect:
    key = locate_served(connection, name)
    place = _bundle(key.name)
    require_generation(key, if_generation)
    _check_range(key.name, cuts, parts)
    bounds = bounds_at(place.lower, place.upper, cuts) if cuts else even_bounds(parts, place.lower, place.upper)
    children = [f"{place.namespace}/{child}" for child in children_of(bounds)]
    sentence = f"{key.name} of {key.owner} would be split into {len(children)} parts; nothing undoes it"
    return Effect([sentence, *children], {"bundle": key.name, "owner": key.owner, "children": children})


def _effect_of_algorithm(connection: Connection, name: str, algorithm: str) -> Effect:
    key = locate_served(connection, name)
    sentence = f"{key.owner} would split {key.name} where {algorithm} says; nothing undoes it"
    hint = "`statechannel split plan --snapshot live` shows where"
    return Effect([sentence, hint], {"bundle": key.name, "owner": key.owner, "algorithm": algorithm})


def _check_choice(at: list[str] | None, parts: int | None, algorithm: str | None, flags: Sequence[str]) -> None:
    choices = [("--at", bool(at)), ("--parts", parts is not None), ("--algorithm", algorithm is not None)]
    names = [option for option, is_given in choices if is_given]
    if len(names) > 1:
        raise UsageError(f"{' and '.join(names)} exclude each other", hint="Use one of them.")
    if flags and algorithm is None:
        raise UsageError(
            f"--set {flags[0]} is not a valid setting",
            hint="Use --set GROUP.NAME=VALUE; settings of an algorithm need --algorithm NAME.",
        )


def _of_owner(
    name: str, asked: dict[str, Any], reason: str | None, done: str, *, unload_children: bool
) -> BrokerRequest:
    """A split by the owner's balancer: it knows the topics of the bundle, and waits for the split."""
    every = {"name": name, "reason": reason, **asked, "unload_children": unload_children}
    args = balancer_args("split", Addressee.OWNER, every)
    done = f"{done}, children unloaded" if unload_children else done
    return BrokerRequest(RequestCommand.EXTENSION, args, done, subject=name)


def _settings(flags: Sequence[str]) -> dict[str, Any]:
    """Settings for the owner: texts, except `none`, lists and tables."""
    settings: dict[str, Any] = {}
    for flag in flags:
        name, equals, text = flag.partition("=")
        if not equals or not name.strip():
            raise UsageError(f"--set {flag}: not of the form NAME=VALUE", hint="Example: --set max_msg_rate=5000")
        settings[name.strip()] = parse_value(text.strip())
    return settings


def _hash(text: str) -> int:
    try:
        value = int(text, 16 if text.lower().startswith("0x") else 10)
    except ValueError:
        value = -1
    if not 0 <= value <= FULL_UPPER:
        raise UsageError(
            f"--at {text} is not a hash", hint="Use 0x00000000 to 0xffffffff, or the same as a decimal number."
        )
    return value


def _check_range(name: str, cuts: list[int], parts: int) -> None:
    """Check hashes against the bounds in the bundle's name, before any request."""
    key = parse_key(name.encode())
    if key is None or key.is_namespace:
        return
    try:
        if cuts:
            bounds_at(key.lower, key.upper, cuts)
        else:
            even_bounds(parts, key.lower, key.upper)
    except ValueError as error:
        raise UsageError(str(error), hint=f"`statechannel positions {name}` shows its topics' hashes.") from error


positions_app = commands()

_TRIES_MAX = 4_000_000


@positions_app.command()
@with_connection
def positions(
    connect: Connect,
    bundle: Annotated[str, argument("BUNDLE|TOPIC", "The bundle; of a topic, its bundle in the live channel.")],
    topic: Annotated[list[str] | None, option("--topic", "Topic; may be repeated.")] = None,
    topics_file: Annotated[
        Path | None, option("--topics-file FILE", "File with one topic per line; `#` starts a comment.")
    ] = None,
    generate: Annotated[
        int | None, option("--generate", "Generate this number of topics inside the bundle.", min=1, max=1_000)
    ] = None,
    output: OutputAs = Output.TABLE,
) -> None:
    """Show the hashes of topics in a bundle, and the position that halves them."""
    if not is_bundle(bundle) and split_typed_topic(bundle) is not None:
        bundle = bundle_of(connect(), bundle)
    parts = _bundle(bundle)
    names = [*(topic or ()), *(_read(topics_file) if topics_file is not None else ())]
    if generate is not None or not names:
        names += _generated(parts, generate or 10)
    placed = sorted((_topic_hash(name, parts), name) for name in dict.fromkeys(names))
    inside = [(place, name) for place, name in placed if parts.contains(place)]
    outside = [(place, name) for place, name in placed if not parts.contains(place)]
    cut = _cut([place for place, _ in inside], parts)
    if output is Output.JSON:
        print_json(
            {
                "bundle": bundle,
                "topics": [{"topic": name, "hash": f"0x{place:08x}"} for place, name in inside],
                "outside": [{"topic": name, "hash": f"0x{place:08x}"} for place, name in outside],
                "halves_topics_at": None if cut is None else f"0x{cut:08x}",
                "halves_range_at": f"0x{_middle(parts):08x}",
            }
        )
        return
    rows: list[tuple[Any, ...]] = [(f"0x{place:08x}", name, True) for place, name in inside]
    rows += [(f"0x{place:08x}", name, False) for place, name in outside]
    print_table(("hash", "topic", "in the bundle"), rows)
    where = "no position divides these topics" if cut is None else f"0x{cut:08x} halves these topics"
    say(f"{where}; 0x{_middle(parts):08x} halves the range")


def _bundle(text: str) -> KeyParts:
    parts = parse_key(text.encode())
    if parts is None or parts.is_namespace or parts.lower >= parts.upper:
        raise UsageError(
            f"`{text}` is not a bundle",
            hint="Use tenant/namespace/0xLLLLLLLL_0xUUUUUUUU, lower-case, eight digits each.",
        )
    return parts


def _read(path: Path) -> list[str]:
    try:
        lines = read_text(path).splitlines()
    except UnreadableFileError as error:
        raise UsageError(f"{path} {error}", hint="Give a UTF-8 file with one topic per line.") from error
    return [line.strip() for line in lines if line.strip() and not line.strip().startswith("#")]


def _topic_hash(name: str, parts: KeyParts) -> int:
    split = split_topic(name) if "/" in name else split_topic(f"{parts.namespace}/{name}")
    if split is None:
        raise UsageError(f"`{name}` is not a topic", hint="Use tenant/namespace/topic, or its last part alone.")
    if split[0] != parts.namespace:
        raise UsageError(
            f"the topic {name} is of namespace {split[0]}, the bundle of {parts.namespace}",
            hint="Give topics of the bundle's own namespace.",
        )
    return topic_hash(split[1])


def _generated(parts: KeyParts, count: int) -> list[str]:
    names: list[str] = []
    for number in range(_TRIES_MAX):
        name = f"{parts.namespace}/topic-{number}"
        if parts.contains(topic_hash(f"persistent://{name}")):
            names.append(name)
            if len(names) == count:
                return names
    say(f"only {len(names)} names were found: the bundle is very small")
    return names


def _middle(parts: KeyParts) -> int:
    return parts.lower + (parts.upper - parts.lower) // 2


def _cut(places: list[int], parts: KeyParts) -> int | None:
    """Half-way between the two topics in the middle, as upstream's topic_count_equally_divide."""
    if len(places) < 2:  # noqa: PLR2004 - one topic cannot be divided
        return None
    left, right = places[len(places) // 2 - 1], places[len(places) // 2]
    cut = left + (right - left) // 2 + 1 if right > left else left
    return cut if parts.lower < cut < parts.upper and cut > left else None
