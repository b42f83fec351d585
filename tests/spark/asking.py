"""One question put to both engines."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import orjson

from spark.replay.audit_engine import answer_with
from statechannel.audit import local
from statechannel.audit.engine import AuditQuestion, AuditResult, Wants

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ALL = Wants(
    gaps=True, gap_count=True, races=True, owned=True, moves=True, cuts=True, rejected=True, states=True, origins=True
)


@contextmanager
def no_bar(doing: str, total: int | None, *, unit: str = "") -> Iterator[Callable[[int], None]]:
    yield lambda _: None


def _plain(result: AuditResult) -> dict[str, Any]:
    return {field.name: getattr(result, field.name) for field in fields(result)}


def _other(value: Any) -> Any:
    return value.decode() if isinstance(value, bytes) else list(value)


def as_json(result: AuditResult) -> bytes:
    return orjson.dumps(_plain(result), option=orjson.OPT_NON_STR_KEYS | orjson.OPT_INDENT_2, default=_other)


def describe_answer(
    ask: Callable[[AuditQuestion], AuditResult], question: AuditQuestion, out: Path
) -> tuple[str, bytes | None]:
    """The answer as JSON, or the refusal, and the verdicts if they were asked for."""
    out.unlink(missing_ok=True)
    mine = replace(question, verdicts=out) if question.verdicts is not None else question
    try:
        result = as_json(ask(mine)).decode()
    except Exception as error:
        cause = error.__cause__ if isinstance(error.__cause__, ValueError) else error
        result = f"{type(cause).__name__}: {cause}"
    return result, out.read_bytes() if out.exists() else None


def ask_local(question: AuditQuestion, folder: Path) -> tuple[str, bytes | None]:
    return describe_answer(lambda asked: local.answer(asked, progress=no_bar), question, folder / "local.jsonl")


def ask_spark(session: SparkSession, question: AuditQuestion, folder: Path) -> tuple[str, bytes | None]:
    return describe_answer(lambda asked: answer_with(session, asked, {"tasks": "3"}), question, folder / "spark.jsonl")


def check(session: SparkSession, question: AuditQuestion, folder: Path) -> str:
    """Ask both; how the log was read."""
    expected, spark = ask_local(question, folder), ask_spark(session, question, folder)
    assert spark[0] == expected[0]
    assert spark[1] == expected[1]
    return how_read(expected[0])


def how_read(summary: str) -> str:
    if not summary.startswith("{"):
        return "refused"
    answer = orjson.loads(summary)["answer"]
    return "stopped" if "stopped" in answer else "tentative" if "tentative" in answer else str(answer["read"])
