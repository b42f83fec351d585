"""The source `prometheus`: brokers' metrics in Prometheus' text form, or a Prometheus server that has scraped them.

First come the rules that turn series into a broker's reading (names to figures, totals to rates over two scrapes), which do no
I/O; then the HTTP client; then the two sources. A broker whose endpoint does not answer is silent; the others' samples are there.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from enum import StrEnum
from math import isnan
from types import MappingProxyType
from typing import Any, Final, NamedTuple
from urllib.parse import urlencode, urlsplit

import orjson
from prometheus_client.parser import text_string_to_metric_families
from tenacity import Retrying, retry_if_exception, stop_after_attempt, wait_random_exponential

from loaddata.model.hosts import host_of
from loaddata.samples.formulas import BrokerReading, FigureOrHole, Hole, SampledMinute, samples_of, sound
from loaddata.samples.partitions import ClusterLayout
from loaddata.samples.sources import PartitionSource, SourceError, SourceOptions
from loaddata.samples.strict_json import cut
from statechannel import http_client
from statechannel.errors import ExitCode
from statechannel.http_client import HttpError, is_http_url


class Figure(StrEnum):
    BYTES_IN = "bytes in"
    BYTES_OUT = "bytes out"
    REPLICATION_IN = "replication in"
    LOG_SIZE = "log size"
    CPU = "cpu"
    PROCESSORS = "processors"


class SeriesKind(StrEnum):
    VALUE = "value"
    TOTAL = "total"


@dataclass(frozen=True, slots=True)
class NameRule:
    """One name of one figure.

    Attributes:
        name: Of the series, in lower case.
        kind: A value (a rate, a size, a share), or a total whose growth per second is the value.
        mbean: The value that the label `name` must have; empty: any.
        per_processor: The value is in processors: divided by how many the machine has.
    """

    figure: Figure
    name: str
    kind: SeriesKind
    mbean: str = ""
    per_processor: bool = False


_TRAFFIC: Final = "kafka_server_brokertopicmetrics"


def _traffic(figure: Figure, mbean: str) -> tuple[NameRule, ...]:
    short = mbean.lower().removesuffix("persec")
    return (
        NameRule(figure, f"{_TRAFFIC}_{short}persec_oneminuterate", SeriesKind.VALUE),
        NameRule(figure, f"{_TRAFFIC}_{short}_oneminuterate", SeriesKind.VALUE),
        NameRule(figure, f"{_TRAFFIC}_oneminuterate", SeriesKind.VALUE, mbean),
        NameRule(figure, f"{_TRAFFIC}_{short}_total", SeriesKind.TOTAL),
        NameRule(figure, f"{_TRAFFIC}_{short}persec_total", SeriesKind.TOTAL),
        NameRule(figure, f"{_TRAFFIC}_{short}persec_count", SeriesKind.TOTAL),
        NameRule(figure, f"{_TRAFFIC}_{short}_count", SeriesKind.TOTAL),
        NameRule(figure, f"{_TRAFFIC}_count", SeriesKind.TOTAL, mbean),
    )


RULES: Final[Sequence[NameRule]] = (
    *_traffic(Figure.BYTES_IN, "BytesInPerSec"),
    *_traffic(Figure.BYTES_OUT, "BytesOutPerSec"),
    *_traffic(Figure.REPLICATION_IN, "ReplicationBytesInPerSec"),
    NameRule(Figure.LOG_SIZE, "kafka_log_log_size", SeriesKind.VALUE),
    NameRule(Figure.LOG_SIZE, "kafka_log_log_size_value", SeriesKind.VALUE),
    NameRule(Figure.LOG_SIZE, "kafka_log_log_value", SeriesKind.VALUE, "Size"),
    NameRule(Figure.CPU, "java_lang_operatingsystem_processcpuload", SeriesKind.VALUE),
    NameRule(Figure.CPU, "process_cpu_usage", SeriesKind.VALUE),
    NameRule(Figure.CPU, "process_cpu_seconds_total", SeriesKind.TOTAL, per_processor=True),
    NameRule(Figure.PROCESSORS, "java_lang_operatingsystem_availableprocessors", SeriesKind.VALUE),
    NameRule(Figure.PROCESSORS, "system_cpu_count", SeriesKind.VALUE),
)
"""In order of preference for each figure."""

TOPIC: Final = "topic"
PARTITION: Final = "partition"
MBEAN: Final = "name"


def rules_of(figure: Figure) -> tuple[NameRule, ...]:
    return tuple(rule for rule in RULES if rule.figure is figure)


Part = tuple[str, int]
"""Topic and partition; "" and -1 where a series is of the whole broker, -1 where it is of a topic."""
BROKER: Part = ("", -1)
_NUMBER: Final = re.compile(r"[0-9]{1,10}", re.ASCII)

_BY_NAME: Mapping[str, tuple[NameRule, ...]] = {
    name: tuple(rule for rule in RULES if rule.name == name) for name in {rule.name for rule in RULES}
}


class SeriesPoint(NamedTuple):
    """One series at one moment."""

    name: str
    labels: Mapping[str, str]
    value: float


def rule_of(point: SeriesPoint) -> NameRule | None:
    """What a series is; None where it is nothing that is asked for."""
    for rule in _BY_NAME.get(point.name.lower(), ()):
        if not rule.mbean or point.labels.get(MBEAN, "").lower() == rule.mbean.lower():
            return rule
    return None


def part_of(labels: Mapping[str, str]) -> Part | None:
    """Which topic and partition a series is of; None where its partition is not a number."""
    topic = labels.get(TOPIC, "").strip('"')
    number = labels.get(PARTITION, "")
    if not number:
        return topic, -1
    return (topic, int(number)) if _NUMBER.fullmatch(number) else None


Figures = dict[Part, FigureOrHole]
_FUTURE: Final = re.compile(r"is[^a-z]?future", re.IGNORECASE)
_KEY: Final = frozenset({TOPIC, PARTITION, MBEAN, "__name__"})


@dataclass(slots=True)
class Collected:
    """Figures of brokers' series, by rule and place. Where series of one place differ, none can be chosen: a hole.

    Attributes:
        several: Labels of series that differ in value, by figure and place.
    """

    series: dict[int, dict[NameRule, Figures]] = field(default_factory=dict)
    several: dict[Figure, dict[tuple[int, Part], list[Mapping[str, str]]]] = field(default_factory=dict)
    _labels: dict[tuple[int, NameRule, Part], Mapping[str, str]] = field(default_factory=dict)

    def add(self, broker: int, rule: NameRule, labels: Mapping[str, str], value: float) -> None:
        part = part_of(labels)
        # A log that is being copied to another directory is not yet the partition's.
        if part is None or any(
            _FUTURE.fullmatch(name) and text.lower() not in {"", "false"} for name, text in labels.items()
        ):
            return
        figures = self.series.setdefault(broker, {}).setdefault(rule, {})
        first = self._labels.setdefault((broker, rule, part), labels)
        before = figures.setdefault(part, value)
        if isinstance(before, Hole) or not (before == value or (isnan(before) and isnan(value))):
            figures[part] = Hole.SEVERAL_SERIES
            self.several.setdefault(rule.figure, {}).setdefault((broker, part), [first]).append(labels)

    def remarks(self) -> Iterator[str]:
        """A sentence for each figure that has such holes: how many, one of them, and what tells its series apart."""
        for figure, places in self.several.items():
            (broker, (topic, number)), series = next(iter(places.items()))
            names = sorted({name for labels in series for name in labels} - _KEY)
            values = {name: sorted({labels.get(name, "") for labels in series}) for name in names}
            apart = [
                f"{name} {', '.join(texts[:_NAMED_MAX])}{' ...' if texts[_NAMED_MAX:] else ''}"
                for name, texts in values.items()
                if texts[1:]
            ]
            place = f"{topic}{f'-{number}' if number >= 0 else ''} on " if topic else ""
            yield (
                f"{figure}: {len(places)} places have several series of different values, such as {place}broker {broker}; they "
                f"differ in {'; '.join(apart) or 'nothing but the value'}: choose with --selector LABEL=VALUE"
            )


@dataclass(slots=True)
class TotalsBefore:
    """Totals of the look before, of one broker."""

    seen: dict[tuple[NameRule, Part], tuple[float, float]] = field(default_factory=dict)

    def rate(self, rule: NameRule, part: Part, total: FigureOrHole, at_s: float) -> FigureOrHole:
        """Growth per second since the look before; a hole where there was none, or where it went back (a restart)."""
        checked = sound(total)
        if isinstance(checked, Hole):
            return checked
        before = self.seen.get((rule, part))
        self.seen[rule, part] = checked, at_s
        if before is None or at_s <= before[1]:
            return Hole.FIRST_LOOK
        return (checked - before[0]) / (at_s - before[1]) if checked >= before[0] else Hole.WENT_BACK


def reading_of(
    series: Mapping[NameRule, Figures], before: TotalsBefore | None = None, at_s: float = 0.0
) -> BrokerReading:
    """The reading of a broker from all that is known of it.

    Args:
        before: Totals of the look before, which those of this one replace; None: totals are rates already.
    """
    figures = {figure: _figures(figure, series, before, at_s) for figure in Figure}

    def of_topics(figure: Figure) -> dict[str, FigureOrHole]:
        return {topic: value for (topic, number), value in figures[figure].items() if topic and number < 0}

    def of_broker(figure: Figure) -> FigureOrHole:
        return figures[figure].get(BROKER, Hole.NOT_TOLD)

    return BrokerReading(
        bytes_in=of_broker(Figure.BYTES_IN),
        replication_in=of_broker(Figure.REPLICATION_IN),
        cpu=of_broker(Figure.CPU),
        topic_in=of_topics(Figure.BYTES_IN),
        topic_out=of_topics(Figure.BYTES_OUT),
        log_bytes={part: value for part, value in figures[Figure.LOG_SIZE].items() if part[0] and part[1] >= 0},
    )


def _figures(figure: Figure, series: Mapping[NameRule, Figures], before: TotalsBefore | None, at_s: float) -> Figures:
    rule = next((rule for rule in rules_of(figure) if series.get(rule)), None)
    if rule is None:
        return {}
    values = series[rule]
    if rule.kind is SeriesKind.TOTAL and before is not None:
        values = {part: before.rate(rule, part, total, at_s) for part, total in values.items()}
    if rule.per_processor:
        processors = _figures(Figure.PROCESSORS, series, before, at_s).get(BROKER, Hole.NOT_TOLD)
        values = {part: by_processor(used, processors) for part, used in values.items()}
    return values


def by_processor(used: FigureOrHole, processors: FigureOrHole) -> FigureOrHole:
    """The share of all processors for a number of used ones."""
    if isinstance(used, Hole) or isinstance(processors, Hole):
        return next(figure for figure in (used, processors) if isinstance(figure, Hole))
    return used / processors if processors > 0 else Hole.ZERO_DENOMINATOR


class AnswerError(Exception):
    """No usable answer came; the message says why, without secrets of the address."""


def checked_url(url: str) -> str:
    if not is_http_url(url):
        raise SourceError(f"{cut(url)} is not an address of metrics", hint="Such as http://broker-1:7071/metrics.")
    parts = urlsplit(url)
    if parts.username is not None:
        raise SourceError(
            f"the address of metrics at {parts.hostname} contains credentials",
            hint="Ask a Prometheus server that is allowed to read it, or put a proxy in front that adds it.",
        )
    return url


def get(url: str, *, timeout_s: float, bytes_max: int, retries: int = 0) -> bytes:
    """The answer's body. `timeout_s` bounds each try from the connection to the last byte; a busy server is asked again."""
    tries = Retrying(
        retry=retry_if_exception(lambda error: isinstance(error, HttpError) and error.retryable),
        stop=stop_after_attempt(1 + retries),
        wait=wait_random_exponential(multiplier=0.1, max=2.0),
        reraise=True,
    )
    try:
        return tries(http_client.get, url, timeout_s=timeout_s, max_bytes=bytes_max)
    except HttpError as error:
        raise AnswerError(str(error)) from None


