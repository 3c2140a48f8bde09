"""`StructuredOutputs`: the one constraint on the text of an output, with vLLM's names. Plain, hashable data.

Types and sizes are checked and described here; schemas and grammars are checked by `grammar.constraint_grammars`, which
needs llguidance.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Final

from ferrum.core.errors import RequestError
from ferrum.core.values import listed, shown

MAX_SOURCE: Final = 256 * 1024
"""Characters of a schema, a grammar, a regex, or of all choices together."""

_SOURCE: Final = {"type": "string", "minLength": 1, "maxLength": MAX_SOURCE}
_NULL: Final = {"type": "null"}
_OFF: Final = {"enum": [None, False]}
_SWITCH: Final = {"type": ["boolean", "null"]}


# The values of fields: each function returns a client's value as it is kept. Raises RequestError by the field's name


def _json_text(name: str, value: Any) -> str | None:
    """Return JSON as compact text, from an object or from text."""
    if value is None:
        return None
    if isinstance(value, str):
        _text(name, value)
        value = _parsed(name, value)
    elif isinstance(value, Mapping):
        value = dict(value)
    if not isinstance(value, (dict, bool)) or (name != "json" and isinstance(value, bool)):
        raise RequestError(f"must be an object or its JSON text, not {shown(value)}", param=name)
    try:
        text = json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise RequestError(f"is not JSON: {error}", param=name) from None
    return _text(name, text)


def _parsed(name: str, text: str) -> Any:
    def refuse(constant: str) -> Any:
        raise ValueError(f"{constant} is not JSON")

    try:
        return json.loads(text, parse_constant=refuse)
    except (ValueError, RecursionError) as error:
        raise RequestError(f"is not JSON: {error}", param=name) from None


def _text(name: str, value: Any) -> str | None:
    """Return None or a text of at most `MAX_SOURCE` characters that UTF-8 can encode."""
    if value is None:
        return None
    if not isinstance(value, str):
        raise RequestError(f"must be a string, not {shown(value)}", param=name)
    if not value:
        raise RequestError("must not be empty", param=name)
    if len(value) > MAX_SOURCE:
        raise RequestError(f"has {len(value)} characters, more than {MAX_SOURCE}", param=name)
    try:
        value.encode()
    except UnicodeEncodeError:
        raise RequestError("has half of a surrogate pair", param=name) from None
    return value


def _flag(name: str, value: Any) -> bool:
    if value is not None and not isinstance(value, bool):
        raise RequestError(f"must be true or false, not {shown(value)}", param=name)
    return bool(value)


def _choices(name: str, value: Any) -> tuple[str, ...] | None:
    if value is None:
        return None
    items = listed(value)
    if isinstance(items, (str, bytes, Mapping)) or not isinstance(items, Iterable):
        raise RequestError(f"must be a list of strings, not {shown(value)}", param=name)
    choices = list(items)
    if not choices:
        raise RequestError("must not be empty", param=name)
    for each in choices:
        if not isinstance(each, str):
            raise RequestError(f"must contain strings only, not {shown(each)}", param=name)
        _text(name, each)
    if sum(map(len, choices)) > MAX_SOURCE:
        raise RequestError(f"has more than {MAX_SOURCE} characters", param=name)
    return tuple(dict.fromkeys(choices))


def _field(
    read: Callable[[str, Any], Any], form: Mapping[str, Any], *kinds: str, unset: Mapping[str, Any] = _NULL
) -> Any:
    """Return a field with what checks its values and what describes them.

    Args:
        read: as above.
        form: JSON Schema of its values where the field may be given.
        kinds: the constraints that it is an option of; none: it is a constraint.
        unset: JSON Schema of its values elsewhere.
    """
    about = {"read": read, "form": form, "kinds": kinds, "unset": unset}
    return field(default=False if read is _flag else None, metadata=about)


@dataclass(frozen=True, slots=True, kw_only=True)
class StructuredOutputs:
    """The constraint on an output, after the reasoning if there is any. Exactly one of `CONSTRAINTS` is given.

    Attributes:
        json: JSON Schema, as an object, a boolean or JSON text; kept as compact JSON text in the order of its keys.
        json_object: True: any JSON object.
        regex: regular expression of the whole output, in the syntax of Rust's regex.
        choice: the possible outputs.
        grammar: Lark or GBNF.
        structural_tag: OpenAI's and xgrammar's form, as an object or JSON text; kept as `json`.
        disable_any_whitespace: JSON has no white space; for `json` and `json_object`.
        disable_additional_properties: objects of the schema have only its properties; for `json`.
        whitespace_pattern: regular expression of the white space between tokens of JSON; for `json` and `json_object`.

    Raises:
        RequestError: a value of the wrong type or size, no constraint, or several; `param` names the field.
    """

    json: str | None = _field(_json_text, {"type": ["object", "boolean", "string"]})
    json_object: bool = _field(_flag, {"const": True}, unset=_OFF)
    regex: str | None = _field(_text, _SOURCE)
    choice: tuple[str, ...] | None = _field(_choices, {"type": "array", "items": _SOURCE, "minItems": 1})
    grammar: str | None = _field(_text, _SOURCE)
    structural_tag: str | None = _field(_json_text, {"type": ["object", "string"]})
    disable_any_whitespace: bool = _field(_flag, _SWITCH, "json", "json_object", unset=_OFF)
    disable_additional_properties: bool = _field(_flag, _SWITCH, "json", unset=_OFF)
    whitespace_pattern: str | None = _field(_text, {"anyOf": [_SOURCE, _NULL]}, "json", "json_object")

    def __post_init__(self) -> None:
        for each in fields(self):
            object.__setattr__(self, each.name, each.metadata["read"](each.name, getattr(self, each.name)))
        self._check_together()

    def _check_together(self) -> None:
        if len(self.given) != 1:
            found = f"has {' and '.join(self.given)}" if self.given else "has no constraint"
            raise RequestError(f"{found}; give exactly one of {', '.join(CONSTRAINTS)}", param="structured_outputs")
        kind = self.given[0]
        for each in fields(self):
            kinds = each.metadata["kinds"]
            if kinds and getattr(self, each.name) and kind not in kinds:
                raise RequestError(f"requires {' or '.join(kinds)}, not {kind}", param=each.name)
        if self.disable_any_whitespace and self.whitespace_pattern:
            raise RequestError("contradicts disable_any_whitespace = true", param="whitespace_pattern")

    @property
    def given(self) -> tuple[str, ...]:
        """Names of the constraints that are given: one."""
        return tuple(name for name in CONSTRAINTS if getattr(self, name) not in (None, False))

    def to_dict(self) -> dict[str, Any]:
        """Return the fields that differ from their defaults, as JSON values."""
        values = {each.name: getattr(self, each.name) for each in fields(self)}
        given = {name: value for name, value in values.items() if value not in (None, False)}
        return {name: list(value) if isinstance(value, tuple) else value for name, value in given.items()}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> StructuredOutputs:
        """Return the record of `to_dict`, or of a client's object; None is a default.

        Raises:
            RequestError: not a mapping, an unknown name, or as the constructor.
        """
        if not isinstance(values, Mapping):
            raise RequestError(f"must be an object, not {shown(values)}", param="structured_outputs")
        known = {each.name for each in fields(cls)}
        for name in values:
            if not isinstance(name, str):
                raise RequestError(f"must have names of fields, not {shown(name)}", param="structured_outputs")
            if name not in known:
                raise RequestError(f"is not a field; known: {', '.join(sorted(known))}", param=name)
        return cls(**{name: value for name, value in values.items() if value is not None})

    @classmethod
    def from_json(cls, text: str) -> StructuredOutputs:
        """Return the record of JSON text. Raises as `from_dict`, and RequestError for invalid JSON."""
        return cls.from_dict(_parsed("structured_outputs", text))


CONSTRAINTS: Final = tuple(each.name for each in fields(StructuredOutputs) if not each.metadata["kinds"])
"""The fields of which exactly one is given."""


def client_forms() -> Iterator[dict[str, Any]]:
    """Yield the JSON Schema of clients' objects with each of the constraints."""
    for kind in CONSTRAINTS:
        properties = {
            each.name: each.metadata["form" if kind in (each.name, *each.metadata["kinds"]) else "unset"]
            for each in fields(StructuredOutputs)
        }
        yield {"type": "object", "properties": properties, "required": [kind], "additionalProperties": False}
