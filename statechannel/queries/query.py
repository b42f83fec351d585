"""A question as a row of a table: its path in the admin API comes from it, with parameters and schema."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from pydantic import BaseModel, ConfigDict, Field

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
