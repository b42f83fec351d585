# ruff: noqa: PLR2004
"""A client of kv_server.py, by the router. Run: python kv_client.py HOST:PORT example/kv/KEY [VALUE]."""

import itertools
import sys
import time
import uuid
from urllib.parse import quote

import httpx

from statechannel.api import NotFound, Redirect, StateChannelError
from statechannel.router import BlockingRouter, Route, RouteAnswer

PAUSE_S = 0.02
PAUSE_LONGEST_S = 0.5


class UnansweredError(Exception):
    """No owner has answered in time. A write may have been taken, or not."""


class KvClient:
    """Sends each request to the owner, and again until it is answered. For one thread; its writes follow each other.

    Args:
        answer_s: Longest wait for one answer; then the next try may go to another broker.
    """

    def __init__(self, router: BlockingRouter, *, answer_s: float = 2.0) -> None:
        self.redirects = 0
        self._router = router
        self._http = httpx.Client(timeout=answer_s, trust_env=False)
        self._id = str(uuid.uuid4())
        self._writes = itertools.count(1)

    def put(self, name: str, value: str, timeout_s: float = 30.0) -> int:
        """Write once; the version of the key that it made.

        Raises:
            UnansweredError: It may have been taken, or not.
        """
        headers = {"X-Client": self._id, "X-Write": str(next(self._writes))}  # the same for each try
        answer = self._ask("PUT", name, timeout_s, value.encode(), headers)
        return int(answer.raise_for_status().json()["version"])

    def get(self, name: str, timeout_s: float = 30.0) -> tuple[str, int] | None:
        """Value and version; None without an entry."""
        answer = self._ask("GET", name, timeout_s)
        if answer.status_code == 404:
            return None
        fields = answer.raise_for_status().json()
        return fields["value"], fields["version"]

    def _ask(
        self, method: str, name: str, timeout_s: float, body: bytes = b"", headers: dict[str, str] | None = None
    ) -> httpx.Response:
        ends_s, pause_s = time.monotonic() + timeout_s, 0.0
        where: RouteAnswer = self._router.lookup(name)
        while (left_s := ends_s - time.monotonic()) > 0:
            if isinstance(where, Route):
                answer = self._try(method, where.urls.get("http"), name, body, headers)
                if answer is not None and answer.status_code not in (307, 503):
                    return answer
                redirect = None if answer is None else Redirect.from_json(answer.json())
                if redirect is not None and redirect.broker is not None:
                    self.redirects += 1
                    where = self._router.follow(name, redirect)
                else:
                    where = self._router.lookup(name)
            else:
                where = self._router.wait(name, left_s, assign=True)
                if isinstance(where, NotFound):
                    break
            time.sleep(min(pause_s, left_s))
            pause_s = min(max(PAUSE_S, 2 * pause_s), PAUSE_LONGEST_S)
        raise UnansweredError(f"{method} {name}: no answer in {timeout_s:g} s; the last owner known: {where}")

    def _try(
        self, method: str, url: str | None, name: str, body: bytes, headers: dict[str, str] | None
    ) -> httpx.Response | None:
        if url is None:  # the broker does not serve this store
            return None
        try:
            return self._http.request(method, f"{url}/{quote(name)}", content=body, headers=headers)
        except httpx.TransportError:  # it was killed, is paused, or has just gone
            return None


if __name__ == "__main__":
    if len(sys.argv) not in (3, 4):
        sys.exit("usage: python kv_client.py HOST:PORT example/kv/KEY [VALUE]")
    try:
        with BlockingRouter.open(kafka={"bootstrap_servers": sys.argv[1]}) as opened:
            client = KvClient(opened)
            print(client.put(*sys.argv[2:]) if len(sys.argv) == 4 else client.get(sys.argv[2]))
    except (StateChannelError, UnansweredError, httpx.HTTPStatusError) as error:
        sys.exit(str(error))
