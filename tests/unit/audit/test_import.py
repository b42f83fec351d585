"""What an import refuses, what it leaves alone, and what it makes of states in between."""

import json
from collections import Counter
from itertools import count

import pytest

from statechannel.audit.errors import ImportRefusedError
from statechannel.audit.transfer.import_plan import ImportPlan, PlannedNamespace, plan_import
from statechannel.audit.transfer.import_run import Importer, ImportMark, ImportStage, ImportWrite, decode_mark
from statechannel.protocol.bundle import bundle_key, children_of, namespace_bounds
from statechannel.protocol.codec import HEARTBEAT_KEY, IMPORT_KEY, MAX_INT, encode
from statechannel.protocol.log import RecordRead, Topic
from statechannel.protocol.view import View
from tests.support.imports import KilledError, Log, empty_log, importer_for, read_on, run_import, survey

BOUNDS = namespace_bounds(4)
BUNDLES = [bundle_key("t/n", BOUNDS[index], BOUNDS[index + 1]) for index in range(4)]

_ids = count()


def fields(version: int, base: str | None, state: str, **more: object) -> dict[str, object]:
    by = {"broker": more.pop("by", "b1"), "incarnation": "other"}
    head = {"format": 1, "kind": "proposal", "id": f"r-{next(_ids)}", "covers": 99, "by": by}
    return head | {"version": version, "base": base, "state": state, **more}


class Source:
    """A view that is written by hand."""

    def __init__(self) -> None:
        self.view = View(0, 1)

    def put(self, key: str, record: dict[str, object]) -> None:
        verdict = self.view.read(self.view.applied + 1, key.encode(), encode(record)).verdict
        assert verdict == "accepted", verdict

    def create(self, name: str = "t/n", version: int = 1) -> None:
        self.put(name, fields(version, None, "Active", children=children_of(BOUNDS)))

    def move(self, bundle: str, state: str, from_: str | None, to: str | None, **more: object) -> None:
        key = self.view.get(bundle)
        self.put(bundle, fields(key.version + 1, key.accepted_id, state, **{"from": from_, "to": to}, **more))

    def own(self, bundle: str, broker: str) -> None:
        self.move(bundle, "Assigning", None, broker)
        self.move(bundle, "Assigned", None, broker)


@pytest.fixture
def source() -> Source:
    source = Source()
    source.create()
    return source


def plan_of(source: Source, **options: int) -> ImportPlan:
    return plan_import([source.view], **options)


def test_who_gets_a_bundle_that_was_between_two_owners(source: Source) -> None:
    transferred, unloaded, splitting, named = BUNDLES
    for bundle in BUNDLES[:3]:
        source.own(bundle, "b1")
    source.move(transferred, "Releasing", "b1", "b2")
    source.move(unloaded, "Releasing", "b1", None)
    source.move(splitting, "Splitting", "b1", None)
    source.move(named, "Assigning", None, "b3")
    (namespace,) = plan_of(source, headroom=10).namespaces
    assert namespace.owners == ("b1", "b1", "b1", "b3")
    assert namespace.in_flight == Counter(Releasing=2, Splitting=1, Assigning=1)
    assert (namespace.highest, namespace.version) == (4, 14)
    source.move(transferred, "Assigning", "b1", "b2")
    assert plan_of(source).namespaces[0].owners[0] == "b2", "the source has let go"


def test_a_split_bundle_is_its_children_and_its_versions_count(source: Source) -> None:
    source.own(BUNDLES[0], "b1")
    source.move(BUNDLES[0], "Splitting", "b1", None)
    middle = BOUNDS[1] // 2
    source.move(BUNDLES[0], "Deleted", "b1", None, children=children_of([0, middle, BOUNDS[1]]))
    (namespace,) = plan_of(source, headroom=1).namespaces
    assert namespace.bounds == (0, middle, *BOUNDS[1:])
    assert namespace.owners == ("b1", "b1", None, None, None)
    assert (namespace.highest, namespace.version) == (6, 7)


