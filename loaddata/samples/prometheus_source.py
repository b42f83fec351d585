"""The source `prometheus`: brokers' metrics in Prometheus' text form, or a Prometheus server that has scraped them.

A broker whose endpoint does not answer is silent; the others' samples are there.
"""

from __future__ import annotations

import http.client
import re
import socket
import threading
import time
import urllib.error
import urllib.request
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final
from urllib.parse import urlencode, urlsplit

import orjson
from prometheus_client.parser import text_string_to_metric_families
from tenacity import Retrying, retry_if_exception_type, stop_after_attempt, wait_random_exponential

from loaddata.samples.formulas import BrokerReading, Hole, SampledMinute, Told, samples_of
from loaddata.samples.layout import ClusterLayout
from loaddata.samples.prometheus_series import (
    BROKER,
    MBEAN,
    Figure,
    NameRule,
    Part,
    SeriesKind,
    SeriesPoint,
    TotalsBefore,
    assembled,
    by_processor,
    part_of,
    reading_of,
    rules_of,
)
from loaddata.samples.sources import PartitionSource, SourceError, SourceOptions
from loaddata.samples.strict_json import cut
from statechannel.errors import ExitCode
from statechannel.no_redirect import NoRedirect

_CHUNK: Final = 1 << 16
_LATER: Final = frozenset({408, 425, 429, 500, 502, 503, 504})


class AnswerError(Exception):
    """No usable answer came; the message says why, without what the address may hide."""


class LaterError(AnswerError):
    """None came, and a second try may bring one."""


def checked_url(url: str) -> str:
    """The address of a server of metrics.

    Raises:
        SourceError: It is none that may be asked.
    """
    try:
        parts = urlsplit(url)
        plain = url.isascii() and url.isprintable() and " " not in url  # what a request line can hold
        named = parts.scheme in {"http", "https"} and bool(parts.hostname) and plain
        signed = parts.username is not None
        _ = parts.port
    except ValueError:
        named = signed = False
    if not named:
        raise SourceError(f"{cut(url)} is no address of metrics", hint="Such as http://broker-1:7071/metrics.")
    if signed:
        raise SourceError(
            f"the address of metrics at {urlsplit(url).hostname} has a name or password in it",
            hint="Ask a Prometheus server that is allowed to read it, or put a proxy in front that adds it.",
        )
    return url


def get(url: str, *, timeout_s: float, bytes_max: int, retries: int = 0) -> bytes:
    """The answer's body.

    Args:
        url: As `checked_url` took it.
        timeout_s: Bound of each try, from the connection to the last byte.
        bytes_max: Longest body.
        retries: Further tries where the server is away or busy.

    Raises:
        AnswerError: There is none.
    """
    tries = Retrying(
        retry=retry_if_exception_type(LaterError),
        stop=stop_after_attempt(1 + retries),
        wait=wait_random_exponential(multiplier=0.1, max=2.0),
        reraise=True,
    )
    return tries(_once, url, timeout_s, bytes_max)


class _Asked(urllib.request.Request):
    """A request that knows its connections, so that they can be cut."""

    def __init__(self, url: str) -> None:
        super().__init__(url, headers={"Accept": "*/*"})
        self._connections: list[http.client.HTTPConnection] = []

    def making(self, kind: Callable[..., http.client.HTTPConnection]) -> Callable[..., Any]:
        """Makes connections as `kind` does, and remembers them."""

        def made(*args: Any, **more: Any) -> http.client.HTTPConnection:
            connection = kind(*args, **more)
            self._connections.append(connection)
            return connection

        return made

    def cut(self) -> None:
        """Whoever waits for the other side waits no longer: a time-out of a socket begins anew with each byte."""
        for connection in self._connections:
            if isinstance(connection.sock, socket.socket):
                try:
                    socket.socket.shutdown(connection.sock, socket.SHUT_RDWR)
                except OSError:
                    continue  # it is closed already


