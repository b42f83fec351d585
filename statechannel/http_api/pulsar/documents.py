"""Pulsar's JSON, and the translation from and to the rows and bodies of the admin API. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from http import HTTPStatus
from itertools import chain
from typing import Any, Final
from urllib.parse import unquote, unquote_plus

from pydantic import ConfigDict, Field, model_validator

from statechannel.http_api.problems import ProblemError
from statechannel.protocol.bundle import (
    FULL_UPPER,
    MAX_CHILDREN,
    bounds_at,
    children_of,
    even_bounds,
    is_bundle,
    is_new_namespace,
    namespace_bounds,
)
from statechannel.queries.query import RequestModel

SPLIT_EVENLY: Final = "range_equally_divide"
SPLIT_AT: Final = "specified_positions_divide"
MIN_AVAILABLE: Final = "min_available"
_ANY_USAGE: Final = "100"
"""The only usage threshold that policies here can express: load excludes no broker from an isolation policy."""
_NAMES_MAX: Final = 1_000
_BOUND: Final = re.compile("0[xX]0*[0-9a-fA-F]{1,8}", re.ASCII)
_UNSET: Final = (None, False, "", -1, 0, "None", "UNDEFINED")
"""What Pulsar's clients send for settings of a namespace that are not set."""
_URL_FIELDS: Final[Mapping[str, str]] = {
    "pulsar": "brokerUrl",
    "pulsar+ssl": "brokerUrlTls",
    "http": "httpUrl",
    "https": "httpUrlTls",
}


class PulsarQuery(RequestModel):
    """Parameters that are not needed are passed over, as Pulsar does."""

    model_config = ConfigDict(extra="ignore")


class HealthQuery(PulsarQuery):
    """Whose health."""

    broker_id: str = Field("", alias="brokerId", max_length=1_024)


class BundleUnloadQuery(PulsarQuery):
    """Where a bundle is to go."""

    destination: str = Field("", alias="destinationBroker", max_length=1_024)


class BundleSplitQuery(PulsarQuery):
    """How a bundle is split."""

    unload: bool = False
    algorithm: str = Field("", alias="splitAlgorithmName", max_length=1_024)


class NamespaceDeletionQuery(PulsarQuery):
    """Whether a namespace goes with all that is in it."""

    force: bool = False


def _as_array(schema: dict[str, Any]) -> None:
    schema.clear()
    schema |= {"type": "array", "items": {"type": "integer", "minimum": 0, "maximum": FULL_UPPER}}


class SplitBoundaries(RequestModel):
    """Hashes at which a bundle is cut: a list in Pulsar's JSON."""

    model_config = ConfigDict(json_schema_extra=_as_array)

    at: list[int] = Field([], max_length=MAX_CHILDREN)

    @model_validator(mode="before")
    @classmethod
    def _of_list(cls, value: Any) -> Any:
        if value not in ({}, None) and not isinstance(value, list):
            raise ValueError("is not a list of hashes")
        return {"at": value or []}


class NewBundles(RequestModel):
    """The bundles of a new namespace."""

    model_config = ConfigDict(extra="ignore")

    number: int | None = Field(None, alias="numBundles", ge=0, le=MAX_CHILDREN)
    boundaries: list[str] | None = Field(None, max_length=MAX_CHILDREN + 1)


class NewNamespace(RequestModel):
    """Pulsar's policies of a new namespace; all others than these must be unset."""

    model_config = ConfigDict(extra="allow")

    bundles: NewBundles | None = None
    replication_clusters: list[str] = Field([], max_length=_NAMES_MAX)


class AutoFailover(RequestModel):
    """When stand-by brokers may be used."""

    model_config = ConfigDict(extra="ignore", coerce_numbers_to_str=True)  # as Pulsar's Jackson

    policy_type: str = Field(max_length=64)
    parameters: dict[str, str] = Field({}, max_length=100)


class NewIsolation(RequestModel):
    """An isolation policy of namespaces, as Pulsar has it."""

    model_config = ConfigDict(extra="ignore")

    namespaces: list[str] = Field([], max_length=_NAMES_MAX)
    primary: list[str] = Field([], max_length=_NAMES_MAX)
    secondary: list[str] = Field([], max_length=_NAMES_MAX)
    auto_failover_policy: AutoFailover | None = None
    unload_scope: str | None = Field(None, max_length=64)


def invalid(message: str, hint: str = "") -> ProblemError:
    """Pulsar's answer to an argument that is not valid (412)."""
    return ProblemError("bad-request", message, status=HTTPStatus.PRECONDITION_FAILED, hint=hint)


def not_supported(message: str, hint: str = "") -> ProblemError:
    """What this cluster does not have (501)."""
    return ProblemError("not-supported", message, hint=hint)


