"""design/reference/api.md: the public API from its docstrings, and the tables of stable words."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from statechannel.broker import next_steps
from statechannel.broker.exits import STOP_REASONS
from tests.architecture.public_api import MODULES
from tests.docs.blocks import table

GROUPS: Final[Mapping[str, tuple[str, Sequence[str]]]] = {
    "A member": (
        "Open one with `StateChannel.open`, in one event loop, or with `BlockingStateChannel.open`, from any thread.",
        (
            "StateChannel", "Opening", "load_settings", "Settings", "SettingGroups", "Ticket", "PendingTicket",
            "BlockingStateChannel", "BlockingTicket",
        ),
    ),
    "Hooks": (
        "What the channel calls; order, deadlines and failures: [hooks.md](../hooks.md).",
        ("BrokerHooks", "BlockingBrokerHooks"),
    ),
    "Answers": (
        "Expected ends are values. `Outcome` is any of them; match on the class, then on its stable words.",
        (
            "Owned", "Unowned", "BoundTo", "NotFound", "Undetermined", "Declined", "Started", "Done", "Rejected", "Unknown",
        ),
    ),
    "The end of a member": ("", ("Stopped",)),
    "Bundles and topics": ("For stores with a shard a bundle.", ("BundleRange", "topic_hash")),
    "Changes": ("What `StateChannel.changes` streams.", ("Change", "Derived", "StreamEnd")),
    "Requests of clients": (
        "What `StateChannel.guard` answers, right before each use.",
        ("Admission", "Redirect", "AdmittedCounts"),
    ),
    "Routers": (
        "In `statechannel.router`: for programs that are no brokers ([router.md](../router.md)).",
        ("Router", "RouterOpening", "BlockingRouter", "Route", "ChangesGap"),
    ),
    "In a server": (
        "In `statechannel.asgi` and `statechannel.router.transport`: a broker in FastAPI, or any other app of ASGI, and its "
        "clients:\n[processes.md](../processes.md#in-a-web-server).",
        ("channel_in_server", "GuardMiddleware", "RouterTransport"),
    ),
    "Status": (
        "What `StateChannel.status` returns: dictionaries with these keys. Keys may be added.",
        ("MemberStatus", "PartitionStatus", "FlightStatus", "RuntimeStatus"),
    ),
    "Errors": (
        "Every error has `code`, `retryable`, `hint` and `exit_code` ([errors.md](errors.md)).",
        (
            "StateChannelError", "ArgumentTypeError", "ArgumentValueError", "ChangesError", "ChannelStoppedError",
            "HookReentryError", "JoinTimeoutError", "KafkaAdapterError", "NoListenerError", "SettingsError", "WrongLoopError",
        ),
    ),
}  # fmt: skip
"""Headings, what is said below them, and the names in their order."""
_SECTION = re.compile(r"^(Args|Attributes|Returns|Raises|Example):$")
_ITEM = re.compile(r"^ {4}(\w[\w, ]*): (.*)$")
_LABELS = {"Args": "Arguments", "Attributes": "Fields", "Returns": "Returns", "Raises": "Raises"}


def api_page() -> Iterator[str]:
    """Its lines, without two empty ones in a row."""
    before = "a line"
    for line in _page():
        if line or before:
            yield line
        before = line


def public(name: str) -> Any:
    """A public name of any of the modules."""
    return getattr(next(module for module in MODULES if name in module.__all__), name)


def _page() -> Iterator[str]:
    yield "# Python API"
    yield ""
    yield f"Made from the docstrings of {', '.join(f'`{module.__name__}`' for module in MODULES)}\nby `make docs`."
    yield "Names that are not here may change without notice."
    for heading, (text, names) in GROUPS.items():
        yield from ("", f"## {heading}")
        if text:
            yield from ("", text)
        for name in names:
            yield from _thing(name, public(name))
    yield from _words()


def _thing(name: str, thing: Any) -> Iterator[str]:
    yield ""
    if not inspect.isclass(thing):
        yield f"### {name}"
        yield from ("", f"`{name}{_signature(thing)}`", *documented(inspect.getdoc(thing) or ""))
        return
    yield f"### {name}"
    yield from documented(inspect.getdoc(thing) or "")
    fields = getattr(thing, "__dataclass_fields__", None) or getattr(thing, "_fields", None) or _typed(thing)
    if fields:
        kinds = inspect.get_annotations(thing).items()
        types = {field: str(getattr(kind, "__forward_arg__", kind)) for field, kind in kinds}
        yield from ("", "`" + ", ".join(f"{field}: {types.get(field, 'Any')}" for field in fields) + "`")
    same = []
    for member, value in _members(thing):
        function = getattr(value, "__func__", getattr(value, "fget", value))
        text = inspect.getdoc(function) or ""
        if text.startswith("See `") and "\n" not in text and len(text) < len(member) + 30:
            same.append(f"`{member}`")
            continue
        kind = (
            "async "
            if inspect.iscoroutinefunction(inspect.unwrap(function)) or inspect.isasyncgenfunction(function)
            else ""
        )
        shown = member if isinstance(value, property) else f"{member}{_signature(function)}"
        yield from ("", f"**`{kind}{shown}`**", *documented(text))
    if same:
        yield from ("", f"As there: {', '.join(same)}.")


def _typed(thing: Any) -> Sequence[str]:
    return list(thing.__annotations__) if hasattr(thing, "__required_keys__") else ()


def _members(thing: type) -> list[tuple[str, Any]]:
    """Of a class and its bases in this package, in the order of the code."""
    found: dict[str, Any] = {}
    for base in thing.__mro__:
        if base.__module__.startswith("statechannel."):
            found |= {name: value for name, value in vars(base).items() if name not in found}
    fields = {*getattr(thing, "__dataclass_fields__", ()), *getattr(thing, "_fields", ())}
    return [
        (name, value)
        for name, value in found.items()
        if not name.startswith("_") and name not in fields
        if isinstance(value, property | classmethod | staticmethod) or inspect.isfunction(value)
    ]


def _signature(function: Any) -> str:
    shown = str(inspect.signature(function)).replace("'", "")
    return re.sub(r"^\((?:self|cls)(?:, )?", "(", shown)


def documented(text: str) -> Iterator[str]:
    """A docstring as Markdown: its sections become lists."""
    section, paragraph = "", True
    for line in text.splitlines():
        heading = _SECTION.match(line)
        item = _ITEM.match(line) if section and section not in ("Example", "Returns") else None
        if paragraph and not heading:
            yield ""
            paragraph = False
        if heading:
            section = heading.group(1)
            if section != "Example":
                yield from ("", f"{_LABELS[section]}:", "")
            else:
                yield ""
        elif not line.strip():
            paragraph = not section
            if section and section != "Example":
                section = ""
                paragraph = True
        elif item is not None:
            names = ", ".join(f"`{name.strip()}`" for name in item.group(1).split(","))
            yield f"- {names}: {item.group(2)}"
        elif section == "Returns":
            yield (
                f"- {line.strip()}" if line.startswith("    ") and not line.startswith("     ") else f"  {line.strip()}"
            )
        else:
            yield (
                f"  {line.strip()}"
                if section and section != "Example"
                else line.removeprefix("    " if section else "")
            )


def _words() -> Iterator[str]:
    """The stable words that answers may carry, with the next step."""
    yield from (
        "",
        "## Stable words",
        "",
        "Words may be added; none changes its meaning. The next step is the `hint` of an answer without a more special one.",
    )
    for heading, found in (
        ("Rejected.reason", next_steps.REJECTED), ("Undetermined.reason", next_steps.UNDETERMINED),
        ("NotFound.reason", next_steps.NOT_FOUND),
    ):  # fmt: skip
        rows = [(f"`{word}`", _plain(hint)) for word, hint in found.items()]
        yield from ("", f"### {heading}", "", *table(("word", "next step"), rows).splitlines())
    rows = [(f"`{word}`", meaning) for word, meaning in STOP_REASONS.items()]
    yield from ("", "### Stopped.reason", "", *table(("word", "meaning"), rows).splitlines())


def _plain(hint: str) -> str:
    return re.sub(r"\{(\w+)\}", lambda match: match.group(1).upper(), hint)
