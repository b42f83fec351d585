"""Lists the public API: `python -m tests.architecture.public_api` (or `make docs`) writes public_api.txt."""

import inspect
import sys
from collections.abc import Iterator
from pathlib import Path

import statechannel.api
import statechannel.asgi
import statechannel.router
import statechannel.router.transport

MODULES = (statechannel.api, statechannel.router, statechannel.router.transport, statechannel.asgi)
_PUBLIC = {name: getattr(module, name) for module in MODULES for name in module.__all__}
STORED = Path(__file__).with_name("public_api.txt")


def listing() -> str:
    """One line a public name, and one for each of its public members."""
    return "\n".join(line for name in sorted(_PUBLIC) for line in _lines(name)) + "\n"


def _lines(name: str) -> Iterator[str]:
    thing = _PUBLIC[name]
    if inspect.isfunction(thing):
        yield f"{name}{inspect.signature(thing)}"
        return
    if not inspect.isclass(thing):
        yield f"{name} = {_plain(thing)}"
        return
    yield f"class {name}({', '.join(base.__name__ for base in thing.__bases__ if base is not object)})"
    fields = getattr(thing, "__dataclass_fields__", {})
    for field in fields.values():
        yield f"    {name}.{field.name}: {field.type}"
    for member, value in sorted(_members(thing).items()):
        if member.startswith("_") or member in fields:
            continue
        if isinstance(value, property):
            yield f"    {name}.{member} -> {inspect.signature(value.fget).return_annotation}"
        elif callable(value) or isinstance(value, classmethod | staticmethod):
            function = getattr(value, "__func__", value)
            awaited = inspect.iscoroutinefunction(inspect.unwrap(function)) or inspect.isasyncgenfunction(function)
            kind = "async " if awaited else ""
            yield f"    {kind}{name}.{member}{inspect.signature(function)}"


def _members(thing: type) -> dict[str, object]:
    """Of a class and its bases in this package."""
    own = [base for base in reversed(thing.__mro__) if base.__module__.startswith("statechannel.")]
    return {name: value for base in own for name, value in vars(base).items()}


def _plain(thing: object) -> str:
    return " | ".join(part.__name__ for part in getattr(thing, "__args__", ())) or repr(thing)


def main() -> int:
    """Store the listing."""
    STORED.write_text(listing(), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
