"""Command `statechannel positions`: hashes of topics in a bundle, and where to split it. Needs no Kafka."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from statechannel.cli.kit.failures import CommandError
from statechannel.cli.kit.options import OutputAs
from statechannel.cli.kit.output import Output, print_json, print_table, say
from statechannel.errors import ExitCode
from statechannel.protocol.bundle import FULL_UPPER, KeyParts, parse_key, split_topic, topic_hash

app = typer.Typer(add_completion=False, rich_markup_mode=None)

_TRIES_EACH = 4_000_000


@app.command()
def positions(
    bundle: Annotated[str, typer.Argument(metavar="BUNDLE", help="tenant/namespace/0x..._0x...")],
    topic: Annotated[list[str] | None, typer.Option("--topic", help="Topic; may be repeated.")] = None,
    topics_file: Annotated[
        Path | None,
        typer.Option("--topics-file", metavar="FILE", help="File with one topic per line; `#` starts a comment."),
    ] = None,
    generate: Annotated[
        int | None,
        typer.Option("--generate", min=1, max=1_000, help="Generate this number of topics inside the bundle."),
    ] = None,
    output: OutputAs = Output.TABLE,
) -> None:
    """Show the hashes of topics in a bundle, and the position that halves them."""
    parts = _bundle(bundle)
    names = [*(topic or ()), *(_read(topics_file) if topics_file is not None else ())]
    if generate is not None or not names:
        names += _generated(parts, generate or 10)
    placed = sorted((_hash(name, parts), name) for name in dict.fromkeys(names))
    inside = [(place, name) for place, name in placed if _inside(place, parts)]
    outside = [(place, name) for place, name in placed if not _inside(place, parts)]
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
        raise CommandError(
            f"`{text}` is not a bundle",
            hint="Use tenant/namespace/0xLLLLLLLL_0xUUUUUUUU, lower-case, eight digits each.",
            code=ExitCode.USAGE,
        )
    return parts


def _read(path: Path) -> list[str]:
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise CommandError(
            f"{path} cannot be read: {error}", hint="Give a UTF-8 file with one topic per line.", code=ExitCode.USAGE
        ) from error
    return [line.strip() for line in lines if line.strip() and not line.strip().startswith("#")]


def _hash(name: str, parts: KeyParts) -> int:
    split = split_topic(name) if "/" in name else split_topic(f"{parts.namespace}/{name}")
    if split is None:
        raise CommandError(
            f"`{name}` is not a topic", hint="Use tenant/namespace/topic, or its last part alone.", code=ExitCode.USAGE
        )
    if split[0] != parts.namespace:
        raise CommandError(
            f"the topic {name} is of namespace {split[0]}, the bundle of {parts.namespace}",
            hint="Give topics of the bundle's own namespace.",
            code=ExitCode.USAGE,
        )
    return topic_hash(split[1])


def _inside(place: int, parts: KeyParts) -> bool:
    return parts.lower <= place < parts.upper or place == parts.upper == FULL_UPPER


def _generated(parts: KeyParts, count: int) -> list[str]:
    names: list[str] = []
    for number in range(_TRIES_EACH):
        name = f"{parts.namespace}/topic-{number}"
        if _inside(topic_hash(f"persistent://{name}"), parts):
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
