"""Whether replicas agree: compared at the same offset only, so that one that lags is never said to differ."""

import asyncio
import time

import orjson
import pytest

from statechannel.http_api.page.page_digests import OWN_REPLICA, TRIES, ReplicaDigestsRound
from statechannel.http_api.page.page_feed import PageFeed
from statechannel.http_api.page.replicas_compared import OFFSETS_MAX, ReplicaComparison, ReplicaStanding
from statechannel.http_api.problems import ProblemError
from tests.support.http_fakes import FakeSource, broker_row, http_settings, look_of, word, word_body

AGREES, DIFFERS = ReplicaStanding.AGREES, ReplicaStanding.DIFFERS
LATER, UNKNOWN = ReplicaStanding.NOT_AT_OFFSET, ReplicaStanding.UNKNOWN


def said(broker, *parts, **more):
    """By the offset and digest of each partition."""
    return word(broker, dict(enumerate(parts)), **more)


@pytest.mark.parametrize(
    ("words", "standings"),
    [
        pytest.param([said("b1", (9, "x")), said("b2", (9, "x")), said("b3", (9, "x"))], [AGREES] * 3, id="all-agree"),
        pytest.param([said("b1", (9, "x")), said("b2", (9, "y")), said("b3", (9, "x"))], [AGREES, DIFFERS, AGREES], id="differs"),
        pytest.param([said("b1", (9, "x")), said("b2", (7, "y")), said("b3", (9, "x"))], [AGREES, LATER, AGREES], id="lags"),
        pytest.param([said("b1", (9, "x")), said("b2", (8, "y")), said("b3", (7, "z"))], [LATER] * 3, id="all-elsewhere"),
        pytest.param([said("b1", (9, "x")), said("b2", (9, None)), said("b3", (9, "x"))], [AGREES, UNKNOWN, AGREES], id="joins"),
        pytest.param([said("b1", (9, "x")), "no endpoint", "no answer"], [UNKNOWN] * 3, id="alone"),
        pytest.param([said("b1", (9, "x")), said("b2", (9, "y")), "none"], [AGREES, DIFFERS, UNKNOWN], id="two-own-is-first"),
        pytest.param(
            [said("b1", (9, "x"), (4, "u")), said("b2", (9, "x"), (3, "v")), said("b3", (9, "x"), (4, "w"))],
            [AGREES, LATER, DIFFERS],
            id="partitions",
        ),
    ],
)  # fmt: skip
def test_replicas_are_compared_at_the_same_offset_only(words, standings):
    comparison = ReplicaComparison("b1")
    comparison.begin()
    comparison.take(dict(zip(("b1", "b2", "b3"), words, strict=True)), 1)
    rows = {row.broker: row for row in comparison.rows()}
    assert [rows[name].state for name in ("b1", "b2", "b3")] == standings
    assert all(name in row.message() for name, row in rows.items())


def test_one_that_comes_to_an_offset_later_is_compared_with_those_that_were_there():
    comparison = ReplicaComparison("b1")
    for words, state in (
        ({"b1": said("b1", (9, "x")), "b2": said("b2", (9, "x")), "b3": said("b3", (5, "z"))}, LATER),
        ({"b1": said("b1", (12, "u")), "b2": said("b2", (12, "u")), "b3": said("b3", (9, "y"))}, DIFFERS),
        # What it had at its newest comparable offset holds until there is a newer one.
        ({"b1": said("b1", (15, "v")), "b2": said("b2", (15, "v")), "b3": said("b3", (13, "s"))}, DIFFERS),
        ({"b1": said("b1", (15, "v")), "b2": said("b2", (15, "v")), "b3": said("b3", (15, "v"))}, AGREES),
        ({"b1": said("b1", (15, "v")), "b2": said("b2", (15, "v")), "b3": said("b3", (15, "w"))}, DIFFERS),
        # Another process under this id begins anew.
        (
            {
                "b1": said("b1", (15, "v")),
                "b2": said("b2", (15, "v")),
                "b3": said("b3", (14, "t"), incarnation="b3-2"),
            },
            LATER,
        ),
    ):
        comparison.begin()
        comparison.take(words, 1)
        assert {row.broker: row.state for row in comparison.rows()} == {"b1": AGREES, "b2": AGREES, "b3": state}
    comparison.begin()
    comparison.take({"b1": said("b1", (16, "r"))}, 2)
    assert [row.broker for row in comparison.rows()] == ["b1"]


def test_what_is_kept_of_digests_has_a_bound():
    comparison = ReplicaComparison("b1")
    for offset in range(2 * OFFSETS_MAX):
        comparison.begin()
        comparison.take({"b1": said("b1", (offset, "x"))}, offset)
    assert len(comparison._digests) <= OFFSETS_MAX


