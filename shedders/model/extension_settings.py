"""Settings below `extensions.NAME`: their validation, with errors by full name, and their tables for a page of the docs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from statechannel.settings.errors import SettingsError
from statechannel.settings.render import table
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
        raise SettingsError(problems, hint=f"Every setting is explained in design/{name}-settings.md.") from error


def _problem(name: str, detail: Any, known: Sequence[str]) -> str:
    path = ".".join(str(part) for part in detail["loc"])
    if detail["type"] == "extra_forbidden":
        near = nearest(path.rpartition(".")[2], known)
        return f"unknown setting `extensions.{name}.{path}`.{f' Did you mean `{near[0]}`?' if near else ''}"
    return f"extensions.{name}.{path}: {detail['msg'][:1].lower()}{detail['msg'][1:]} (found {detail['input']!r})."


def group_tables(path: str, model: type[BaseModel], *, upstream: bool = True) -> Iterator[str]:
    """A table of a group's own settings, and one of each group in it, as lines of Markdown.

    Args:
        upstream: With a column for the names of Pulsar's settings.
    """
    inner = {
        name: field.annotation
        for name, field in model.model_fields.items()
        if isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel)
    }
    yield ""
    yield f"## {path}"
    yield ""
    yield " ".join((model.__doc__ or "").split())
    yield ""
    own = {name: field for name, field in model.model_fields.items() if name not in inner}
    yield from table(own, upstream=upstream)
    for name, group in inner.items():
        yield from group_tables(f"{path}.{name}", group, upstream=upstream)
