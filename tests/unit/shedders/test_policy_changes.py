"""Records of the topic of policies as changes: set, deleted, unreadable; and what compaction has removed."""

from shedders.policies.kinds import PolicyKind
from shedders.policies.record import PolicyKey, PolicyRecord, encode
from shedders.policies.topic import DeletionNote, PolicyChange, PolicyChanges, policy_changes
from statechannel.protocol.log import RecordRead, Topic

PIN = PolicyKey(PolicyKind.PIN, "t/n", False)
CORDON = PolicyKey(PolicyKind.CORDON, "b2", True)


def read(*records: tuple[bytes | None, bytes | None], first: int = 0) -> PolicyChanges:
    return policy_changes(
        [RecordRead(Topic.CHANNEL, 0, first + at, 1_000 + at, key, value) for at, (key, value) in enumerate(records)],
        low=0,
        end=first + len(records),
    )


def policy(key: PolicyKey, until_ms: int | None = None, **value: object) -> bytes:
    return encode(PolicyRecord(key, value, "ann@desk", "ticket 7", until_ms, 900))


def test_a_policy_that_was_set_and_deleted_keeps_its_author_and_times() -> None:
    changes = read((PIN.encode(), policy(PIN, broker="b1")), (PIN.encode(), None))
    assert changes.is_whole
    was_set, deleted = changes.rows
    assert (was_set.what, was_set.logged_at_ms) == ("set", 1_000)
    assert (was_set.record.by, was_set.record.why, was_set.record.value) == ("ann@desk", "ticket 7", {"broker": "b1"})
    assert deleted == PolicyChange(PIN, 1, 1_001)
    assert deleted.what == "deleted"
    assert deleted.fields() == {
        "kind": "pin",
        "name": "t/n",
        "override": False,
        "what": "deleted",
        "value": None,
        "by": None,
        "why": None,
        "until_ms": None,
        "written_at_ms": None,
        "logged_at_ms": 1_001,
        "offset": 1,
        "trouble": None,
    }


def test_a_deletion_names_who_and_why_where_its_headers_do() -> None:
    note = DeletionNote("carol@desk", "moved out")
    records = [RecordRead(Topic.CHANNEL, 0, at, 1_000, PIN.encode(), None) for at in range(3)]
    headers = {0: note.headers(), 1: (("by", b"x" * 999), ("why", None), ("other", b"\xff"))}
    rows = policy_changes(records, low=0, end=3, headers=headers).rows
    assert [(row.by, row.why) for row in rows] == [("carol@desk", "moved out"), ("x" * 256, None), (None, None)]
    assert (rows[0].fields()["by"], rows[0].fields()["why"]) == ("carol@desk", "moved out")
    assert DeletionNote("", "").headers() == ()


def test_junk_is_a_change_that_cannot_be_read() -> None:
    changes = read((b"pin/t/n", b"{"), (b"nonsense", None), (None, b"x"))
    assert [change.what for change in changes.rows] == ["unreadable"] * 3
    assert all(change.trouble for change in changes.rows)
    assert [change.key for change in changes.rows] == [PIN, None, None]


def test_what_compaction_removed_is_said() -> None:
    assert not read((PIN.encode(), None), first=3).is_whole


def test_changes_of_one_policy_and_its_override() -> None:
    changes = read(
        (PIN.encode(), policy(PIN, broker="b1")), (CORDON.encode(), policy(CORDON, until_ms=5_000)), (b"nonsense", None)
    )
    assert [change.offset for change in changes.of(PolicyKind.CORDON, None)] == [1]
    assert [change.offset for change in changes.of(PolicyKind.PIN, "t/n")] == [0]
    assert changes.of(PolicyKind.PIN, "t/m") == []
    assert [change.offset for change in changes.of(None, None)] == [0, 1, 2]
