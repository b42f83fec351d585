"""The source `prometheus`: brokers' metrics in Prometheus' text form, or a Prometheus server that has scraped them.

A broker whose endpoint does not answer is silent; the others' samples are there.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final
from urllib.parse import urlencode, urlsplit

import orjson
from prometheus_client.parser import text_string_to_metric_families

from loaddata.partitions.formulas import BrokerReading, Hole, Taken, Told, samples_of
from loaddata.partitions.http_get import AnswerError, checked_url, get
from loaddata.partitions.layout import ClusterLayout
from loaddata.partitions.metric_names import MBEAN, Figure, Kind, NameRule, rules_of
from loaddata.partitions.series import BROKER, Part, Point, TotalsBefore, assembled, by_processor, part_of, reading_of
from loaddata.partitions.sources import PartitionSource, SourceError, SourceOptions
from statechannel.errors import ExitCode

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

    def take(self, layout: ClusterLayout, *, taken_at_ms: int, mono_s: float) -> Taken:
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

    def _scraped(self, url: str) -> list[Point] | str:
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


def points_of(body: bytes) -> Iterator[Point]:
    """Series of an answer in Prometheus' text form.

    Raises:
        ValueError: It is not of that form.
    """
    try:
        for family in text_string_to_metric_families(body.decode("utf-8")):
            for sample in family.samples:
                yield Point(sample.name, sample.labels, sample.value)
    except (ArithmeticError, LookupError, AttributeError, TypeError) as error:  # the parser trusts its input
        raise ValueError(str(error) or type(error).__name__) from None


class ServerSource:
    """Asks a Prometheus server: one instant query for each name that a figure may have, until one has series."""

    name = NAME

    def __init__(self, options: SourceOptions) -> None:
        self._options = options
        self._server = checked_url(options.server).rstrip("/")

    def take(self, layout: ClusterLayout, *, taken_at_ms: int, mono_s: float) -> Taken:
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
        found = [one.id for one in layout.brokers if one.alive and (one.host in {host, said} or str(one.id) == said)]
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
    return series if rule.kind is Kind.VALUE else f"rate({series}[{RATE_OVER}])"


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
