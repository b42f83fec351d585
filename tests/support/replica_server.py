"""Answers `/digest` and `/dump` as a broker does, for views that a test has made."""

from contextlib import AbstractContextManager

import orjson

from statechannel.broker.observe.replica_digest import PartitionCopy, ReplicaCopy, digest_document, dump_lines
from statechannel.protocol.view import View
from statechannel.protocol.view_copy import ViewCopier
from tests.support import metric_servers


def copy_of(views: dict[int, View], unknown: frozenset[int] = frozenset()) -> ReplicaCopy:
    """A replica that holds these views, and does not know some of them."""
    parts = []
    for number, view in views.items():
        states = None if number in unknown else ViewCopier(view, keys_a_step=10**6).step()
        parts.append(PartitionCopy(number, view.applied, "caught-up", "", states))
    return ReplicaCopy("b1", "b1-1", "0", 1, parts)


def serving(views: dict[int, View], **answers: bytes) -> AbstractContextManager[str]:
    """The URL of a replica; `answers` stand in the place of what it would say (`digest`, `dump`)."""
    copy = copy_of(views)
    bodies = {"digest": orjson.dumps(digest_document(copy)), "dump": "".join(dump_lines(copy)).encode()} | answers

    def answer(path: str, _: object) -> tuple[int, bytes]:
        body = bodies.get(path.strip("/"))
        return (404, b"") if body is None else (200, body)

    return metric_servers.serving(answer)