class Endpoint:
    """A port that answers `/digest` with each of these bodies in turn, the last one again and again; None: not at all."""

    def __init__(self, *bodies) -> None:
        self.bodies = list(bodies)
        self.asked = 0

    async def __aenter__(self):
        self.server = await asyncio.start_server(self.answer, "127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{self.server.sockets[0].getsockname()[1]}"
        return self

    async def __aexit__(self, *_):
        self.server.close()

    async def answer(self, reader, writer):
        path = (await reader.readline()).split()[1]
        assert path == b"/digest"
        content = self.bodies[min(self.asked, len(self.bodies) - 1)]
        self.asked += 1
        if content is not None:
            writer.write(
                b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\nConnection: close\r\n\r\n%b" % (len(content), content)
            )
            await writer.drain()
        writer.close()


async def compared(own, rows, **options):
    """The message of every replica after one round."""

    async def digest():
        if isinstance(own, Exception):
            raise own
        return own

    asking = ReplicaDigestsRound(options.get("broker", "b1"), digest, 5.0)
    await asking.run(rows)
    return {row.broker: (row.state, row.message()) for row in asking.comparison.rows()}


async def test_every_broker_is_asked_where_it_publishes_its_endpoint():
    async with (
        Endpoint(word_body(said("b2", (9, "x")))) as same,
        Endpoint(word_body(said("b3", (9, "y")))) as other,
        Endpoint(word_body(said("b4", (6, "z")))) as late,
        Endpoint(word_body(said("b5", (9, "x"), incarnation="b5-old"))) as replaced,
        Endpoint(b"<html>") as page,
        Endpoint(None) as silent,
    ):
        ports = {"b1": None, "b2": same, "b3": other, "b4": late, "b5": replaced, "b6": page, "b7": silent}
        rows = [broker_row(name, http=port and port.url) for name, port in ports.items()]
        rows += [broker_row("b8"), broker_row("b9", http="file:///etc/passwd"), broker_row("b0", state="lost")]
        seen = await compared(said("b1", (9, "x")), rows)
        assert late.asked == TRIES  # it had the time to come to the offset of the others
        assert same.asked == other.asked == 1
    assert {name: state for name, (state, _) in seen.items()} == {
        "b1": AGREES, "b2": AGREES, "b3": DIFFERS, "b4": LATER, "b5": UNKNOWN, "b6": UNKNOWN, "b7": UNKNOWN, "b8": UNKNOWN,
        "b9": UNKNOWN,
    }  # fmt: skip
    assert seen["b3"][1] == "the replica of b3 differs from the others at offset 9 of partition 0"
    assert "b4 is not at this offset yet: it has read through offset 6" in seen["b4"][1]
    assert "another process" in seen["b5"][1]
    assert "observe.metrics_port" in seen["b8"][1]


async def test_one_that_lags_a_moment_is_asked_again():
    async with Endpoint(word_body(said("b2", (8, "u"))), word_body(said("b2", (9, "x")))) as catching_up:
        seen = await compared(said("b1", (9, "x")), [broker_row("b1"), broker_row("b2", http=catching_up.url)])
    assert {state for state, _ in seen.values()} == {AGREES}


async def test_a_console_compares_its_own_replica_too():
    async with Endpoint(word_body(said("b1", (9, "x")))) as port:
        rows = [broker_row("b1", http=port.url)]
        assert set(await compared(said("", (9, "x")), rows, broker="")) == {"b1", OWN_REPLICA}
        seen = await compared(ProblemError("not-current", "it has stopped"), rows, broker="")
        assert seen[OWN_REPLICA] == (UNKNOWN, f"the digest of {OWN_REPLICA} is not known: it has stopped")


async def test_the_page_says_what_the_newest_round_found():
    source = FakeSource()
    async with Endpoint(word_body(said("b2", (9, "other")))) as port:
        source.seen = look_of([broker_row("b1"), broker_row("b2", http=port.url)])
        feed = PageFeed(source, http_settings(page_each_s=0.05, page_digests_s=1))
        feed.start()
        stream, until_s, sections = feed.stream(), time.monotonic() + 30, {}
        while sections.get("replicas") is None and time.monotonic() < until_s:
            part = await anext(stream)
            sections |= orjson.loads(part.split(b"data: ")[1])["sections"] if b"data: " in part else {}
        await stream.aclose()
        await feed.close()
    assert (sections["replicas"]["all"], sections["replicas"]["agree"]) == (2, 1)
    assert [row["broker"] for row in sections["replicas"]["rows"]] == ["b2"]
    assert [(problem["kind"], problem["subject"]) for problem in sections["problems"]] == [("replica-differs", "b2")]
    assert "(5 keys, the others 5)" in sections["problems"][0]["message"]