NAME: Final = "prometheus"
AT_ONCE: Final = 8
"""Endpoints that are asked at the same time."""
RATE_OVER: Final = "2m"
"""Over so long a Prometheus server takes the growth of a total: two samples have to lie within."""
_SHOWN_MAX: Final = 200
_NAMED_MAX: Final = 5


def make(options: SourceOptions) -> PartitionSource:
    if bool(options.server) is bool(options.endpoints):
        raise SourceError(
            "the source prometheus wants either endpoints of brokers or a Prometheus server",
            hint="Give --endpoint [ID=]URL for each broker, or --server URL.",
        )
    return ServerSource(options) if options.server else EndpointSource(options)


class EndpointSource:
    name = NAME

    def __init__(self, options: SourceOptions) -> None:
        self._options = options
        self._named = [_endpoint(text) for text in options.endpoints]
        self._before: dict[int, TotalsBefore] = defaultdict(TotalsBefore)

    def take(self, layout: ClusterLayout, *, taken_at_ms: int, mono_s: float) -> SampledMinute:
        addresses = self._addresses(layout)
        with ThreadPoolExecutor(max_workers=AT_ONCE, thread_name_prefix="scrape") as pool:
            answers = dict(zip(addresses, pool.map(self._scraped, addresses.values()), strict=True))
        collected = Collected()
        readings: dict[int, BrokerReading] = {}
        silent: dict[int, str] = {}
        for broker, answer in answers.items():
            if isinstance(answer, str):
                silent[broker] = f"{addresses[broker]}: {answer}"
            else:
                figures = [(rule, point) for point in answer if (rule := rule_of(point))]
                if all(rule.figure in _OF_ANY_PROCESS for rule, _ in figures):
                    silent[broker] = f"{addresses[broker]}: {_other_metrics(answer)}"
                    continue
                for rule, point in figures:
                    collected.add(broker, rule, point.labels, point.value)
                readings[broker] = reading_of(collected.series.get(broker, {}), self._before[broker], mono_s)
        for member in layout.brokers:
            if member.alive and member.id not in addresses:
                silent[member.id] = "no endpoint was given for it"
        return samples_of(
            layout, readings, taken_at_ms=taken_at_ms, source=NAME, silent=silent, remarks=tuple(collected.remarks())
        )

    def _addresses(self, layout: ClusterLayout) -> dict[int, str]:
        known = {broker.id for broker in layout.brokers}
        addresses: dict[int, str] = {}
        for broker, url in self._named:
            number = broker_at(urlsplit(url).hostname or "", layout, url) if broker is None else broker
            if number not in known:
                raise SourceError(
                    f"{url} is given for broker {number}, which the cluster does not have",
                    hint="Check the broker's id.",
                )
            if number in addresses:
                raise SourceError(
                    f"two endpoints belong to broker {number}", hint="Write --endpoint ID=URL, one for each broker."
                )
            addresses[number] = url
        return addresses

    def _scraped(self, url: str) -> list[SeriesPoint] | str:
        options = self._options
        try:
            body = get(url, timeout_s=options.timeout_s, bytes_max=options.answer_bytes_max, retries=options.retries)
            wanted = options.selector.items()
            return [
                point for point in points_of(body) if all(point.labels.get(name) == value for name, value in wanted)
            ]
        except AnswerError as error:
            return str(error)
        except ValueError as error:
            return f"the answer is not Prometheus' text form: {str(error)[:_SHOWN_MAX]}"