class _Http(urllib.request.HTTPHandler):
    def http_open(self, req: Any) -> http.client.HTTPResponse:
        return self.do_open(req.making(http.client.HTTPConnection), req)


class _Https(urllib.request.HTTPSHandler):
    def https_open(self, req: Any) -> http.client.HTTPResponse:
        return self.do_open(req.making(http.client.HTTPSConnection), req)


_opener = urllib.request.OpenerDirector()
for _handler in (
    urllib.request.ProxyHandler({}),
    _Http(),
    _Https(),
    urllib.request.HTTPErrorProcessor(),
    urllib.request.HTTPDefaultErrorHandler(),
    NoRedirect(),
):
    _opener.add_handler(_handler)


def _once(url: str, timeout_s: float, bytes_max: int) -> bytes:
    ends_s = time.monotonic() + timeout_s
    late = f"timed out: the answer was not there whole after {timeout_s:g} s"
    request = _Asked(url)
    watch = threading.Timer(timeout_s, request.cut)
    watch.daemon = True
    watch.start()
    try:
        with _opener.open(request, timeout=timeout_s) as answer:
            parts: list[bytes] = []
            size = 0
            while chunk := answer.read1(_CHUNK):
                size += len(chunk)
                parts.append(chunk)
                if size > bytes_max:
                    raise AnswerError(f"the answer is longer than {bytes_max} bytes")
                if time.monotonic() > ends_s:
                    raise LaterError(late)
            if time.monotonic() > ends_s:  # an answer that was cut looks as if it had ended
                raise LaterError(late)
            if answer.length:
                raise LaterError(f"the answer was cut short: {answer.length} bytes are missing")
            return b"".join(parts)
    except urllib.error.HTTPError as error:
        words = f"HTTP {error.code} {cut(str(error.reason))}"
        raise (LaterError(words) if error.code in _LATER else AnswerError(words)) from None
    except (OSError, ValueError, http.client.HTTPException) as error:  # also URLError and time-outs
        words = str(getattr(error, "reason", error)).strip() or type(error).__name__
        if isinstance(error, http.client.HTTPException) and not isinstance(error, OSError):
            words = f"the answer is not HTTP, or was cut short: {cut(words)}"
        raise LaterError(late if time.monotonic() > ends_s else words) from None
    finally:
        watch.cancel()


NAME: Final = "prometheus"
AT_ONCE: Final = 8
"""Endpoints that are asked at the same time."""
RATE_OVER: Final = "2m"
"""Over so long a Prometheus server takes the growth of a total: two samples have to lie within."""
_TOLD_MAX: Final = 200
_ID: Final = re.compile(r"[0-9]{1,10}", re.ASCII)


def make(options: SourceOptions) -> PartitionSource:
    """The source, by its options: a server, or the brokers' own endpoints.

    Raises:
        SourceError: Neither is named, or both, or an address is none.
    """
    if bool(options.server) is bool(options.endpoints):
        raise SourceError(
            "the source prometheus wants either endpoints of brokers or a Prometheus server",
            hint="Give --endpoint [ID=]URL for each broker, or --server URL.",
        )
    return ServerSource(options) if options.server else EndpointSource(options)


