"""The accelerator takes what the Python code takes, refuses the rest, and steps aside where it cannot be used."""

import gc
import random
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import orjson
import pytest
from confluent_kafka import KafkaError, Message

from statechannel.kafka import reader
from statechannel.protocol import bulk_fold
from statechannel.protocol.bulk_fold import ANY_OFFSET, read_many
from statechannel.protocol.bundle import range_name
from statechannel.protocol.codec import NAMES
from statechannel.protocol.log import RecordRead, Topic
from statechannel.protocol.verdict import Verdict
from statechannel.protocol.view import View
from tests.support.accelerator import ROOT, TAKERS, built, compiled, under_compiled_core
from tests.unit.core.test_replay_guards import BY, HALF, LOW, PLAIN, Story, everything

pytestmark = pytest.mark.timeout(1_800)
"""One of them compiles the core, and the others wait for it: minutes, and more on a busy machine."""

SEEDS = range(12)
TESTS_OF_THE_CORE = (
    *(
        "tests/property/test_core_codec.py",
        "tests/property/test_core_fold.py",
        "tests/corpus/test_corpus.py",
        "--deselect",
    ),
    "tests/corpus/test_corpus.py::test_a_log_about_which_the_two_differ_is_not_written",  # bends a rule
)
PIECES = (
    b'"', b"\\", b"\\u0061", b"{", b"}", b"[", b"]", b",", b":", b" ", b"\n", b"null", b"true", b"-", b"0", b"1.0", b"1e3",
    b"\x00", b"\x1f", b"\x7f", b"\xc3\xa9", b"\xff", b"9007199254740993", b'"format":1,', b'"forced":true,', b'"id":"x",',
    b'"version":4,', b'"flow":null,', b'"operation":7,', b'"reason":"because",', b'"new-field":1,', b'"by":{},', b"b1", b"b2",
)  # fmt: skip


def bent(value: bytes, chance: random.Random) -> bytes:
    """A value with one to three accidents in it."""
    for _ in range(chance.randint(1, 3)):
        at = chance.randrange(len(value) + 1)
        match chance.randrange(5):
            case 0:
                value = value[:at] + chance.choice(PIECES) + value[at:]
            case 1:
                value = value[:at] + value[at + chance.randint(1, 9) :]
            case 2:
                value = value[:at] + bytes([chance.randrange(256)]) + value[at + 1 :]
            case 3:  # a field is gone, stands there twice, or elsewhere
                fields = value.strip(b"{}").split(b",")
                chance.shuffle(fields)
                fields = fields[chance.randint(0, 1) :] + fields[: chance.randint(0, 1)]
                value = b"{" + b",".join(fields) + b"}"
            case _:
                comma = value.find(b",", at)
                value = value if comma < 0 else value[: comma + 1] + chance.choice(PIECES) + value[comma + 1 :]
    return value


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("taker", TAKERS)
def test_bent_records_are_judged_as_by_the_view_alone(taker: str, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bulk_fold, "take_plain_moves", TAKERS[taker]())
    chance = random.Random(seed)
    for _ in range(60):
        story = Story()
        value = bent(orjson.dumps(story.fields(LOW, **PLAIN) | {"flow": "transfer", "operation": "o-1"}), chance)
        if story.put(LOW.encode(), value) is Verdict.UNSUPPORTED_FORMAT:
            continue
        story.move(LOW, "Assigning", **{"from": "b1", "to": "b2"})
        view = View(0, 1)
        assert read_many(view, story.records, 0, len(story.records)) == len(story.records)
        assert everything(view) == everything(story.view), value


def taken(change: Callable[[bytes], bytes] = lambda value: value, **fields: Any) -> bool:
    """Whether the compiled code takes a move itself."""
    NAMES["b2"] = "b2"  # as if a record had named it before
    story, view = Story(), View(0, 1)
    for record in story.records:
        view.read(record.offset, record.key, record.value)
    value = change(orjson.dumps(story.fields(LOW, **PLAIN) | fields))
    moves = [RecordRead(Topic.CHANNEL, 0, len(story.records), 7, LOW.encode(), value)]
    return compiled().take_plain_moves(view, moves, 0, ANY_OFFSET, 0) == len(moves)


