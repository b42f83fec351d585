"""Every reason that a person can see has a hint; the reasons are those that stand in the code."""

import ast
import re
from collections.abc import Iterable
from functools import cache
from pathlib import Path

import pytest

from shedders.balancer.request_handlers import FILTERED
from statechannel.broker import next_steps
from statechannel.broker.next_steps import hint_for, with_next_step
from statechannel.engine.commands import CreateNamespace, Done, NotFound, Rejected, Shutdown, Undetermined, Unload
from statechannel.engine.context import Mode
from statechannel.engine.effects import Complete, Effect
from statechannel.engine.engine import Engine
from statechannel.engine.inputs import CommandReceived, Input, Now
from statechannel.engine.kafka_limits import RefusalReason
from statechannel.protocol.verdict import REJECTIONS, Verdict
from statechannel.settings import to_engine, to_identity
from tests.architecture.house_rules import tree
from tests.docs.blocks import command_options
from tests.support.lone_member import lone_host, lone_settings

ROOT = Path(__file__).parents[3]
PACKAGE = ROOT / "statechannel"
PACKAGES = (PACKAGE, ROOT / "shedders")
OPERATION = "01ARZ3NDEKTSV4RRFFQ69G5FAV"

# What stands where a word should: the words that it may become. Another expression fails the test until it is listed.
EXPRESSIONS = {
    "result.verdict": {str(item) for item in REJECTIONS},
    "result.refusal.reason": set(RefusalReason),
    "operation.result": {"superseded", "declined", "taken-back", "given-up"},
    "f'{self.mode}-mode'": {f"{mode}-mode" for mode in Mode if mode is not Mode.NORMAL},
    "refusal.reason.value": set(RefusalReason),
    "wait.reason": {"joining", "timed-out", "no-broker-allowed", "owner-not-heard", "no-broker"},
    "FILTERED": {FILTERED},
}


@cache
def _calls() -> list[ast.Call]:
    return [
        node
        for file in sorted(file for package in PACKAGES for file in package.rglob("*.py"))
        if not file.is_relative_to(PACKAGE / "sim")
        for node in ast.walk(tree(file))
        if isinstance(node, ast.Call) and node.args
    ]


def _words(expression: ast.expr) -> set[str]:
    if isinstance(expression, ast.Constant) and isinstance(expression.value, str):
        return {expression.value}
    if isinstance(expression, ast.IfExp):
        return _words(expression.body) | _words(expression.orelse)
    text = ast.unparse(expression)
    if text.startswith("Verdict."):
        return {str(Verdict[text.removeprefix("Verdict.")])}
    assert text in EXPRESSIONS, f"which words can {text} become?"
    return EXPRESSIONS[text]


def _reasons(name: str) -> set[str]:
    return {
        word
        for call in _calls()
        if getattr(call.func, "id", getattr(call.func, "attr", "")) == name
        for word in _words(call.args[0])
    }


def test_every_reason_of_the_code_has_a_hint_and_every_hint_its_reason() -> None:
    rejected, undetermined = _reasons("Rejected"), _reasons("Undetermined")
    assert len(rejected) > 30
    assert rejected == set(next_steps.REJECTED)
    assert undetermined == set(next_steps.UNDETERMINED)
    assert _reasons("NotFound") == set(next_steps.NOT_FOUND)


def test_operations_fail_with_the_words_that_are_listed() -> None:
    text = (PACKAGE / "engine" / "operation_fold.py").read_text(encoding="utf-8")
    assert set(re.findall(r'FAILED, "([a-z-]+)"', text)) == EXPRESSIONS["operation.result"]


ALL = [
    *(Rejected(reason, "tenant/ns/0x00000000_0x80000000: said") for reason in next_steps.REJECTED),
    *(Undetermined(reason, "said") for reason in next_steps.UNDETERMINED),
    *(NotFound(reason, "said") for reason in next_steps.NOT_FOUND),
]


@pytest.mark.parametrize("name", ["tenant/ns/topic", "tenant/ns", ""])
def test_hints_are_whole_sentences_about_commands_that_exist(name: str) -> None:
    options = command_options()
    for outcome in ALL:
        hint = hint_for(outcome, name=name, operation=OPERATION)
        assert hint[:1].isupper() or hint.startswith("`"), hint
        assert "{" not in hint, hint
        for shown in re.findall(r"`(statechannel [^`]+)`", hint):
            words = shown.split()
            commands = [" ".join(words[:n]) for n in range(2, len(words) + 1) if " ".join(words[:n]) in options]
            assert commands, shown
            assert {word for word in words if word.startswith("-")} <= options[commands[-1]], shown