def test_the_file_decides_what_the_import_is_called(source: Source) -> None:
    assert plan_of(source).operation == plan_of(source).operation
    assert plan_of(source).operation != plan_of(source, headroom=5).operation
    before = plan_of(source).operation
    source.own(BUNDLES[0], "b1")
    assert plan_of(source).operation != before


def test_a_namespace_at_the_end_of_all_versions_is_refused_by_name() -> None:
    source = Source()
    source.create(version=MAX_INT - 3)
    with pytest.raises(ImportRefusedError, match="t/n has version 9007199254740988: a headroom of 1 exceeds"):
        plan_of(source, headroom=1)


def test_a_namespace_that_is_not_there(source: Source) -> None:
    with pytest.raises(ImportRefusedError, match="namespace t/other does not exist") as caught:
        plan_import([source.view], only=["t/n", "t/other"])
    assert caught.value.exit_code == 5
    with pytest.raises(ImportRefusedError, match="no namespaces in the log"):
        plan_import([View(0, 1)])


def test_more_bundles_than_one_record_holds() -> None:
    source = Source()
    source.put("t/n", fields(1, None, "Active", children=children_of(namespace_bounds(32_768))))
    first = bundle_key("t/n", 0, 1 << 17)
    source.own(first, "b1")
    source.move(first, "Splitting", "b1", None)
    source.move(first, "Deleted", "b1", None, children=children_of([0, 5, 1 << 17]))
    with pytest.raises(ImportRefusedError, match="t/n has 32769 bundles"):
        plan_of(source)


# --- the target -----------------------------------------------------------------------------------------------------


def planned(**more: object) -> ImportPlan:
    namespace = PlannedNamespace("t/n", 4, 14, tuple(BOUNDS), ("b1", None, "b2", "b1"))
    return ImportPlan((namespace,), str(more.get("operation", "import-1")))


def heartbeat(broker: str = "b1") -> tuple[bytes, bytes]:
    by = {"broker": broker, "incarnation": "x"}
    value = {"format": 1, "kind": "heartbeat", "id": "h1", "covers": 0, "by": by, "clean_to": 0}
    return HEARTBEAT_KEY, json.dumps(value).encode()


def refused(importer: Importer, log: Log) -> str:
    with pytest.raises(ImportRefusedError) as caught:
        survey(importer, log)
    assert caught.value.exit_code == 3
    assert caught.value.hint
    return str(caught.value)


@pytest.mark.parametrize("value", [b"junk", None, b"{}"])
@pytest.mark.parametrize("key", [b"t/n", b"other/one", BUNDLES[0].encode(), b"no known form", None])
def test_any_record_that_is_no_control_record_makes_a_channel_not_empty(key: bytes | None, value: bytes | None) -> None:
    log: Log = {0: [heartbeat(), (key, value)]}
    assert "the channel is not empty: offset 1 of partition 0" in refused(importer_for(planned(), 1), log)


def test_control_records_do_not() -> None:
    log: Log = {0: [heartbeat(), (b"!closing/t/n", b"{}"), (b"!cold-start", b"junk"), (IMPORT_KEY, b"junk")]}
    importer = importer_for(planned(), 1)
    run_import(importer, log)
    assert importer.counts.written == 4


def interrupted(after: int, partitions: int = 1) -> Log:
    log = empty_log(partitions)
    left = after

    def dying(_: ImportWrite) -> None:
        nonlocal left
        left -= 1
        if left < 0:
            raise KilledError

    with pytest.raises(KilledError):
        run_import(importer_for(planned(), partitions), log, before_append=dying)
    return log


def test_another_import_is_named_also_when_it_has_ended() -> None:
    log = interrupted(2)
    other = planned(operation="import-2")
    assert "is being imported into this channel: import-1" in refused(importer_for(other, 1), log)
    run_import(importer_for(planned(), 1), log)
    assert "import-1 (this one would be import-2)" in refused(importer_for(other, 1), log)


