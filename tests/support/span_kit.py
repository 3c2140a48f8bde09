"""Spans from fields of `Span` and of `SpanExtras` in one list, of any type."""

from __future__ import annotations

from dataclasses import fields
from typing import Any, Final

from ferrum.core.step import NO_EXTRAS, Span, SpanExtras

EXTRAS: Final = tuple(each.name for each in fields(SpanExtras))


def span_of(given: dict[str, Any]) -> Span:
    """Return a span with these fields, each where it belongs."""
    fields_of = {name: value for name, value in given.items() if name not in EXTRAS}
    extras = {name: value for name, value in given.items() if name in EXTRAS}
    return Span(**fields_of, **({"extras": SpanExtras(**extras)} if extras else {}))


def special(field: str) -> SpanExtras:
    """Return extras with one field set, to another value than its default."""
    default = getattr(NO_EXTRAS, field)
    return SpanExtras(**{field: type(default)(1) if isinstance(default, int) else ("set",)})