def test_a_hint_names_what_was_asked_about() -> None:
    late = Rejected("stale-version", "tenant/ns/0x00000000_0x80000000: another change was first")
    assert "`statechannel audit history 'persistent://tenant/ns/my topic'`" in hint_for(
        late, name="persistent://tenant/ns/my topic"
    )
    split = Rejected("bad-split", "too small", bundle="tenant/ns/0x00000000_0x80000000")
    assert "`statechannel positions tenant/ns/0x00000000_0x80000000`" in hint_for(split, name="tenant/ns/topic")
    nowhere = NotFound("unknown-namespace", "there is no namespace tenant/ns")
    assert "`statechannel namespace create tenant/ns`" in hint_for(nowhere, name="tenant/ns/topic")


BUNDLE = "tenant/ns/0x00000000_0x80000000"


@pytest.mark.parametrize(
    ("name", "bundle", "shown"),
    [
        ("", None, ("NAME", "BUNDLE", "TENANT/NAMESPACE")),
        ("", BUNDLE, (BUNDLE, BUNDLE, "TENANT/NAMESPACE")),
        (BUNDLE, None, (BUNDLE, BUNDLE, "tenant/ns")),
        ("tenant/ns", None, ("tenant/ns", "BUNDLE", "tenant/ns")),
        ("tenant/ns/topic", BUNDLE, ("tenant/ns/topic", BUNDLE, "tenant/ns")),
        ("a b", None, ("'a b'", "BUNDLE", "TENANT/NAMESPACE")),
    ],
)
def test_a_hint_has_names_or_says_what_belongs_there(name: str, bundle: str | None, shown: tuple[str, ...]) -> None:
    said = (
        ("stale-version", f"history {shown[0]}`"),
        ("bad-split", f"positions {shown[1]}`"),
        ("namespace-exists", f"show {shown[2]}`"),
    )
    for reason, part in said:
        assert part in hint_for(Rejected(reason, "said", bundle=bundle), name=name)
        if bundle is None:
            for command in (Unload(name, OPERATION, 1.0), CreateNamespace(name, (), OPERATION, 1.0)):
                stepped = with_next_step(Rejected(reason, "said"), command)
                assert stepped == Rejected(reason, "said", hint_for(Rejected(reason, "said"), name=name))
    for other in (
        Done(OPERATION, "moved"),
        Rejected("stale-version", "said", "Its own."),
        NotFound("bad-name", "said"),
    ):
        assert with_next_step(other, Unload(name, OPERATION, 1.0)) == other


def test_a_newer_brokers_word_keeps_its_own_advice() -> None:
    assert hint_for(Rejected("novel", "it went wrong", "Do {this}."), operation="1") == "Do {this}."
    assert hint_for(Rejected("novel", "it went wrong"), operation="1") == "`statechannel operation show 1` shows more."
    assert hint_for(Rejected("novel", "it went wrong")) == ""


class Refusing(Engine):
    """Refuses each command for the next of the reasons."""

    def __init__(self, reasons: Iterable[str], hint: str = "") -> None:
        super().__init__(to_identity("b1"), to_engine(lone_settings()), None)
        self._reasons = iter(reasons)
        self._hint = hint

    def step(self, now: Now, item: Input) -> list[Effect]:
        effects = super().step(now, item)
        if isinstance(item, CommandReceived) and not isinstance(item.command, Shutdown):
            answer = Rejected(next(self._reasons), "said", self._hint)
            effects = [e for e in effects if not isinstance(e, Complete)] + [Complete(item.token, answer)]
        return effects


async def test_every_rejection_that_a_program_gets_has_a_next_step() -> None:
    async with lone_host(engine=Refusing(next_steps.REJECTED)) as host:
        for reason in next_steps.REJECTED:
            answer = await host.submit(Unload("tenant/ns/topic", OPERATION, 60.0, None))
            assert isinstance(answer, Rejected)
            assert answer.reason == reason
            assert answer.hint == hint_for(Rejected(reason, "said"), name="tenant/ns/topic", operation=OPERATION)
            assert answer.hint


async def test_one_that_has_a_more_special_step_keeps_it() -> None:
    async with lone_host(engine=Refusing(["busy"], "Wait for the tide.")) as host:
        answer = await host.submit(Unload("tenant/ns/topic", OPERATION, 60.0, None))
    assert isinstance(answer, Rejected)
    assert answer.hint == "Wait for the tide."
