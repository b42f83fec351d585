"""Asks the HTTP endpoints of brokers what their replicas hold. Every answer is bounded in size and time."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from http.client import HTTPException, HTTPResponse
from typing import cast
from urllib.error import HTTPError
from urllib.parse import urlsplit
from urllib.request import OpenerDirector, ProxyHandler, build_opener

import orjson

from statechannel.audit.replica_word import ReplicaDump, ReplicaWord, ReplicaWordError, parse_dump, parse_word
from statechannel.cli.failures import CommandError
from statechannel.errors import ExitCode
from statechannel.no_redirect import NoRedirect

WORD_MAX_BYTES = 4 << 20
DUMP_MAX_BYTES = 1 << 30
LINE_MAX_BYTES = 4 << 20


class ReplicaEndpoint:
    """One broker's endpoint.

    Args:
        url: `http://HOST:PORT`.
        timeout_s: Longest time for an answer to begin, and between two pieces of it; a dump may take ten times as long.

    Raises:
        CommandError: The address is no such thing.
    """

    def __init__(self, url: str, *, timeout_s: float) -> None:
        self.url = url.rstrip("/")
        try:
            parts = urlsplit(self.url)
            usable = parts.scheme in {"http", "https"} and bool(parts.hostname) and (parts.port or 1) > 0
        except ValueError:
            usable = False
        if not usable:
            raise CommandError(f"{url!r} is no address of a replica", hint="Say http://HOST:PORT.", code=ExitCode.USAGE)
        self._timeout_s = timeout_s
        # A proxy of the environment would be asked for the loopback, and answer.
        self._opener: OpenerDirector = build_opener(ProxyHandler({}), NoRedirect())

    def word(self) -> ReplicaWord:
        """Digests, with the offsets that they are of.

        Raises:
            CommandError: There is no answer.
            ReplicaWordError: The answer is not a digest.
        """
        return parse_word(b"".join(self._get("/digest", WORD_MAX_BYTES, self._timeout_s)))

    def dump(self) -> ReplicaDump:
        """All states.

        Raises:
            CommandError: There is no answer.
            ReplicaWordError: The answer is not a dump.
        """
        return parse_dump(self._get("/dump", DUMP_MAX_BYTES, 10 * self._timeout_s))

    def _get(self, path: str, most_bytes: int, within_s: float) -> Iterator[bytes]:
        until_s = time.monotonic() + within_s
        got = 0
        try:
            with cast("HTTPResponse", self._opener.open(self.url + path, timeout=self._timeout_s)) as answer:
                while piece := answer.readline(LINE_MAX_BYTES):
                    got += len(piece)
                    if got > most_bytes or time.monotonic() > until_s:
                        raise ReplicaWordError(
                            f"{self.url}{path} sends more than {most_bytes:,} bytes, or longer than {within_s:.0f} s.",
                            hint="Check that it is the endpoint of a broker.",
                        )
                    yield piece
        except HTTPError as error:
            with error:
                raise self._refused(path, error.code, error.read(10_000)) from error
        except (OSError, HTTPException) as error:
            raise CommandError(
                f"{self.url}{path} does not answer: {getattr(error, 'reason', None) or error}",
                hint="Check that the broker runs and serves HTTP (observe.metrics_port), or name it with --replica URL.",
                code=ExitCode.UNDETERMINED,
            ) from error

    def _refused(self, path: str, status: int, body: bytes) -> CommandError:
        said, hint = f"status {status}", ""
        try:
            told = orjson.loads(body)
            said, hint = str(told["error"]), str(told.get("hint") or "")
        except (orjson.JSONDecodeError, KeyError, TypeError, AttributeError):
            pass  # not an endpoint of ours, or an old one: the status is all there is
        return CommandError(f"{self.url}{path} refuses: {said}", hint=hint, code=ExitCode.UNDETERMINED)


def endpoints_of(urls: Sequence[str], *, timeout_s: float) -> list[ReplicaEndpoint]:
    """Endpoints by their addresses, each once."""
    return [ReplicaEndpoint(url, timeout_s=timeout_s) for url in dict.fromkeys(urls)]
