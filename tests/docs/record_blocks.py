"""Tables of `design/records.md`. Where a field is required, and whether anything depends on its type, is asked of the codec."""

import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from statechannel.protocol import bundle, codec, unknown_fields
from statechannel.protocol.codec import encode
from statechannel.protocol.record import Record
from statechannel.protocol.verdict import Verdict
from statechannel.protocol.view import View

NAMESPACE = "acme/orders"
LEFT, RIGHT = "0x00000000_0x80000000", "0x80000000_0xffffffff"
QUARTERS = ("0x00000000_0x40000000", "0x40000000_0x80000000")


class Field(NamedTuple):
    """A field of a record, in words; what can be tried is tried."""

    name: str
    type: str
    judged_by: str
    meaning: str


_BY = "the writing process: serves what its records make it own ([states and moves](protocol.md#2-states-and-moves))"
SERVICE, RESOLVER, LEDGER, READERS = "who serves; cold start", "verdict", "debts and joins", "not judged"
FIELDS = (
    Field("format", "int", RESOLVER, "1. A reader that does not know a higher number stops judging the partition"),
    Field("kind", "`proposal`, `assert`, `heartbeat`", RESOLVER, "what the record wants"),
    Field("id", "1-64 of `A-Za-z0-9-`", RESOLVER, "unique; a ULID or UUIDv7. An assert has an id of its own"),
    Field("covers", "int from -1", LEDGER, "offset of this partition through which the writer had applied; -1: nothing"),
    Field("by", '`{"broker", "incarnation"}`', SERVICE, _BY),
    Field("version", "int from 0", RESOLVER, "proposal: the next ([terms](protocol.md#1-terms)); assert: accepted, 0 for Absent"),
    Field("base", "id, `id/<range>` or null", RESOLVER, "id of the accepted record below it; null: the key never existed"),
    Field("asserts", "id, `id/<range>` or null", RESOLVER, "id of the accepted record that an assert restates; null for Absent"),
    Field("state", "a state", RESOLVER, "the state proposed or restated; an assert may say `Absent`: the key does not exist"),
    Field("from", "broker id or null", RESOLVER, "the broker that hands over or lets go, see below"),
    Field("to", "broker id or null", RESOLVER, "the broker that is to own the bundle, or owns it, see below"),
    Field("children", f"list of at most {bundle.MAX_CHILDREN:,} ranges", RESOLVER, "the bundles; the parts of a split"),
    Field("forced", "bool, default false", RESOLVER, "a repair of a bundle: legal from every state but Deleted"),
    Field("clean_to", "int from -1", LEDGER, "all was applied, and no key in debt, through this offset; -1: there is debt"),
    Field("partitions", "any", READERS, "in a heartbeat: number of partitions by which its writer distributes keys"),
    Field("keys", "any", READERS, "in a heartbeat: number of keys with an accepted state at `covers`"),
    Field("digest", "any", READERS, "in a heartbeat: [digest](#8-digest) of these keys, 16 hex digits"),
    Field("highest", "any", READERS, "in a heartbeat: highest version of any key, now or before"),
    Field("action", "any", READERS, "the word for the move (table of moves in [protocol.md](protocol.md))"),
    Field("flow", "any", READERS, "`assignment`, `transfer`, `unload`, `split`, `namespace`, `repair` or `shutdown`"),
    Field("operation", "any", READERS, "id of the command that caused it; reactions and asserts copy it, and `flow`"),
    Field("decision", "any", READERS, "id of the decision of the balancer that wants the move"),
    Field("reason", "any", READERS, "a text for people"),
    Field("written_at_ms", "any", READERS, "the writer's wall clock; the time of record is Kafka's"),
    Field("lost", "any", READERS, '`{"broker", "incarnation", "last_heard_ms"}` in a repair, for the audit'),
    Field("server", "any", READERS, "in an assert: who serves the bundle, or the children of a split; members that join need it"),
)  # fmt: skip


class Example(NamedTuple):
    """A record of the story that the page tells."""

    title: str
    key: str
    fields: Mapping[str, Any]


