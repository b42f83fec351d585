"""Kinds of policies: their subjects, fields and notation on the command line. Pure; the tables are the format."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final, NamedTuple

import orjson

from loaddata.model.broker_load import ResourceWeights
from loaddata.model.figures import is_count, is_figure
from shedders.model.patterns import compiled
from statechannel.errors import ExitCode, StateChannelError
from statechannel.files import load_json
from statechannel.protocol.bundle import is_bundle, is_namespace
from statechannel.protocol.codec import is_broker_id
from statechannel.suggestions import nearest

CLUSTER: Final = "cluster"  # name of policies that hold for the whole cluster
TEXT_MAX: Final = 256
PATTERNS_MAX: Final = 1_000
PATTERN_MAX: Final = 1_000
DEPTH_MAX: Final = 8
WEIGHT_MAX: Final = 100
_SHOWN_MAX: Final = 80  # number of characters of a wrong value that are shown
PATTERNS_HINT: Final = (
    "Patterns are RE2's and match whole names: no look-around, back-references or possessive groups, "
    "and no character class within another."
)


class PolicyKind(StrEnum):
    ISOLATION = "isolation"
    ANTI_AFFINITY = "anti-affinity"
    DOMAIN = "domain"
    PIN = "pin"
    CORDON = "cordon"
    EXCLUDE = "exclude"
    QUOTA = "quota"
    WEIGHTS = "weights"
    MANAGER = "manager"
    SHEDDING = "shedding"
    UNLOAD_MODE = "unload-mode"
    SHED_WITH_POLICIES = "shed-bundles-with-policies"
    SETTING = "setting"


class BadPolicyError(StateChannelError):
    """A policy is not valid for its kind; nothing was written."""

    exit_code = ExitCode.USAGE


class Form(NamedTuple):
    """The form of a field: why a value is not valid (None if it is), and the conversion of a text from the command line.

    Attributes:
        words: The possible values, if these are a few.
    """

    wrong: Callable[[Any], str | None]
    read: Callable[[str], Any]
    words: tuple[str, ...] = ()


REQUIRED: Final = object()


@dataclass(frozen=True, slots=True)
class Field:
    """One field of a kind.

    Attributes:
        default: Value if the field is left out; `REQUIRED`: it must not be.
    """

    name: str
    form: Form
    about: str
    default: Any = REQUIRED


@dataclass(frozen=True, slots=True)
class KindRule:
    """One kind.

    Attributes:
        named: What its name is, for messages.
        fields: In the order in which they are shown.
        whole: What is wrong with the combination of fields; None if nothing is.
    """

    about: str
    named: str
    is_name: Callable[[str], bool]
    fields: tuple[Field, ...] = ()
    whole: Callable[[Mapping[str, Any]], str | None] = lambda _: None

    @property
    def lone(self) -> Field | None:
        """The field that a value without a name belongs to."""
        return self.fields[0] if len(self.fields) == 1 else None

    @property
    def form(self) -> str:
        if self.lone is not None:
            return "|".join(self.lone.form.words) or self.lone.name.upper()
        return " ".join(
            field.name + "=..." if field.default is REQUIRED else f"[{field.name}=...]" for field in self.fields
        )


# --- forms ----------------------------------------------------------------------------------------------------------


def _patterns_wrong(value: Any) -> str | None:
    if not isinstance(value, list) or not all(isinstance(pattern, str) for pattern in value):
        return "is not a list of regular expressions"
    if len(value) > PATTERNS_MAX or any(not 0 < len(pattern) <= PATTERN_MAX for pattern in value):
        return f"has more than {PATTERNS_MAX} patterns, or one of 0 or more than {PATTERN_MAX} characters"
    patterns = compiled(value)
    return f"has an invalid pattern: {patterns}" if isinstance(patterns, str) else None


def _read_patterns(text: str) -> Any:
    """One pattern, or a JSON list of them; `[a-z]+/x` is not JSON and thus a pattern."""
    try:
        loaded = orjson.loads(text)
    except orjson.JSONDecodeError:
        return [text]
    return loaded if isinstance(loaded, list) else [text]


def _number(text: str) -> Any:
    try:
        return int(text)
    except ValueError:
        pass
    try:
        return float(text)
    except ValueError:
        return text


def _text_wrong(value: Any) -> str | None:
    ok = isinstance(value, str) and len(value.strip()) > 0 and len(value) <= TEXT_MAX and value.isprintable()
    return None if ok else f"is not a text of 1 to {TEXT_MAX} printable characters"


def _words(*words: str, **meaning: Any) -> Form:
    """A form with a fixed set of words, each with its value.

    Args:
        words: The documented ones; the others are accepted as well.
    """
    known = list(meaning.values())

    def wrong(value: Any) -> str | None:
        if any(type(value) is type(meant) and value == meant for meant in known):
            return None
        if isinstance(value, str) and value in meaning:  # a record that another program wrote
            return f"is the text {value}; a record has {json.dumps(meaning[value])} for it"
        return f"is {json.dumps(value, default=str)[:_SHOWN_MAX]}; expected {' or '.join(words)}"

    return Form(wrong, lambda text: meaning.get(text, text), words)


def _json_wrong(value: Any, depth: int = 0) -> str | None:
    if depth > DEPTH_MAX:
        return f"is nested more than {DEPTH_MAX} deep"
    if isinstance(value, list | dict):
        parts = value.values() if isinstance(value, dict) else value
        return next((why for part in parts if (why := _json_wrong(part, depth + 1)) is not None), None)
    return None if value is None or isinstance(value, str | int | float) else "is not a JSON value"


def _read_json(text: str) -> Any:
    """The decoded JSON, or the text itself if it is not JSON."""
    if text.lower() == "none":
        return None
    try:
        return load_json(text.encode())
    except ValueError:
        return text


PATTERNS = Form(_patterns_wrong, _read_patterns)
COUNT = Form(lambda value: None if is_count(value) else "is not a whole number of at least 0", _number)
RATE = Form(lambda value: None if is_figure(value) else "is not a number of at least 0", _number)
_NO_WEIGHT = f"is not a number from 0 to {WEIGHT_MAX}"
WEIGHT = Form(lambda value: None if is_figure(value) and value <= WEIGHT_MAX else _NO_WEIGHT, _number)
TEXT = Form(_text_wrong, str)
BROKER = Form(lambda value: None if is_broker_id(value) else "is not a broker id", str)
SWITCH = _words("on", "off", on=True, off=False, true=True, false=False, yes=True, no=False)
MANAGERS = _words("extensible", "modular", extensible="extensible", modular="modular")
MODES = _words("transfer", "unload", transfer="transfer", unload="unload")
ANY_JSON = Form(_json_wrong, _read_json)

_POLICY_NAME = re.compile(r"[A-Za-z0-9_=:.\-]{1,128}", re.ASCII).fullmatch
_DOTTED = re.compile(r"[a-z0-9_\-]{1,64}(?:\.[a-z0-9_\-]{1,64}){0,3}", re.ASCII).fullmatch


def _is_cluster(name: str) -> bool:
    return name == CLUSTER


def _isolation_whole(value: Mapping[str, Any]) -> str | None:
    if not value["namespaces"]:
        return "namespaces is empty: it applies to no namespace"
    return None if value["primary"] or value["secondary"] else "it names neither primary nor secondary brokers"


_RATES = (
    Field("msg_rate_in", RATE, "Incoming messages a second.", 0.0),
    Field("msg_rate_out", RATE, "Outgoing messages a second.", 0.0),
    Field("msg_throughput_in", RATE, "Incoming bytes a second.", 0.0),
    Field("msg_throughput_out", RATE, "Outgoing bytes a second.", 0.0),
)
_WEIGHTS = tuple(
    Field(name, WEIGHT, f"Weight of {about}.", ResourceWeights._field_defaults[name])
    for name, about in (
        ("cpu", "CPU"),
        ("memory", "the heap"),
        ("direct_memory", "direct memory"),
        ("bandwidth_in", "incoming bandwidth"),
        ("bandwidth_out", "outgoing bandwidth"),
    )
)

RULES: Final[Mapping[PolicyKind, KindRule]] = {
    PolicyKind.ISOLATION: KindRule(
        "Which brokers some namespaces may use; policies are matched in the order of their names.",
        "a name of your choice",
        lambda name: _POLICY_NAME(name) is not None,
        (
            Field("namespaces", PATTERNS, "Regular expressions of whole names tenant/namespace."),
            Field("primary", PATTERNS, "Regular expressions of whole addresses of brokers, without the port.", []),
            Field("secondary", PATTERNS, "Addresses of stand-by brokers, likewise.", []),
            Field("min_available", COUNT, "If fewer primaries than this can take a bundle, secondaries may.", 1),
        ),
        _isolation_whole,
    ),
    PolicyKind.ANTI_AFFINITY: KindRule(
        "A namespace belongs to a group that should not fail together.",
        "a namespace",
        is_namespace,
        (Field("group", TEXT, "Its group, case-insensitive."),),
    ),
    PolicyKind.DOMAIN: KindRule(
        "The failure domain of a broker; it overrides the broker's own setting.",
        "a broker id",
        is_broker_id,
        (Field("domain", TEXT, "Its failure domain."),),
    ),
    PolicyKind.PIN: KindRule(
        "A bundle or namespace is placed only on this broker, and kept there; a pin itself moves nothing.",
        "a bundle or namespace",
        lambda name: is_bundle(name) or is_namespace(name),
        (Field("broker", BROKER, "The broker."),),
    ),
    PolicyKind.CORDON: KindRule("A broker takes no bundles; those that it has stay.", "a broker id", is_broker_id),
    PolicyKind.EXCLUDE: KindRule("A namespace is never shed.", "a namespace", is_namespace),
    PolicyKind.QUOTA: KindRule(
        "Rates of a bundle that are used instead of its averages.", "a bundle", is_bundle, _RATES
    ),
    PolicyKind.WEIGHTS: KindRule(
        "Weights of the resources in the weighted maximum.", f"`{CLUSTER}`", _is_cluster, _WEIGHTS
    ),
    PolicyKind.MANAGER: KindRule(
        "Which of the two load managers is active.",
        f"`{CLUSTER}`",
        _is_cluster,
        (Field("manager", MANAGERS, "extensible: the newer one; modular: the older one."),),
    ),
    PolicyKind.SHEDDING: KindRule(
        "Whether bundles are moved automatically.", f"`{CLUSTER}`", _is_cluster, (Field("on", SWITCH, "on or off."),)
    ),
    PolicyKind.UNLOAD_MODE: KindRule(
        "How bundles are moved.",
        f"`{CLUSTER}`",
        _is_cluster,
        (
            Field(
                "mode",
                MODES,
                "transfer: to a broker chosen in advance; unload: released, and placed at the next lookup.",
            ),
        ),
    ),
    PolicyKind.SHED_WITH_POLICIES: KindRule(
        "Whether bundles of namespaces with isolation or anti-affinity policies may be shed.",
        f"`{CLUSTER}`",
        _is_cluster,
        (Field("allowed", SWITCH, "on or off."),),
    ),
    PolicyKind.SETTING: KindRule(
        "A setting of a strategy, of the filters or of splitting, in place of the configured one.",
        "the dotted name of a setting (shedding.threshold.NAME, filters.NAME, ...)",
        lambda name: _DOTTED(name) is not None,
        (Field("value", ANY_JSON, "Its value; it is validated when it is set."),),
    ),
}


_SHORT = frozenset({"filters", "splitting"})


def canonical(name: str) -> str:
    """The full name of a setting: `filters.x` is `parts.filters.x`."""
    first, dot, _ = name.partition(".")
    return f"parts.{name}" if first in _SHORT and dot else name


# --- from people ----------------------------------------------------------------------------------------------------


def kind_of(text: str) -> PolicyKind:
    """The kind of that name.

    Raises:
        BadPolicyError: There is none; with a suggestion.
    """
    known = [str(kind) for kind in PolicyKind]
    if text in known:
        return PolicyKind(text)
    near = nearest(text, known)
    meant = f"did you mean {near[0]}? " if near else ""
    raise BadPolicyError(f"unknown kind of policy `{text}`", hint=f"{meant}Known kinds: {', '.join(known)}.")


def name_and_words(kind: PolicyKind, words: Sequence[str]) -> tuple[str, list[str]]:
    """Split the arguments after the kind into name and values; kinds for the whole cluster may leave the name out.

    Raises:
        BadPolicyError: The name is missing, or not valid for that kind.
    """
    rule = RULES[kind]
    remaining = list(words)
    if rule.is_name is _is_cluster:
        return CLUSTER, remaining[1:] if remaining[:1] == [CLUSTER] else remaining
    if not remaining or not rule.is_name(remaining[0]):
        if not remaining:
            raise BadPolicyError(f"the name of the policy is missing: {rule.named}", hint=usage(kind))
        topic = " `statechannel lookup TOPIC` names a topic's bundle." if remaining[0].count("/") > 1 else ""
        raise BadPolicyError(
            f"`{remaining[0]}` is not {rule.named}, the name of a policy of kind {kind}", hint=f"{usage(kind)}{topic}"
        )
    return remaining[0], remaining[1:]


def value_from(kind: PolicyKind, words: Sequence[str]) -> dict[str, Any]:
    """The fields of a policy from arguments: `field=value` texts, or the bare value of the only field.

    Raises:
        BadPolicyError: A field is unknown, missing, or has an invalid value.
    """
    rule = RULES[kind]
    known = {field.name: field for field in rule.fields}
    values: dict[str, Any] = {}
    for word in words:
        name, equals, text = word.partition("=")
        if rule.lone is not None and (not equals or name not in known):
            name, equals, text = rule.lone.name, "=", word
        if not equals or name not in known:
            near = nearest(name, known)
            meant = f"; did you mean `{near[0]}`?" if near else ""
            raise BadPolicyError(f"policies of kind {kind} have no `{name}`{meant}", hint=usage(kind))
        value = known[name].form.read(text)
        if name in values and known[name].form is not PATTERNS:
            raise BadPolicyError(f"`{name}` is duplicated", hint=usage(kind))
        values[name] = [*values.get(name, []), *value] if known[name].form is PATTERNS else value
    if rule.fields and not values:
        raise BadPolicyError(f"a policy of kind {kind} needs a value", hint=usage(kind))
    fields = complete(kind, values)
    if isinstance(fields, str):
        patterns = f" {PATTERNS_HINT}" if any(field.form is PATTERNS for field in rule.fields) else ""
        raise BadPolicyError(f"{kind}: {fields}", hint=f"{usage(kind)}{patterns}")
    return fields


def usage(kind: PolicyKind) -> str:
    rule = RULES[kind]
    name = "" if rule.is_name is _is_cluster else " NAME"
    form = f" {rule.form}" if rule.fields else ""
    return f"Use: statechannel policy set {kind}{name}{form}{f'; NAME is {rule.named}' if name else ''}."


def complete(kind: PolicyKind, values: Mapping[str, Any]) -> dict[str, Any] | str:
    """The fields with defaults for those left out, or what is wrong with them."""
    rule = RULES[kind]
    unknown = sorted(values.keys() - {field.name for field in rule.fields})
    if unknown:
        return f"unknown field `{unknown[0]}`"
    completed: dict[str, Any] = {}
    for field in rule.fields:
        value = values.get(field.name, field.default)
        if value is REQUIRED:
            return f"`{field.name}` is missing"
        wrong = field.form.wrong(value)
        if wrong is not None:
            return f"{field.name} {wrong}"
        completed[field.name] = value
    return rule.whole(completed) or completed