def test_plain_moves_are_taken_in_any_order_of_their_fields() -> None:
    assert taken()
    assert taken(lambda value: orjson.dumps(dict(sorted(orjson.loads(value).items()))))
    assert taken(
        flow="transfer", operation="o-1", action="transfer", reason="it is hot", written_at_ms=1_700_000_000_000
    )
    assert taken(flow=None, operation=None, reason=None)


@pytest.mark.parametrize(
    "fields",
    [
        {"new-field": 1},
        {"forced": False},
        {"reason": "caf\u00e9"},
        {"reason": 'a "word"'},
        {"decision": {"by": "x"}},
        {"by": BY | {"host": "h"}},
        {"version": 5},
        {"children": [range_name(0, HALF)]},
    ],
    ids=str,
)
def test_all_others_are_left_to_the_python_code(fields: dict[str, Any]) -> None:
    assert not taken(**fields)


@pytest.mark.parametrize(
    "change",
    [
        lambda value: value + b" ",
        lambda value: value[:-1],
        lambda value: value.replace(b":1,", b": 1,", 1),
        lambda value: value[:-1] + b',"format":1}',
        lambda value: value + b"}",
        lambda value: b"",
    ],
)
def test_what_is_not_written_as_brokers_write_is_left_to_the_python_code(change: Callable[[bytes], bytes]) -> None:
    assert not taken(change)


ROLES = {"channel": Topic.CHANNEL, "requests": Topic.REQUESTS}
EVENT = KafkaError(KafkaError._PARTITION_EOF)


def message(offset: int, topic: str = "channel", partition: int = 3, **changes: Any) -> Message:
    """A fetched one, as the client library makes them."""
    fields: dict[str, Any] = {
        "key": b"k%d" % offset,
        "value": b"v" * (offset % 500),
        "timestamp": (2, 1_700_000_000_000),
    }
    return Message(topic=str(topic), partition=partition, offset=offset, **fields | changes)


@pytest.mark.parametrize(
    ("batch", "is_plain"),
    [
        ([message(7)], True),
        ([message(offset) for offset in range(400)], True),
        ([message(2**40), message(2**40 + 1, timestamp=(2, 5)), message(2**40 + 9, timestamp=(1, 5))], True),
        ([message(7, key=None), message(8, value=None), message(9, value=b""), message(10, key=b"")], True),
        ([message(7, "requests"), message(8, "requests")], True),
        ([message(7), message(8, "requests")], False),
        ([message(7), message(8, partition=4)], False),
        ([message(7), message(8, error=EVENT)], False),
        ([message(7, error=EVENT), message(8)], False),
    ],
)
def test_messages_become_the_same_records(batch: list[Message], is_plain: bool) -> None:
    expected, converted = reader._convert(batch, ROLES), compiled("messages").convert(batch, ROLES)
    assert (expected is not None) is is_plain
    assert converted == expected
    if converted is not None:
        records = converted[2]
        assert {type(record) for record in records} == {RecordRead}
        assert [hash(record) for record in records] == [hash(RecordRead(*record)) for record in records]