def test_an_import_that_ended_writes_nothing_more_whatever_became_of_the_channel() -> None:
    log = empty_log(1)
    run_import(importer_for(planned(), 1), log)
    log[0] += [heartbeat(), (b"t/later", b"junk")]
    importer = importer_for(planned(), 1)
    survey(importer, log)
    assert importer.stage is ImportStage.DONE


def test_nor_once_its_log_was_compacted() -> None:
    log = empty_log(1)
    run_import(importer_for(planned(), 1), log)
    importer = importer_for(planned(), 1)
    read = importer_for(planned(), 1)
    read_on(read, log, 0)
    for offset in (1, 2, len(log[0]) - 1):  # the first mark is gone, and some of the records
        importer.take(record_at(log, offset))
    importer.surveyed()
    assert importer.stage is ImportStage.DONE


def record_at(log: Log, offset: int) -> RecordRead:
    return RecordRead(Topic.CHANNEL, 0, offset, 1_000, *log[0][offset])


def test_a_log_that_was_compacted_before_the_end_is_refused() -> None:
    log = interrupted(4)
    importer = importer_for(planned(), 1)
    for offset in (0, 1, 3):
        importer.take(record_at(log, offset))
    with pytest.raises(ImportRefusedError, match="was compacted since this import began"):
        importer.surveyed()


def test_old_heartbeats_that_were_cleaned_do_not_matter() -> None:
    importer = importer_for(planned(), 1)
    key, value = heartbeat()
    importer.take(RecordRead(Topic.CHANNEL, 0, 700, 1_000, key, value))
    importer.surveyed()
    mark = importer.marks(0)
    importer.take(RecordRead(Topic.CHANNEL, 0, 701, 1_000, mark.key, mark.value))
    importer.go_on()
    (write,) = importer.writes(0, 10)
    assert json.loads(write.value)["covers"] == 701


def test_a_broker_that_comes_in_between_ends_the_import() -> None:
    log = interrupted(3)
    importer = importer_for(planned(), 1)

    def broker_starts(_: ImportWrite) -> None:
        log[0].append(heartbeat("b7"))

    with pytest.raises(ImportRefusedError, match="broker b7 joined this channel during the import"):
        run_import(importer, log, before_append=broker_starts)


def test_what_brokers_did_to_a_half_imported_channel_stays() -> None:
    log = interrupted(4)  # the mark, the namespace, and two of its three bundles
    created = json.loads(log[0][1][1] or b"")
    derived = f"{created['id']}/{BUNDLES[3].rpartition('/')[2]}"
    placed = fields(15, derived, "Assigning", **{"from": None, "to": "b9"})  # a lookup had it placed
    log[0].append((BUNDLES[3].encode(), encode(placed)))
    importer = importer_for(planned(), 1, "again")
    run_import(importer, log)
    assert importer.counts.written == 0
    assert importer.gone_on() == 1
    left = importer.views[0].get(BUNDLES[3])
    assert (left.to, left.version) == ("b9", 15)


def test_a_namespace_that_somebody_created_meanwhile_is_not_built_upon() -> None:
    log = interrupted(1)
    log[0].append((b"t/n", encode(fields(1, None, "Active", children=children_of(BOUNDS)))))
    assert "t/n was created by another process" in refused(importer_for(planned(), 1), log)


def test_a_record_of_a_newer_format_in_the_target() -> None:
    log = interrupted(3)
    log[0].append((b"t/n", b'{"format": 2}'))
    with pytest.raises(ImportRefusedError, match="is written in format 2"):
        survey(importer_for(planned(), 1), log)


def test_marks() -> None:
    assert decode_mark(b'{"import": "import-1", "state": "begun"}') == ImportMark("import-1", finished=False)
    assert decode_mark(b'{"import": "import-1", "state": "finished", "x": 1}') == ImportMark("import-1", finished=True)
    for junk in (None, b"", b"[]", b"{}", b'{"import": 1}', b'{"import": "a b"}', b"\xff"):
        assert decode_mark(junk) is None