def _story() -> Iterator[Example]:
    head = {"format": 1, "by": {"broker": "b1", "incarnation": "b1-1"}}
    of_b2 = {**head, "by": {"broker": "b2", "incarnation": "b2-1"}}  # who owns the bundle from record 8 on
    name, left = NAMESPACE, f"{NAMESPACE}/{LEFT}"

    def proposal(number: int, version: int, base: str | None, state: str, **more: Any) -> dict[str, Any]:
        own = {"kind": "proposal", "id": f"r{number}", "covers": number - 1, "version": version, "base": base}
        return {**(of_b2 if number in (8, 9, 10) else head), **own, "state": state, **more}

    yield Example("a namespace of two bundles", name, proposal(0, 1, None, "Active", children=[LEFT, RIGHT]))
    yield Example("one is assigned", left, proposal(1, 2, f"r0/{LEFT}", "Assigning", **{"from": None, "to": "b1"}))
    yield Example("its broker acknowledges", left, proposal(2, 3, "r1", "Assigned", **{"from": None, "to": "b1"}))
    yield Example("a transfer begins", left, proposal(3, 4, "r2", "Releasing", **{"from": "b1", "to": "b2"}))
    late = proposal(4, 4, "r2", "Splitting", **{"from": "b1", "to": None}) | {"covers": 2}
    yield Example("a late proposal loses", left, late)
    assertion = {"kind": "assert", "id": "r5", "covers": 4, "version": 4, "asserts": "r3", "state": "Releasing"}
    yield Example("an assert pays the debt", left, {**head, **assertion, "from": "b1", "to": "b2"})
    yield Example(
        "a clean heartbeat", "!heartbeat", {**head, "kind": "heartbeat", "id": "r6", "covers": 5, "clean_to": 5}
    )
    yield Example("the source has let go", left, proposal(7, 5, "r3", "Assigning", **{"from": "b1", "to": "b2"}))
    yield Example("the destination serves", left, proposal(8, 6, "r7", "Assigned", **{"from": "b1", "to": "b2"}))
    yield Example("a split begins", left, proposal(9, 7, "r8", "Splitting", **{"from": "b2", "to": None}))
    split = proposal(10, 8, "r9", "Deleted", **{"from": "b2", "to": None, "children": list(QUARTERS)})
    yield Example("and commits", left, split)
    child = f"{NAMESPACE}/{QUARTERS[0]}"
    lost = {"broker": "b2", "incarnation": "b2-1", "last_heard_ms": 1_750_000_000_000}
    repair = proposal(
        11, 10, f"r10/{QUARTERS[0]}", "Assigning", **{"from": None, "to": "b1", "forced": True, "lost": lost}
    )
    yield Example("the owner of a child is lost", child, repair)


def _verdicts(story: Iterable[Example]) -> list[Verdict]:
    """As the fold gives them."""
    view = View(0, 1)
    return [
        view.read(offset, example.key.encode(), encode(dict(example.fields))).verdict
        for offset, example in enumerate(story)
    ]


def examples() -> str:
    """Records with their verdicts."""
    lines = []
    for offset, (example, verdict) in enumerate(zip(_story(), _verdicts(_story()), strict=True)):
        lines += [f"# offset {offset}, {example.key}: {example.title}: {verdict}", json.dumps(example.fields), ""]
    return "```text\n" + "\n".join(lines).rstrip() + "\n```"


def _decoded(example: Example, fields: Mapping[str, Any]) -> bool:
    value = encode(dict(fields))
    if example.key == "!heartbeat":
        return codec.decode_heartbeat(value) is not None
    return isinstance(codec.decode(value, namespace="/0x" not in example.key), Record)


def required_in(name: str) -> str:
    """Where the codec refuses a record without this field."""
    where = [example for example in _story() if name in example.fields]
    needed = [
        example
        for example in where
        if not _decoded(example, {key: value for key, value in example.fields.items() if key != name})
    ]
    if not needed:
        return "optional"
    kinds = {example.fields["kind"] for example in needed}
    everywhere = all(example in needed for example in _story())
    if everywhere:
        return "all but marks"
    if name == "children":
        states = {example.fields["state"] for example in needed}
        return " and ".join(sorted(states))
    bundles_only = all("/0x" in example.key for example in needed)
    return ("bundles: " if bundles_only and name in ("from", "to") else "") + ", ".join(sorted(kinds, reverse=True))


def takes_anything(name: str) -> bool:
    """Whether records decode and are judged alike whatever the value of this field."""
    odd = [Example(title, key, {**values, name: {"any": [1, None]}}) for title, key, values in _story()]
    return all(_decoded(example, example.fields) for example in odd) and _verdicts(odd) == _verdicts(_story())


def fields() -> str:
    """The table of fields."""
    known = {field.name for field in FIELDS}
    if known != unknown_fields.KNOWN:
        raise AssertionError(f"the table of fields differs from the codec's: {known ^ unknown_fields.KNOWN}")
    for field in FIELDS:
        if takes_anything(field.name) != (field.judged_by == READERS):
            raise AssertionError(f"whether `{field.name}` is judged is not as the table says")
    lines = ["| field | type | required in | decides | meaning |", "| --- | --- | --- | --- | --- |"]
    lines += [
        f"| `{field.name}` | {field.type} | {required_in(field.name)} | {field.judged_by} | {field.meaning} |"
        for field in FIELDS
    ]
    return "\n".join(lines)


def limits() -> str:
    """The limits of a value."""
    rows = (
        ("bytes of a value", f"{codec.MAX_VALUE_SIZE_BYTES:,}"),
        ("depth of nesting (the outermost object is level 1; brackets of the text count)", f"{codec.MAX_DEPTH}"),
        ("integers", f"{codec.MAX_INT:,} (2^53 - 1); no fraction, exponent or bool"),
        ("ranges in `children`", f"{bundle.MAX_CHILDREN:,}"),
        ("unknown fields handed on with an assert or a reaction", f"{unknown_fields.KEPT_MAX_BYTES:,} bytes a record"),
    )
    return "| limit | value |\n| --- | --- |\n" + "\n".join(f"| {name} | {value} |" for name, value in rows)
