"""The sampling parameters as fields of bodies: one list for all dialects, each of which spells some its own way.

A parameter that is added to `SamplingParams` with a rule of `sampling` is a field of every dialect.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import Field, fields
from types import NoneType
from typing import Any, Final, TypeVar, get_args, get_type_hints

import pydantic

from ferrum.core.params import SamplingParams, value_schema
from ferrum.server.common.field_rules import Items, JsonInteger, TokenId
from ferrum.server.common.json_bodies import Body

_PARAMETERS: Final[Mapping[str, Field[Any]]] = {each.name: each for each in fields(SamplingParams)}
_REPORTED: Final = ("logprobs", "logprob_token_ids")
"""Parameters of rules that change no token. Dialects that report log-probabilities have their own fields for them."""

SHARED: Final = tuple(
    name
    for name, each in _PARAMETERS.items()
    if each.metadata["rule"].startswith("sampling.") and name not in _REPORTED
)
"""The parameters that every dialect takes."""

OTHERS: Final = tuple(each for each in _PARAMETERS if each not in (*SHARED, *_REPORTED, "structured_outputs"))
"""Parameters of other rooms, which a dialect may take too."""

_TYPES: Final[Mapping[Any, Any]] = {
    int: JsonInteger,
    float: float,
    bool: bool,
    Sequence[str]: Items[str],
    Sequence[int]: Items[TokenId],
    Mapping[int, float]: dict[str, Any],
}
"""Types of fields by those of parameters."""

AnyBody = TypeVar("AnyBody", bound=Body)


def sampled(
    spellings: Mapping[str, str] | None = None, *, more: Collection[str] = (), terse: bool = False
) -> Callable[[type[AnyBody]], type[AnyBody]]:
    """Return a decorator of a body that gives it the fields of sampling parameters, and `SAMPLING`, their names.

    Fields that the body has itself, or refuses, are left as they are.

    Args:
        spellings: the client's names by ours, where they differ.
        more: parameters of `OTHERS` that the dialect takes.
        terse: descriptions name the parameter only.
    """

    def decorate(body: type[AnyBody]) -> type[AnyBody]:
        spelled = {name: (spellings or {}).get(name, name) for name in (*SHARED, *more, *(spellings or {}))}
        taken = {name: field for name, field in spelled.items() if field not in body.REFUSED}
        made: dict[str, Any] = {
            field: _field(name, terse=terse) for name, field in taken.items() if field not in body.model_fields
        }
        decorated = pydantic.create_model(
            body.__name__, __base__=body, __doc__=body.__doc__, __module__=body.__module__, **made
        )
        decorated.SAMPLING = taken
        return decorated

    return decorate


def _field(name: str, *, terse: bool) -> tuple[Any, Any]:
    """Return type and field of a parameter; null is its default."""
    hint = get_type_hints(SamplingParams)[name]
    of_value = _TYPES[hint if hint in _TYPES else next(each for each in get_args(hint) if each is not NoneType)]
    if name == "stop":
        of_value = str | of_value
    help_text = f"As `{name}`." if terse else _PARAMETERS[name].metadata["help"]
    return of_value | None, pydantic.Field(default=None, description=help_text, json_schema_extra=value_schema(name))
