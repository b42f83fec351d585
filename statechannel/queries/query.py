"""A question as a row of a table: its path in the admin API comes from it, with parameters, and schemas of its answer."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final, NotRequired, get_type_hints

from pydantic import BaseModel, ConfigDict, Field
from typing_extensions import TypedDict

from statechannel.queries.connection import Connection

GROUP: Final = "statechannel.queries"
"""Entry points of rows: a sequence of `Query`."""
TIME_MAX_MS: Final = 253_402_300_799_999
"""The last millisecond of the year 9999: what calendars and Kafka have."""
NAME_MAX: Final = 1_024


class RequestModel(BaseModel):
    """Base of parameters and bodies: immutable, without unknown names."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class NameQuery(RequestModel):
    """A topic or bundle."""

    name: str = Field(
        min_length=1, max_length=NAME_MAX, description="`tenant/namespace/topic`, or the key of a bundle."
    )


Keys = tuple[Any, str]
"""The type of some keys of a JSON object, and their names with spaces between."""
_typed_dict: Any = TypedDict
_optional: Any = NotRequired
many: Any = list.__class_getitem__


def by_name(kind: Any) -> Any:
    """The type of a JSON object with any keys."""
    return dict.__class_getitem__((str, kind))


def object_type(name: str, about: str, *keys: Keys, sometimes: Iterable[Keys] = ()) -> Any:
    """The type of a JSON object, from which pydantic makes its schema.

    Args:
        sometimes: Keys that it does not always have.
    """
    fields = {key: kind for kind, names in keys for key in names.split()}
    made_type = _typed_dict(name, fields | {key: _optional[kind] for kind, names in sometimes for key in names.split()})
    made_type.__doc__ = about
    return made_type


def keys_of(kind: Any) -> list[Keys]:
    return [(hint, name.rstrip("_")) for name, hint in get_type_hints(kind).items()]


@dataclass(frozen=True, slots=True)
class Query:
    """A question that is answered from the channel's topics.

    Attributes:
        name: Id in the OpenAPI document; unique.
        about: A sentence.
        path: In the admin API, with braces around parameters.
        answer: The document of a connection and of parameters; what limits it goes to the connection's reporter. It blocks.
        document: Type of the document; pydantic makes its schema.
        params: Parameters, those in the path among them; None: none.
    """

    name: str
    about: str
    path: str
    answer: Callable[[Connection, Any], Mapping[str, Any]]
    document: Any
    params: type[RequestModel] | None = None