class EndpointSource:
    """Scrapes brokers themselves."""

    name = NAME

    def __init__(self, options: SourceOptions) -> None:
        self._options = options
        self._named = [_endpoint(text) for text in options.endpoints]
        self._before: dict[int, TotalsBefore] = defaultdict(TotalsBefore)

    def take(self, layout: ClusterLayout, *, taken_at_ms: int, mono_s: float) -> SampledMinute:
        """See `PartitionSource`.

        Raises:
            SourceError: An endpoint is of no broker, or of several.
        """
        addresses = self._addresses(layout)
        with ThreadPoolExecutor(max_workers=AT_ONCE, thread_name_prefix="scrape") as pool:
            answers = dict(zip(addresses, pool.map(self._scraped, addresses.values()), strict=True))
        readings: dict[int, BrokerReading] = {}
        silent: dict[int, str] = {}
        for broker, answer in answers.items():
            if isinstance(answer, str):
                silent[broker] = f"{addresses[broker]}: {answer}"
            else:
                readings[broker] = reading_of(answer, self._before[broker], mono_s)
        for one in layout.brokers:
            if one.alive and one.id not in addresses:
                silent[one.id] = "no endpoint of it was named"
        return samples_of(layout, readings, taken_at_ms=taken_at_ms, source=NAME, silent=silent)

    def _addresses(self, layout: ClusterLayout) -> dict[int, str]:
        known = {broker.id for broker in layout.brokers}
        found: dict[int, str] = {}
        for broker, url in self._named:
            number = broker_at(urlsplit(url).hostname or "", layout, url) if broker is None else broker
            if number not in known:
                raise SourceError(
                    f"{url} is named as of broker {number}, and the cluster has none", hint="Look at its id."
                )
            if number in found:
                raise SourceError(
                    f"two endpoints are of broker {number}", hint="Write --endpoint ID=URL, one for each."
                )
            found[number] = url
        return found

    def _scraped(self, url: str) -> list[SeriesPoint] | str:
        options = self._options
        try:
            body = get(url, timeout_s=options.timeout_s, bytes_max=options.answer_bytes_max, retries=options.retries)
            return list(points_of(body))
        except AnswerError as error:
            return str(error)
        except ValueError as error:
            return f"the answer is not Prometheus' text form: {str(error)[:_TOLD_MAX]}"


def _endpoint(text: str) -> tuple[int | None, str]:
    number, equals, url = text.partition("=")
    if equals and _ID.fullmatch(number.strip()):
        return int(number), checked_url(url.strip())
    return None, checked_url(text.strip())


def broker_at(host: str, layout: ClusterLayout, what: str) -> int:
    """The broker at a host.

    Raises:
        SourceError: There is none, or there are several.
    """
    found = [broker.id for broker in layout.brokers if broker.alive and broker.host == host]
    if len(found) != 1:
        count = "no broker" if not found else f"{len(found)} brokers"
        raise SourceError(
            f"{what} says nothing about which broker it is of: {count} of the cluster is at {host}",
            hint="Write --endpoint ID=URL, with the broker's id.",
        )
    return found[0]


def points_of(body: bytes) -> Iterator[SeriesPoint]:
    """Series of an answer in Prometheus' text form.

    Raises:
        ValueError: It is not of that form.
    """
    try:
        for family in text_string_to_metric_families(body.decode("utf-8")):
            for sample in family.samples:
                yield SeriesPoint(sample.name, sample.labels, sample.value)
    except (ArithmeticError, LookupError, AttributeError, TypeError) as error:  # the parser trusts its input
        raise ValueError(str(error) or type(error).__name__) from None


