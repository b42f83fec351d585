"""Answers `/digest` and `/dump` as a broker does, for views that a test has made."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import orjson

from statechannel.broker.observe.replica_digest import PartitionCopy, ReplicaCopy, digest_document, dump_lines
from statechannel.protocol.view import View
from statechannel.protocol.view_copy import ViewCopier
from tests.support.waits import WAIT_S


def copy_of(views: dict[int, View], unknown: frozenset[int] = frozenset()) -> ReplicaCopy:
    """A replica that holds these views, and does not know some of them."""
    parts = []
    for number, view in views.items():
        states = None if number in unknown else ViewCopier(view, keys_a_step=10**6).step()
        parts.append(PartitionCopy(number, view.applied, "caught-up", "", states))
    return ReplicaCopy("b1", "b1-1", "0", 1, parts)


@contextmanager
def serving(views: dict[int, View], **answers: bytes) -> Iterator[str]:
    """The URL of a replica; `answers` stand in the place of what it would say (`digest`, `dump`)."""
    copy = copy_of(views)
    bodies = {"digest": orjson.dumps(digest_document(copy)), "dump": "".join(dump_lines(copy)).encode()} | answers

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = bodies.get(self.path.strip("/"))
            self.send_response(404 if body is None else 200)
            self.end_headers()
            self.wfile.write(body or b"")

        def log_message(self, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join(WAIT_S)