# --- names ----------------------------------------------------------------------------------------------------------


def namespace_of(path: Mapping[str, str]) -> str:
    """The namespace of an encoded path.

    Raises:
        ProblemError: It is not the name of a namespace.
    """
    name = f"{unquote(path['tenant'])}/{unquote(path['namespace'])}"
    if not is_new_namespace(name):  # clients drop parts `.` and `..`, and so mean another name
        raise invalid(f"{name[:200]!r} is not a namespace", "Use tenant/namespace, neither of them . or .. alone.")
    return name


def bundle_of(path: Mapping[str, str]) -> str:
    """The bundle of an encoded path.

    Raises:
        ProblemError: It is not the name of a bundle.
    """
    wanted = unquote(path["bundle"])
    if wanted in ("LARGEST", "HOT"):
        raise not_supported(f"the bundle {wanted} is not known here", "Name its range: 0x..._0x...")
    name = f"{namespace_of(path)}/{wanted.lower()}"  # Pulsar reads digits of either case
    if not is_bundle(name):
        raise invalid(f"{name[:200]!r} is not a bundle", "Use 0x..._0x..., eight hexadecimal digits each.")
    return name


def topic_of(path: Mapping[str, str]) -> str:
    """The full name of the topic of an encoded path. Pulsar's clients encode it as forms are: a space is `+`.

    Raises:
        ProblemError: It is not the name of a topic.
    """
    domain, topic = path["domain"], unquote_plus(path["topic"])
    if domain not in ("persistent", "non-persistent") or not topic:
        raise invalid(f"{domain[:100]!r} is not a domain of topics", "Use persistent or non-persistent.")
    return f"{domain}://{namespace_of(path)}/{topic}"


# --- answers --------------------------------------------------------------------------------------------------------


def lookup_document(urls: Mapping[str, str]) -> dict[str, str | None]:
    """Addresses by their scheme; what a broker does not advertise is null."""
    by_field = {
        _URL_FIELDS.get(url.partition("://")[0].lower(), ""): url for _, url in sorted(urls.items(), reverse=True)
    }
    return {
        "brokerUrl": by_field.get("brokerUrl"),
        "brokerUrlTls": by_field.get("brokerUrlTls"),
        "httpUrl": by_field.get("httpUrl"),
        "httpUrlTls": by_field.get("httpUrlTls"),
        "nativeUrl": by_field.get("brokerUrl"),
    }


def with_api(urls: Mapping[str, str], api: str | None) -> Mapping[str, str]:
    """The addresses of a broker; one that advertises no HTTP address has that of its admin API.

    Args:
        api: URL of the admin API, if it serves one.
    """
    return urls if api is None or service_url(urls) is not None else {**urls, "api": api}


def service_url(urls: Mapping[str, str]) -> str | None:
    """The HTTP address that a broker advertises."""
    addresses = lookup_document(urls)
    return addresses["httpUrl"] or addresses["httpUrlTls"]


def cluster_document(broker_urls: Iterable[Mapping[str, str]]) -> dict[str, str | None]:
    """Addresses of all brokers, in Pulsar's form for several: `SCHEME://HOST:PORT,HOST:PORT`."""
    addresses = [lookup_document(urls) for urls in broker_urls]
    return {
        "serviceUrl": _joined(address["httpUrl"] for address in addresses),
        "serviceUrlTls": _joined(address["httpUrlTls"] for address in addresses),
        "brokerServiceUrl": _joined(address["brokerUrl"] for address in addresses),
        "brokerServiceUrlTls": _joined(address["brokerUrlTls"] for address in addresses),
    }


def _joined(urls: Iterable[str | None]) -> str | None:
    known = [url for url in urls if url is not None]
    return ",".join([*known[:1], *(url.partition("://")[2] for url in known[1:])]) or None


def bundles_document(ranges: Iterable[str]) -> dict[str, Any]:
    """From the ranges of all bundles of a namespace."""
    boundaries = sorted(set(chain.from_iterable(text.split("_") for text in ranges)))
    return {"boundaries": boundaries, "numBundles": max(0, len(boundaries) - 1)}


def isolation_document(value: Mapping[str, Any]) -> dict[str, Any]:
    """From the value of a policy of the kind `isolation`."""
    parameters = {"min_limit": str(value.get("min_available", 1)), "usage_threshold": _ANY_USAGE}
    return {
        "namespaces": list(value.get("namespaces", ())),
        "primary": list(value.get("primary", ())),
        "secondary": list(value.get("secondary", ())),
        "auto_failover_policy": {"policy_type": MIN_AVAILABLE, "parameters": parameters},
    }


# --- what is asked for ----------------------------------------------------------------------------------------------