class ServerSource:
    """Asks a Prometheus server: one instant query for each name that a figure may have, until one has series."""

    name = NAME

    def __init__(self, options: SourceOptions) -> None:
        self._options = options
        self._server = checked_url(options.server).rstrip("/")

    def take(self, layout: ClusterLayout, *, taken_at_ms: int, mono_s: float) -> SampledMinute:
        """See `PartitionSource`; rates are the server's.

        Raises:
            SourceError: The server does not answer, or answers with an error.
        """
        del mono_s
        told: dict[int, dict[Figure, dict[Part, Told]]] = defaultdict(dict)
        strangers: set[str] = set()
        used: dict[Figure, NameRule | None] = {}
        for figure in (one for one in Figure if one is not Figure.PROCESSORS):
            used[figure] = self._ask(figure, layout, told, strangers)
        cpu = used[Figure.CPU]
        if cpu is not None and cpu.per_processor:
            self._ask(Figure.PROCESSORS, layout, told, strangers)
            for figures in told.values():
                processors = figures.get(Figure.PROCESSORS, {}).get(BROKER, Hole.NOT_TOLD)
                shares = figures.get(Figure.CPU, {})
                figures[Figure.CPU] = {part: by_processor(share, processors) for part, share in shares.items()}
        readings = {broker: assembled(figures) for broker, figures in told.items()}
        silent = {
            one.id: f"{self._server} has no series of it by the label {self._options.broker_label}"
            for one in layout.brokers
            if one.alive and one.id not in readings
        }
        remarks: tuple[str, ...] = ()
        if strangers:
            shown = ", ".join(sorted(strangers)[:5])
            remarks = (
                f"{len(strangers)} values of the label {self._options.broker_label} are of no broker of this cluster: {shown}",
            )
        return samples_of(layout, readings, taken_at_ms=taken_at_ms, source=NAME, silent=silent, remarks=remarks)

    def _ask(
        self,
        figure: Figure,
        layout: ClusterLayout,
        told: dict[int, dict[Figure, dict[Part, Told]]],
        strangers: set[str],
    ) -> NameRule | None:
        """Ask for a figure of all brokers; returns by which name it was found."""
        for rule in rules_of(figure):
            result = self._query(query_of(rule))
            for labels, value in result:
                broker, part = self._broker(labels, layout, strangers), part_of(labels)
                if broker is not None and part is not None:
                    told[broker].setdefault(figure, {})[part] = value
            if result:
                return rule
        return None

    def _broker(self, labels: Mapping[str, str], layout: ClusterLayout, strangers: set[str]) -> int | None:
        said = labels.get(self._options.broker_label, "")
        if said in self._options.brokers:
            return self._options.brokers[said]
        host = said.rpartition(":")[0] or said
        found = [
            broker.id
            for broker in layout.brokers
            if broker.alive and (broker.host in {host, said} or str(broker.id) == said)
        ]
        if len(found) == 1:
            return found[0]
        strangers.add(said)
        return None

    def _query(self, query: str) -> Sequence[tuple[Mapping[str, str], float]]:
        options = self._options
        url = f"{self._server}/api/v1/query?{urlencode({'query': query})}"
        try:
            body = get(url, timeout_s=options.timeout_s, bytes_max=options.answer_bytes_max, retries=options.retries)
            return vector_of(body)
        except AnswerError as error:
            raise SourceError(
                f"the Prometheus server {self._server} did not answer a query: {error}",
                hint="Check --server, and that it is a Prometheus server (its path ends before /api/v1).",
                exit_code=ExitCode.FAILED,
            ) from None


def query_of(rule: NameRule) -> str:
    """The instant query of one rule."""
    mbean = f',{MBEAN}="{rule.mbean}"' if rule.mbean else ""
    series = f'{{__name__=~"(?i:{rule.name})"{mbean}}}'
    return series if rule.kind is SeriesKind.VALUE else f"rate({series}[{RATE_OVER}])"


def vector_of(body: bytes) -> list[tuple[Mapping[str, str], float]]:
    """Labels and values of an answer to an instant query.

    Raises:
        AnswerError: It is none.
    """
    try:
        answer: Any = orjson.loads(body)
        if answer["status"] != "success":
            raise AnswerError(str(answer.get("error", "no success"))[:_TOLD_MAX])
        if answer["data"]["resultType"] != "vector":
            raise AnswerError("the result is no vector")
        return [(_labels(one["metric"]), float(one["value"][1])) for one in answer["data"]["result"]]
    except (orjson.JSONDecodeError, KeyError, TypeError, ValueError, IndexError, AttributeError) as error:
        raise AnswerError(f"the answer is not that of a Prometheus server: {str(error)[:_TOLD_MAX]}") from None


def _labels(told: Any) -> Mapping[str, str]:
    found = dict(told)
    if not all(isinstance(value, str) for value in found.values()):
        raise TypeError("a label is no text")
    return found
