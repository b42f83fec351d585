# ruff: noqa: PLR2004
"""A key-value store over HTTP, a broker of it: PUT and GET /TENANT/NAMESPACE/KEY. Run: python kv_server.py ID FOLDER HOST:PORT.

All brokers have the same FOLDER. A request that belongs to another broker is answered with 307 and that broker's address.
"""

import json
import signal
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from kv_store import FencedError, FullError, KvStore

from statechannel.api import Admission, ArgumentValueError, BlockingStateChannel, Redirect, Rejected, StateChannelError

VALUE_BYTES_MAX = 1_000_000
SIGNALS = {signal.SIGTERM, signal.SIGINT}


class KvServer(ThreadingHTTPServer):
    """Takes connections from the start, and answers them once `serve` was called. A thread for each connection."""

    daemon_threads = True
    request_queue_size = 128

    def __init__(self, store: KvStore) -> None:
        super().__init__(("127.0.0.1", 0), KvHandler)
        self.store = store
        self.url = f"http://127.0.0.1:{self.server_port}"

    def serve(self, channel: BlockingStateChannel) -> None:
        self.channel = channel
        threading.Thread(target=self.serve_forever, daemon=True).start()


class KvHandler(BaseHTTPRequestHandler):
    """Each request asks the guard once, and gives the generation to the storage."""

    protocol_version = "HTTP/1.1"
    timeout = 60
    server: KvServer

    def do_PUT(self) -> None:
        try:
            size_bytes, write = int(self.headers["Content-Length"]), int(self.headers["X-Write"])
            body = self.rfile.read(max(0, min(size_bytes, VALUE_BYTES_MAX + 1)))
            value = body.decode()
        except (TypeError, ValueError):
            size_bytes, write, body, value = -1, -1, b"", ""
        client = self.headers["X-Client"]
        # A client that is cut off sends less than it has announced.
        if not client or write < 0 or not len(body) == size_bytes <= VALUE_BYTES_MAX:
            self.close_connection = True
            self._answer(400, {"message": "a write has X-Client, X-Write (a number), and at most 1 MB of UTF-8"})
            return
        admitted = self._admitted(write=True, size_bytes=size_bytes)
        if admitted is None:
            return
        try:
            shard = self.server.store.shard(*admitted)
            version = shard.put(self.name, value, client, write)
        except (FencedError, FullError, OSError) as error:
            self._answer(503, {"reason": "storage", "message": str(error)})
        else:
            self._answer(200, {"version": version, "generation": admitted.generation})

    def do_GET(self) -> None:
        admitted = self._admitted(write=False)
        if admitted is None:
            return
        try:
            entry = self.server.store.shard(*admitted).get(self.name)
        except FencedError as error:
            self._answer(503, {"reason": "storage", "message": str(error)})
            return
        if entry is None:
            self._answer(404, {"message": "no such key"})
        else:
            self._answer(200, {"value": entry[0], "version": entry[1]})

    def _admitted(self, *, write: bool, size_bytes: int = 0) -> Admission | None:
        """None where the client was sent elsewhere, or to look again."""
        self.name = unquote(self.path[1:])
        try:
            answer = self.server.channel.guard(self.name, write=write, size_bytes=size_bytes)
        except ArgumentValueError as error:
            self._answer(400, {"message": str(error)})
            return None
        if isinstance(answer, Redirect):
            url = answer.urls.get("http")
            self._answer(503 if url is None else 307, answer.to_json(), None if url is None else url + self.path)
            return None
        return answer

    def _answer(self, status: int, fields: dict[str, Any], location: str | None = None) -> None:
        body = json.dumps(fields).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        if location is not None:
            self.send_header("Location", location)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        pass


def main(broker: str, folder: str, kafka: str) -> None:
    signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
    store = KvStore(Path(folder))
    server = KvServer(store)
    with BlockingStateChannel.open(
        broker=broker,
        hooks=store,
        listeners={"http": server.url},
        create_topics=True,
        kafka={"bootstrap_servers": kafka},
    ) as channel:
        server.serve(channel)
        created = channel.create_namespace("example/kv", bundles=8).started()
        if isinstance(created, Rejected) and created.reason != "namespace-exists":  # another broker may be first
            sys.exit(f"{created.message}\n{created.hint}")
        print(f"{broker} serves at {server.url}", flush=True)
        while channel.stopped is None and signal.sigtimedwait(SIGNALS, 1.0) is None:
            pass
    server.shutdown()  # until here it has redirected those that came for what was handed over


if __name__ == "__main__":
    if len(sys.argv) != 4:
        sys.exit("usage: python kv_server.py ID FOLDER HOST:PORT")
    try:
        main(*sys.argv[1:])
    except StateChannelError as error:
        sys.exit(f"{error}\n{error.hint}")
