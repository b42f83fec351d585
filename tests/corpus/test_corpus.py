"""The corpus: the same wherever it is made, of every kind, and refused where two implementations differ."""

from __future__ import annotations

import io
import json
from collections import Counter
from hashlib import sha256
from itertools import islice
from pathlib import Path

import orjson
import pytest
from rich.console import Console

from tests.corpus.__main__ import KEPT, LOGS, write
from tests.corpus.logs import KINDS, CorpusError, case_of, cases, random_logs
from tests.mutants import planted

FEW = 200


def test_the_first_logs_are_those_that_are_kept(tmp_path: Path) -> None:
    manifest = write(tmp_path, FEW, Console(file=io.StringIO()))
    assert sha256(manifest).hexdigest() == json.loads(KEPT.read_text())[str(FEW)]
    files = json.loads(manifest)["files"]
    assert {name: sha256((tmp_path / name).read_bytes()).hexdigest() for name in files} == {
        name: file["sha256"] for name, file in files.items()
    }
    lines = [orjson.loads(line) for name in files for line in (tmp_path / name).read_bytes().splitlines()]
    assert len({line["name"] for line in lines}) == FEW


def test_the_whole_corpus_has_ten_thousand_logs_and_its_digest_is_kept() -> None:
    assert LOGS >= 10_000
    assert str(LOGS) in json.loads(KEPT.read_text())


def test_every_kind_of_random_log_is_there_whole_and_cleaned() -> None:
    judged = [case_of(named) for named in islice(random_logs(), 60)]
    kinds = Counter((case.name.partition("-")[0], case.name.endswith("-cleaned")) for case in judged)
    assert set(kinds) == {(kind, cleaned) for kind in KINDS for cleaned in (False, True)}
    assert {case.read for case in judged} == {"full", "join"}
    assert any("stopped" in case.expected for case in judged)
    assert any(case.expected["debts"] for case in judged)
    assert all(
        len(case.verdicts) == case.expected["records"]
        for case in judged
        if case.read == "full" and "stopped" not in case.expected
    )


def test_a_log_about_which_the_two_differ_is_not_written() -> None:
    with planted("version-gap-accepted"), pytest.raises(CorpusError, match="small-"):
        list(cases(FEW))
