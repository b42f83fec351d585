"""A broker writes into the registry where its replica answers: that server is asked, and nobody it points to."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from statechannel.cli.audit.verify import ReplicaEndpoint
from statechannel.cli.kit.failures import CommandError


@contextmanager
def server(status: int, location: str = "") -> Iterator[tuple[str, list[str]]]:
    """Answers everything with one status; its address, and what it was asked."""
    asked: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(self.path)
            self.send_response(status)
            if location:
                self.send_header("Location", location)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_: object) -> None: ...

    http = HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=http.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{http.server_port}", asked
    finally:
        http.shutdown()
        http.server_close()
        thread.join(20)


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
def test_a_redirect_is_refused_and_not_followed(status: int) -> None:
    with server(200) as (inner, hits), server(status, f"{inner}/latest/meta-data") as (url, asked):
        endpoint = ReplicaEndpoint(url, timeout_s=20)
        with pytest.raises(CommandError, match=f"refuses: status {status}"):
            endpoint.word()
        with pytest.raises(CommandError, match=f"refuses: status {status}"):
            endpoint.dump()
    assert asked == ["/digest", "/dump"]
    assert hits == []
