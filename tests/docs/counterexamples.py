"""The shortest logs that need a rule, as `design/protocol.md` shows them; the explorer has found them."""

from typing import Any

import orjson

from statechannel.protocol.codec import COLD_START_KEY, HEAD_KEY, HEARTBEAT_KEY
from statechannel.protocol.joiner import Joiner
from statechannel.protocol.view import View
from tests.explorer.counterexamples import RULES, Found, Rule, load, path_of
from tests.explorer.paths import NO_RECORD, read, truth_of
from tests.explorer.readers import states_of
from tests.explorer.world import CHILD, HIGH, LOW, ROOT, Letter
from tests.mutants import planted

NAMES = {
    ROOT: "namespace",
    LOW: "bundle",
    HIGH: "other bundle",
    CHILD: "child",
    HEARTBEAT_KEY: "!heartbeat",
    COLD_START_KEY: "!cold-start",
    HEAD_KEY: "!head",
    NO_RECORD.key: "no record",
}


def section(number: int) -> str:
    """The counterexamples of a section of the page."""
    lines = []
    for rule in RULES:
        if rule.section == number:
            lines += [rule.text, *_example(rule, load(rule)), ""]
    return "```text\n" + "\n".join(lines).rstrip() + "\n```"


def _example(rule: Rule, found: Found) -> list[str]:
    file = rule.path.relative_to(rule.path.parents[3])
    lines = [f"  without it (planted bug `{rule.plant}`, {file}):"]
    full, verdicts = View(0, 1), []
    with planted(rule.plant):
        for offset, letter in enumerate(found.log):
            verdicts.append(str(full.read(offset, *letter).verdict))
    for offset, letter in enumerate(found.log):
        lines.append(_line(offset, letter, verdicts[offset], found))
    if found.events:
        lines.append(f"  events: {', '.join(found.events)}")
    if found.voucher is not None:
        gone = " when the null and what it hid were gone" if found.voucher[1] else ""
        lines.append(f"  vouched for by a member that joined at offset {found.voucher[0] - 1}{gone}")
    if found.begin is None:
        return [*lines, f"  {found.shows}"]
    accepted, joined = _ends(rule, found)
    changed = [key for key in NAMES if accepted.get(key) != joined.get(key)]
    for key in changed[:1]:
        lines += [
            f"  accepted: {NAMES[key]} {_state(accepted.get(key))}",
            f"  joined:   {NAMES[key]} {_state(joined.get(key))}",
        ]
    return lines if changed else [*lines, f"  {found.shows}"]


def _ends(rule: Rule, found: Found) -> tuple[dict[bytes, Any], dict[bytes, Any]]:
    """What the reader of the whole log accepts, and what the one that goes wrong holds."""
    if found.events:
        path, session = path_of(found)
        truth = truth_of(path.log).view
        with planted(rule.plant):
            replica = read(path, session)
            if replica is not None and not replica.caught_up:
                replica.assume()
        return states_of(truth), {} if replica is None else states_of(replica.view)
    with planted(rule.plant):
        full = View(0, 1)
        for offset, letter in enumerate(found.log):
            full.read(offset, *letter)
        joiner = Joiner(0, 1)
        for offset, letter in enumerate(found.log[: found.begin]):
            if offset not in found.removed:
                joiner.read(offset, *letter)
        joined = joiner.view()
        for offset, letter in enumerate(found.log[found.begin :], found.begin or 0):
            joined.read(offset, *letter)
        return states_of(full), states_of(joined)


def _line(offset: int, letter: Letter, verdict: str, found: Found) -> str:
    words = "the marker of a transaction" if letter == NO_RECORD else "null"
    if letter.value is not None:
        try:
            words = _record(orjson.loads(letter.value))
        except orjson.JSONDecodeError:
            words = "bytes that are no record"
    age = found.ticks[-1] - found.ticks[offset] if found.ticks else 0
    notes = [f"{age} half lags old"] if age else []
    notes += ["cleaned away"] if offset in found.removed else []
    notes += ["deleted"] if offset < found.first else []
    note = f"   ({', '.join(notes)})" if notes else ""
    return f"  {offset}  {NAMES[letter.key]:<9}  {words}{'' if verdict == 'control' else f': {verdict}'}{note}"


def _record(fields: dict[str, Any]) -> str:
    kind = fields.get("kind", "mark")
    if kind == "heartbeat":
        names = f", of {fields['partitions']} partition, digest {fields['digest']}" if "digest" in fields else ""
        return f"clean_to {fields['clean_to']}{names}"
    if kind == "mark":
        return f"through {fields['through']}" + (f", first {fields['first']}" if "first" in fields else "")
    built_on = fields.get("asserts", fields.get("base"))
    to = f" to {fields['to']}" if fields.get("to") else ""
    words = f"{kind} {fields['id']}: {fields['state']}{to}, version {fields['version']} on {built_on or 'nothing'}"
    return f"{words}, covers {fields['covers']}"


def _state(state: tuple[Any, ...] | None) -> str:
    if state is None:
        return "does not exist"
    name, version, _, to, record_id, *_ = state
    return f"{name}{f' to {to}' if to else ''}, version {version}, by {record_id}"