def test_messages_and_records_free_what_they_held() -> None:
    """References are counted by hand in the compiled code."""
    value = b"a value of its own" * 3
    batch = [message(offset, value=value, timestamp=(2, 10**12 + offset // 3)) for offset in range(100)]
    gc.collect()  # what other tests left holds the same topic
    before = sys.getrefcount(value), sys.getrefcount(batch[0]), sys.getrefcount(Topic.CHANNEL)
    for _ in range(100):
        converted = compiled("messages").convert(batch, ROLES)
        refused = compiled("messages").convert([*batch, message(100, error=EVENT)], ROLES)
        assert (len(converted[2]), refused) == (100, None)
    del converted
    gc.collect()
    assert (sys.getrefcount(value), sys.getrefcount(batch[0]), sys.getrefcount(Topic.CHANNEL)) == before


SAYS = """
from statechannel.protocol import bulk_fold, keys
from statechannel.engine import engine
from statechannel.kafka import reader
from statechannel.cli.debug import _accelerator
compiled = [not module.__file__.endswith(".py") for module in (bulk_fold, keys, engine)]
print(_accelerator(), *compiled, bulk_fold.take_plain_moves.__name__, reader.convert.__name__)
"""


def test_it_is_used_where_it_is_installed() -> None:
    assert under_compiled_core("-c", SAYS) == "in use True True True take_plain_moves convert"


@pytest.mark.parametrize("word", ["off", "0", "FALSE"])
def test_a_variable_switches_it_off(word: str) -> None:
    said = under_compiled_core("-c", SAYS, STATECHANNEL_ACCELERATOR=word)
    assert said == "switched off False False False _take_plain_moves _convert"


@pytest.mark.parametrize(
    "change",
    [
        lambda root: (root / "engine" / "lease.py").open("a").write("# another\n"),
        lambda root: (root / "protocol" / "keys.py").open("a").write("# another\n"),
        lambda root: (root / "protocol" / "new.py").write_text(""),
    ],
    ids=["engine", "protocol", "a further module"],
)
def test_it_steps_aside_where_the_sources_are_others(change: Callable[[Path], object], tmp_path: Path) -> None:
    ignored = shutil.ignore_patterns("__pycache__")
    shutil.copytree(ROOT / "statechannel", tmp_path / "statechannel", ignore=ignored)
    change(tmp_path / "statechannel")
    code = f"import sys; sys.path.insert(0, {str(tmp_path)!r})\n{SAYS}"
    assert under_compiled_core("-c", code) == "made from other sources False False False _take_plain_moves _convert"


def test_it_steps_aside_where_it_was_built_for_another_python(tmp_path: Path) -> None:
    package = tmp_path / "statechannel_accelerator"
    shutil.copytree(built() / "statechannel_accelerator", package)
    for library in package.rglob("*.so"):
        library.rename(library.with_name(library.name.split(".")[0] + ".cpython-27-a-machine.so"))
    said = under_compiled_core("-c", SAYS, path=tmp_path)
    assert said == "made from other sources False False False _take_plain_moves _convert"


CALLS = """
import copy, pickle
from statechannel.operations.checks import ArgumentTypeError
from statechannel.operations.table import check
from statechannel.engine.commands import Lookup, Owned
owned = Owned("t/n/1", "a", 1, {"pulsar": "a:1"})
assert pickle.loads(pickle.dumps(owned)) == copy.copy(owned) == copy.deepcopy(owned) == owned
try:
    check(Lookup(None, 1.0))
except ArgumentTypeError as error:
    print(type(error).__name__)
"""


def test_callers_get_the_same_answers_and_refusals() -> None:
    assert under_compiled_core("-c", CALLS) == "ArgumentTypeError"


def test_the_compiled_core_passes_the_tests_of_the_core() -> None:
    """Against the twin, and by the kept digests of the corpus of logs."""
    run = under_compiled_core("-m", "pytest", "-q", "-p", "no:cacheprovider", *TESTS_OF_THE_CORE)
    assert " passed" in run.splitlines()[-1]


DIGESTS = """
from statechannel.protocol import keys
from statechannel.sim.runs import LEVELS
from tests.behaviour.digests import seeds
print("python" if keys.__file__.endswith(".py") else "compiled", *(seeds(level, 0, 5) for level in LEVELS))
"""


def test_simulated_clusters_do_the_same_with_either_core() -> None:
    python, *expected = under_compiled_core("-c", DIGESTS, STATECHANNEL_ACCELERATOR="off").split()
    assert python == "python"
    assert under_compiled_core("-c", DIGESTS).split() == ["compiled", *expected]
