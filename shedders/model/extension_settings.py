"""Settings below `extensions.NAME`: checked against their model, and errors with their whole name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from statechannel.settings.errors import SettingsError
from statechannel.suggestions import nearest

Model = TypeVar("Model", bound=BaseModel)


def configured(name: str, model: type[Model], values: Mapping[str, Any]) -> Model:
    """Settings as `extensions.NAME.*` has them.

    Raises:
        SettingsError: A setting is unknown, malformed or out of bounds.
    """
    try:
        return model.model_validate(dict(values))
    except ValidationError as error:
        known = list(model.model_fields)
        problems = [_problem(name, detail, known) for detail in error.errors(include_url=False)]
        raise SettingsError(
            problems, hint=f"Every setting is explained in design/reference/{name}-settings.md."
        ) from error


def _problem(name: str, detail: Any, known: Sequence[str]) -> str:
    path = ".".join(str(part) for part in detail["loc"])
    if detail["type"] == "extra_forbidden":
        near = nearest(path.rpartition(".")[2], known)
        return f"unknown setting `extensions.{name}.{path}`.{f' Did you mean `{near[0]}`?' if near else ''}"
    return f"extensions.{name}.{path}: {detail['msg'][:1].lower()}{detail['msg'][1:]} (found {detail['input']!r})."
