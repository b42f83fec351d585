"""The generated parts of design/http-api.md, and design/reference/openapi.json: made from the routes themselves."""

import json

from statechannel.http_api.openapi import EVERYWHERE, OF_BODIES, document_of, public, reasons_of, shown_path
from statechannel.http_api.problems import REASONS
from statechannel.http_api.pulsar.paths import UNSUPPORTED, PulsarPaths
from tests.support.http_fakes import Rig, http_settings


def openapi_text() -> str:
    """The kept document."""
    return json.dumps(document_of(public(Rig(http_settings()).routes)), indent=1) + "\n"


def route_rows() -> list[tuple[str, ...]]:
    """Method, path, what it does, role, whether the same call twice acts once, and codes of its own."""
    everywhere = {*EVERYWHERE, *OF_BODIES, "answer-late"}
    return [
        (
            route.method,
            f"`{shown_path(route)}`",
            route.about,
            route.role.value,
            "-" if not route.acts else "by nature" if route.bounds_time and route.name != "drain" else "by key",
            ", ".join(f"`{reason}`" for reason in reasons_of(route) if reason not in everywhere),
        )
        for route in public(Rig(http_settings()).routes)
    ]


def pulsar_rows() -> list[tuple[str, ...]]:
    """Pulsar's paths: method, path, what it does, role."""
    cluster = Rig(http_settings()).cluster
    return [
        (route.method, f"`{shown_path(route)}`", route.about, route.role.value)
        for route in PulsarPaths(cluster, ()).routes()
    ]


def unsupported_rows() -> list[tuple[str, ...]]:
    """Pulsar's paths that are not supported: method, path, what there is instead."""
    return [(path.method, f"`{path.path.replace('{rest:path}', '*')}`", path.instead) for path in UNSUPPORTED]


def problem_rows() -> list[tuple[object, ...]]:
    """The codes of the API itself."""
    return [
        (f"`{name}`", reason.status, "yes" if reason.retryable else "", reason.about)
        for name, reason in REASONS.items()
    ]
