"""The OpenAPI 3.1 document of the admin API, made from its routes."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from http import HTTPStatus
from importlib import metadata
from typing import Any, Final

from pydantic import TypeAdapter

from statechannel.http_api.problems import PROBLEM_JSON, REASONS, Problem
from statechannel.http_api.routes import ApiRoute
from statechannel.queries.query import RequestModel

EVERYWHERE: Final = (
    "answer-late", "bad-host", "bad-request", "internal-error", "issuer-unavailable", "role-missing", "token-audience",
    "token-early", "token-expired", "token-invalid", "token-issuer", "token-key-unknown", "token-missing",
    "too-many-requests",
)  # fmt: skip
"""Codes that every route may answer with."""
OF_BODIES: Final = ("body-too-large", "foreign-page", "receive-timeout", "wrong-media-type")
_ABOUT_TOKENS: Final = "A token of `http.access_file`, or one (JWT) of the OpenID Connect issuer `http.oidc_issuer`."
_TAGS: Final = {"": "api", "openapi.json": "api", "why-not": "why"}
"""Of paths whose first part is none."""
_MISSING: Final = frozenset({"unknown-namespace", "unknown-bundle"})
_REFERENCES: Final = "#/components/schemas/{model}"
_PARAMETER: Final = re.compile(r"\{([a-z_]+)(?::path)?\}")
_FORMS: Final[Mapping[str, str]] = {
    "tenant": "^[A-Za-z0-9_=:.-]{1,128}$",
    "namespace": "^[A-Za-z0-9_=:.-]{1,128}$",
    "range": "^0x[0-9a-f]{8}_0x[0-9a-f]{8}$",
    "broker": "^[A-Za-z0-9_.:][A-Za-z0-9_.:-]{0,127}$",
}
_ABOUT_PATHS: Final[Mapping[str, str]] = {
    "tenant": "Tenant of the namespace.",
    "namespace": "Namespace, without its tenant.",
    "range": "Hash range of the bundle: `0x..._0x...`.",
    "broker": "Id of a broker.",
    "operation": "Id of an operation.",
    "decision": "Id of a decision.",
    "kind": "Kind of a policy.",
    "name": "Name of a policy: a namespace or bundle has slashes.",
}


def public(routes: Sequence[ApiRoute]) -> list[ApiRoute]:
    """Without Pulsar's, which have a description of their own, and those that only the page asks for."""
    return [route for route in routes if f"{route.path}/".startswith("/v1/") and not route.path.startswith("/v1/page/")]


def document_of(routes: Sequence[ApiRoute], issuer: str | None = None) -> dict[str, Any]:
    """The document.

    Args:
        issuer: Of OpenID Connect tokens that count.
    """
    schemes: dict[str, Any] = {"token": {"type": "http", "scheme": "bearer", "description": _ABOUT_TOKENS}}
    if issuer is not None:
        schemes["issuer"] = {"type": "openIdConnect", "openIdConnectUrl": discovery_url(issuer)}
    schemas: dict[str, Any] = {}
    paths: dict[str, dict[str, Any]] = {}
    for route in routes:
        paths.setdefault(shown_path(route), {})[route.method.lower()] = _operation(route, schemas)
    _schema_of(Problem, schemas)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "statechannel admin API",
            "version": metadata.version("statechannel"),
            "description": "Who serves which bundle, why, and how to change it (design/http-api.md).",
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "servers": [{"url": "/"}],
        "security": [{}, *({name: []} for name in schemes)],
        "tags": [{"name": name} for name in sorted({tag_of(route) for route in routes})],
        "paths": paths,
        "components": {"schemas": dict(sorted(schemas.items())), "securitySchemes": schemes},
    }


def discovery_url(issuer: str) -> str:
    """Where an OpenID Connect issuer describes itself."""
    return f"{issuer.rstrip('/')}/.well-known/openid-configuration"


def shown_path(route: ApiRoute) -> str:
    """The path without what only the router of the application reads."""
    return _PARAMETER.sub(r"{\1}", route.path)


def tag_of(route: ApiRoute) -> str:
    """What it is about: the first part of its path."""
    part = f"{route.path}/".split("/")[2]
    return _TAGS.get(part, part)


