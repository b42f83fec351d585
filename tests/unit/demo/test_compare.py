"""What the demo's client notices, and what is said when that and the audit do not agree."""

from statechannel.demo.observed_gaps import AcceptedWrite, AuditedGap, Notebook, NoticedGap, compare
from statechannel.demo.story import topic_names

NAMESPACE = "public/default"
TOPICS = topic_names(NAMESPACE, 2)
LOW, HIGH = f"{NAMESPACE}/0x00000000_0x80000000", f"{NAMESPACE}/0x80000000_0xffffffff"


def take(note: Notebook, broker: str, generation: int, at_ms: int, topic: str = TOPICS[0], bundle: str = LOW) -> None:
    note.taken(topic, AcceptedWrite(broker, bundle, generation, at_ms, at_ms + 2))


def make_gap(start_ms: int, end_ms: int | None, bundle: str = LOW, cause: str = "transfer") -> AuditedGap:
    return AuditedGap(bundle, cause, start_ms, end_ms, "b1", "b2", 0, "transfer from b1 to b2")


def problems(told_gaps: list[AuditedGap], noticed: list[NoticedGap]) -> list[str]:
    return compare(told_gaps, noticed, topics=TOPICS, since_ms=1_000, until_ms=20_000).problems


def test_gap_lasts_from_the_first_failed_write_to_the_next_taken_one() -> None:
    note = Notebook()
    note.failed(TOPICS[0], 500)
    take(note, "b1", 3, 1_000)
    assert note.gaps() == [], "nobody had served it yet"
    note.failed(TOPICS[0], 2_000)
    note.failed(TOPICS[0], 2_100)
    assert note.unserved == [TOPICS[0]]
    assert note.gaps()[0].end_ms is None
    take(note, "b2", 6, 2_200)
    assert note.gaps() == [NoticedGap(LOW, 2_000, 2_202, "b1", "b2")]
    assert note.unserved == []


def test_gaps_of_a_bundles_topics_at_the_same_time_are_one() -> None:
    note = Notebook()
    other = f"{TOPICS[0]}-other"
    for topic in (TOPICS[0], other):
        take(note, "b1", 3, 1_000, topic)
    note.failed(TOPICS[0], 2_000)
    note.failed(other, 2_100)
    take(note, "b2", 6, 2_300, TOPICS[0])
    take(note, "b2", 6, 2_400, other)
    assert note.gaps() == [NoticedGap(LOW, 2_000, 2_402, "b1", "b2", topics=2)]


def test_two_owners_of_one_generation_are_noticed() -> None:
    note = Notebook()
    take(note, "b1", 3, 1_000)
    take(note, "b2", 3, 1_100)
    assert len(note.broken) == 1
    assert "both served generation 3" in note.broken[0]


def test_owner_that_is_over_is_noticed_but_an_answer_under_way_is_not() -> None:
    note = Notebook()
    take(note, "b1", 3, 1_000)
    take(note, "b2", 6, 1_100)
    note.taken(TOPICS[0], AcceptedWrite("b1", LOW, 3, 1_050, 1_200))
    assert note.broken == []
    take(note, "b1", 3, 1_300)
    assert "still served generation 3" in note.broken[0]


def test_claim_to_serve_counts_like_a_write() -> None:
    note = Notebook()
    take(note, "b1", 3, 1_000)
    note.claimed(AcceptedWrite("b2", HIGH, 3, 1_010, 1_011))
    assert note.broken == []
    note.claimed(AcceptedWrite("b2", LOW, 3, 1_010, 1_011))
    assert len(note.broken) == 1


def test_gaps_that_agree_leave_nothing_to_say() -> None:
    seen = NoticedGap(LOW, 2_100, 2_500, "b1", "b2")
    comparison = compare([make_gap(2_000, 2_400)], [seen], topics=TOPICS, since_ms=1_000, until_ms=20_000)
    assert comparison.problems == []
    assert comparison.pairs[0].noticed == seen
    assert problems([make_gap(2_000, 2_300)], []) == [], "shorter than what a client must see"
    assert problems([make_gap(100, 900)], []) == [], "before it wrote"


def test_each_disagreement_is_said() -> None:
    cases = [
        ([], [NoticedGap(LOW, 2_000, 2_400, "b1", "b2")], "that is not in the audit"),
        ([make_gap(2_000, 2_400, HIGH)], [NoticedGap(LOW, 2_000, 2_400, "b1", "b2")], "that is not in the audit"),
        ([make_gap(2_000, 8_000)], [], "did not notice"),
        ([make_gap(2_000, None)], [NoticedGap(LOW, 2_000, None, "b1", None)], "is not served"),
        ([make_gap(2_000, 2_400)], [NoticedGap(LOW, 2_000, None, "b1", None)], "still fail"),
        ([make_gap(2_000, 2_400)], [NoticedGap(LOW, 2_000, 6_000, "b1", "b2")], "after the audit's end"),
        ([make_gap(2_000, 2_400)], [NoticedGap(LOW, 1_000, 2_400, "b1", "b2")], "before the audit's"),
        ([make_gap(2_000, 2_400, cause="repair")], [], "has no cause for the gap"),
    ]
    for told_gaps, noticed, words in cases:
        result = problems(told_gaps, noticed)
        assert any(words in problem for problem in result), (words, result)