_OF_ANY_PROCESS: Final = frozenset({Figure.CPU, Figure.PROCESSORS})


def _other_metrics(points: Sequence[SeriesPoint]) -> str:
    """What metrics without a broker's figures are, and what is needed instead."""
    is_exporter = any(point.name.startswith("kafka_topic_partition_") for point in points)
    what = "metrics of kafka_exporter, which has offsets, but " if is_exporter else "it has "
    return f"{what}neither traffic nor sizes of partitions: name the broker's own metrics (JMX exporter)"


def _endpoint(text: str) -> tuple[int | None, str]:
    number, equals, url = text.partition("=")
    if equals and _NUMBER.fullmatch(number.strip()):
        return int(number), checked_url(url.strip())
    return None, checked_url(text.strip())


def broker_at(host: str, layout: ClusterLayout, what: str) -> int:
    ids = [broker.id for broker in layout.brokers if broker.alive and broker.host == host]
    if len(ids) != 1:
        those = "no broker of the cluster is" if not ids else f"{len(ids)} brokers of the cluster are"
        raise SourceError(
            f"{what} does not say which broker it belongs to: {those} at {host}",
            hint="Write --endpoint ID=URL, with the broker's id.",
        )
    return ids[0]


def points_of(body: bytes) -> Iterator[SeriesPoint]:
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
        """See `PartitionSource`; rates are the server's."""
        del mono_s
        collected, unknown = Collected(), set[str]()
        used = {
            figure: self._ask(figure, layout, collected, unknown)
            for figure in Figure
            if figure is not Figure.PROCESSORS
        }
        if (cpu := used[Figure.CPU]) and cpu.per_processor:
            self._ask(Figure.PROCESSORS, layout, collected, unknown)
        readings = {broker: reading_of(series) for broker, series in collected.series.items()}
        silent = {
            broker.id: f"{self._server} has no series of it by the label {self._options.broker_label}"
            if unknown or readings
            else f"{self._server} has no series of Kafka's brokers, as their JMX exporters have them"
            for broker in layout.brokers
            if broker.alive and broker.id not in readings
        }
        remarks = [*collected.remarks()]
        if unknown:
            shown = ", ".join(sorted(unknown)[:_NAMED_MAX])
            remarks.append(
                f"{len(unknown)} values of the label {self._options.broker_label} belong to no broker of this cluster: {shown}"
            )
        return samples_of(layout, readings, taken_at_ms=taken_at_ms, source=NAME, silent=silent, remarks=tuple(remarks))

    def _ask(self, figure: Figure, layout: ClusterLayout, collected: Collected, unknown: set[str]) -> NameRule | None:
        """Ask for a figure of all brokers; returns by which name it was found."""
        for rule in rules_of(figure):
            result = self._query(query_of(rule, self._options.selector))
            for labels, value in result:
                broker = self._broker(labels, layout, unknown)
                if broker is not None:
                    collected.add(broker, rule, labels, value)
            if result:
                return rule
        return None

    def _broker(self, labels: Mapping[str, str], layout: ClusterLayout, unknown: set[str]) -> int | None:
        label = labels.get(self._options.broker_label, "")
        if label in self._options.brokers:
            return self._options.brokers[label]
        host = (host_of(label) or "").strip("[]")
        ids = [
            broker.id
            for broker in layout.brokers
            if broker.alive and (broker.host.lower() in {host, label.lower()} or str(broker.id) == label)
        ]
        if len(ids) == 1:
            return ids[0]
        unknown.add(label)
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