def _operation(route: ApiRoute, schemas: dict[str, Any]) -> dict[str, Any]:
    operation: dict[str, Any] = {
        "operationId": route.name,
        "summary": route.about,
        "tags": [tag_of(route)],
        "x-role": route.role.value,
        "parameters": [*_path_parameters(route), *_query_parameters(route, schemas), *_header_parameters(route)],
        "responses": _responses(route, schemas),
    }
    if route.body is not None and not route.body_in_query:
        required = any(field.is_required() for field in route.body.model_fields.values())
        content = {"application/json": {"schema": _schema_of(route.body, schemas)}}
        operation["requestBody"] = {"required": required, "content": content}
    return operation


def _path_parameters(route: ApiRoute) -> list[dict[str, Any]]:
    return [
        {
            "name": name,
            "in": "path",
            "required": True,
            "description": _ABOUT_PATHS.get(name, name),
            "schema": {"type": "string", **({"pattern": _FORMS[name]} if name in _FORMS else {})},
        }
        for name in _PARAMETER.findall(route.path)
    ]


def _query_parameters(route: ApiRoute, schemas: dict[str, Any]) -> list[dict[str, Any]]:
    asked = route.body if route.body_in_query else route.query
    if asked is None:
        return []
    model = TypeAdapter(asked).json_schema(ref_template=_REFERENCES)
    schemas.update(model.pop("$defs", {}))
    required = model.get("required", [])
    return [
        {
            "name": name,
            "in": "query",
            "required": name in required,
            "description": schema.pop("description", name),
            "schema": {key: value for key, value in schema.items() if key != "title"},
        }
        for name, schema in model.get("properties", {}).items()
    ]


def _header_parameters(route: ApiRoute) -> list[dict[str, Any]]:
    text = {"type": "string"}
    headers: list[tuple[str, str, dict[str, Any]]] = []
    if "idempotency-key-reused" in route.reasons:
        headers.append(("Idempotency-Key", "The same call with the same key acts once.", text | {"maxLength": 255}))
    if route.acts:
        headers.append(("Statechannel-Client", "Who calls, where there is no bearer token.", text))
    if not route.bounds_time and route.answer is not bytes:
        headers.append(("Prefer", "`wait=SECONDS`: wait for the end.", text))
    if route.acts and "{range}" in route.path:
        headers.append(("If-Match", "ETag of the bundle: act only on this state.", text))
    return [
        {"name": name, "in": "header", "required": False, "description": about, "schema": schema}
        for name, about, schema in headers
    ]


def reasons_of(route: ApiRoute) -> list[str]:
    """Codes of the problems that a route may answer with, those of executing brokers apart."""
    return sorted({*EVERYWHERE, *(OF_BODIES if route.body is not None else ()), *route.reasons})


def _responses(route: ApiRoute, schemas: dict[str, Any]) -> dict[str, Any]:
    stream = route.answer is bytes
    content = (
        {"text/event-stream": {"schema": {"type": "string"}}}
        if stream
        else {"application/json": {"schema": _schema_of(route.answer, schemas)}}
    )
    about = {200: "Done." if route.acts else "The answer.", 202: "Under way: poll `Location`.", 204: "Done."}
    responses: dict[str, Any] = {
        str(status): {"description": about[status], "content": content} for status in route.statuses
    }
    by_status: dict[int, list[str]] = {}
    for reason in reasons_of(route):
        known = REASONS.get(reason)
        status = known.status if known is not None else 404 if reason in _MISSING else 409
        by_status.setdefault(status, []).append(reason)
    for status, reasons in sorted(by_status.items()):
        responses[str(status)] = _problem_response(f"{HTTPStatus(status).phrase}: {', '.join(reasons)}.", schemas)
    responses["default"] = _problem_response("Any other problem.", schemas)
    return responses


def _problem_response(about: str, schemas: dict[str, Any]) -> dict[str, Any]:
    return {"description": about, "content": {PROBLEM_JSON: {"schema": _schema_of(Problem, schemas)}}}


def _schema_of(kind: Any, schemas: dict[str, Any]) -> dict[str, Any]:
    """A schema of a type; named ones go to `schemas`."""
    if kind is Problem and Problem.__name__ in schemas:
        return {"$ref": _REFERENCES.format(model=Problem.__name__)}
    mode: Any = "validation" if isinstance(kind, type) and issubclass(kind, RequestModel) else "serialization"
    schema = TypeAdapter(kind).json_schema(ref_template=_REFERENCES, mode=mode)
    schemas.update(schema.pop("$defs", {}))
    name = schema.get("title")
    if "properties" not in schema or name is None:
        return schema
    schemas[name] = schema
    return {"$ref": _REFERENCES.format(model=name)}