def isolation_value(wanted: NewIsolation) -> dict[str, Any]:
    """The value of a policy of the kind `isolation`.

    Raises:
        ProblemError: Policies here cannot express it.
    """
    failover = wanted.auto_failover_policy
    if failover is None or failover.policy_type != MIN_AVAILABLE:
        raise invalid(f"auto_failover_policy is not of the type {MIN_AVAILABLE}")
    limit, usage = failover.parameters.get("min_limit", ""), failover.parameters.get("usage_threshold", _ANY_USAGE)
    if not limit.isascii() or not limit.isdigit() or len(limit) > len(str(FULL_UPPER)):
        raise invalid(f"min_limit is {limit[:100]!r}, not a whole number")
    if usage != _ANY_USAGE:
        raise not_supported(
            f"usage_threshold is {usage[:100]!r}: an isolation policy here does not look at the load of brokers",
            f"Set it to {_ANY_USAGE}; the balancer's own thresholds are settings of it.",
        )
    if wanted.unload_scope not in (None, "none"):
        raise not_supported(
            f"unload_scope is {wanted.unload_scope[:100]!r}: a policy is written, and unloads nothing itself",
            "Leave it out, and unload the namespaces, or leave them to the balancer.",
        )
    return {
        "namespaces": wanted.namespaces,
        "primary": wanted.primary,
        "secondary": wanted.secondary,
        "min_available": int(limit),
    }


def new_bundles(wanted: NewNamespace, cluster: str) -> int | None:
    """Number of bundles of a new namespace; None: the default.

    Raises:
        ProblemError: It asks for what a namespace here does not have.
    """
    foreign = [name for name in wanted.replication_clusters if name != cluster]
    if foreign:
        raise not_supported(f"there is no replication to {foreign[0][:100]!r}", f"The only cluster is {cluster}.")
    for name, value in (wanted.model_extra or {}).items():
        if not _is_unset(value):
            raise not_supported(f"a namespace here has no {name[:100]}", "Leave it out.")
    bundles = wanted.bundles
    if bundles is None:
        return None
    number = bundles.number or (len(bundles.boundaries) - 1 if bundles.boundaries else None)
    if bundles.boundaries and _normal(bundles.boundaries) != even_boundaries(number or 0):
        raise not_supported("the bundles of a new namespace have equal sizes here", "Give their number alone.")
    return number


def _normal(boundaries: Sequence[str]) -> Sequence[str]:
    """As Pulsar reads them: in any order, with digits of either case and any number of leading zeros.

    Raises:
        ProblemError: One is not a hash in hexadecimal digits.
    """
    wrong = next((bound for bound in boundaries if _BOUND.fullmatch(bound) is None), None)
    if wrong is not None:
        raise invalid(f"{wrong[:100]!r} is not a boundary of bundles", "Use 0x and hexadecimal digits.")
    return [f"0x{bound:08x}" for bound in sorted(int(bound, 16) for bound in boundaries)]


def even_boundaries(number: int) -> Sequence[str]:
    """Boundaries of bundles of equal size."""
    return [f"0x{bound:08x}" for bound in namespace_bounds(number)] if 1 <= number <= MAX_CHILDREN else []


def _is_unset(value: Any) -> bool:
    left = [value]  # no recursion: a body may be nested more deeply than Python's stack
    while left:
        item = left.pop()
        if isinstance(item, dict):
            left += item.values()
        elif item != [] and not any(type(item) is type(unset) and item == unset for unset in _UNSET):
            return False
    return True


def split_body(query: BundleSplitQuery, at: Sequence[int]) -> dict[str, Any]:
    """Body of the split of the admin API.

    Raises:
        ProblemError: Pulsar's algorithm is not one of those that are supported.
    """
    algorithm = query.algorithm or SPLIT_EVENLY
    if algorithm not in (SPLIT_EVENLY, SPLIT_AT):
        raise invalid(
            f"Unsupported namespace bundle split algorithm, supported algorithms are [{SPLIT_EVENLY}, {SPLIT_AT}]"
        )
    if algorithm == SPLIT_EVENLY:
        return {"parts": 2}
    if not at:
        raise invalid(f"With {SPLIT_AT} split algorithm, splitBoundaries must not be empty")
    return {"at": list(at)}


def parts_of(bundle: str, body: Mapping[str, Any]) -> list[str]:
    """Names of the bundles that a split makes.

    Args:
        body: Of `split_body`.

    Raises:
        ValueError: The range cannot be cut so.
    """
    namespace, _, text = bundle.rpartition("/")
    lower, upper = (int(bound, 16) for bound in text.split("_"))
    bounds = bounds_at(lower, upper, body["at"]) if "at" in body else even_bounds(body["parts"], lower, upper)
    return [f"{namespace}/{part}" for part in children_of(bounds)]