def query_of(rule: NameRule, selector: Mapping[str, str] = MappingProxyType({})) -> str:
    labels = ({MBEAN: rule.mbean} if rule.mbean else {}) | dict(selector)
    matchers = (f",{name}={orjson.dumps(value).decode()}" for name, value in labels.items())  # escapes as in JSON
    series = f'{{__name__=~"(?i:{rule.name})"{"".join(matchers)}}}'
    return series if rule.kind is SeriesKind.VALUE else f"rate({series}[{RATE_OVER}])"


def vector_of(body: bytes) -> list[tuple[Mapping[str, str], float]]:
    """Labels and values of an answer to an instant query."""
    try:
        answer: Any = orjson.loads(body)
        if answer["status"] != "success":
            raise AnswerError(str(answer.get("error", "no success"))[:_SHOWN_MAX])
        if answer["data"]["resultType"] != "vector":
            raise AnswerError("the result is not a vector")
        return [(_labels(point["metric"]), float(point["value"][1])) for point in answer["data"]["result"]]
    except (orjson.JSONDecodeError, KeyError, TypeError, ValueError, IndexError, AttributeError) as error:
        raise AnswerError(f"this is not an answer of a Prometheus server: {str(error)[:_SHOWN_MAX]}") from None


def _labels(metric: Any) -> Mapping[str, str]:
    labels = dict(metric)
    if not all(isinstance(value, str) for value in labels.values()):
        raise TypeError("a label is not text")
    return labels
