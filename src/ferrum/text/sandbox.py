"""The jinja sandbox for chat templates, which are untrusted programs.

Bounds steps and products. Memory of templates from requests is bounded in `untrusted_template`.
Imported only to render a template, because importing jinja is slow.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import datetime
from functools import cache
from itertools import count
from typing import Any, Final, NoReturn

from jinja2 import Template, TemplateError, nodes, pass_context
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment

from ferrum.core.errors import ConfigError
from ferrum.core.option_fields import path_of

MAX_STEPS: Final = 1_000_000
"""Loop iterations and macro calls of one rendering."""

MAX_PRODUCT: Final = 1 << 24
"""Length of a repeated sequence, or bits of a power."""

_STEP: Final = "(step)"
"""A filter name that no template can spell."""

_steps: ContextVar[count[int]] = ContextVar("steps")
_used: ContextVar[int] = ContextVar("used", default=0)
"""Steps that count as done before a rendering."""


class RefusalError(TemplateError):
    """The error for a template that calls `raise_exception`: it rejects these messages."""


class _Generation(Extension):
    """The tag `{% generation %}`, which marks text for training; no effect on rendering."""

    tags = {"generation"}  # noqa: RUF012  jinja's protocol

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.Scope(body).set_lineno(line)


class ChatEnvironment(ImmutableSandboxedEnvironment):
    """Jinja as chat templates expect it, sandboxed and bounded.

    In addition to jinja's sandbox (no private attributes, no mutation of arguments, short ranges), loop iterations and
    macro calls are counted, and products that would fill the memory are rejected.
    """

    intercepted_binops = frozenset({"*", "**"})

    def __init__(self) -> None:
        super().__init__(trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols, _Generation])
        self.filters["tojson"] = _tojson
        self.filters[_STEP] = _count_step
        self.globals["raise_exception"] = _raise_exception
        self.globals["strftime_now"] = _strftime_now

    def render(self, template: Template, variables: dict[str, Any]) -> str:
        """Render a compiled template with a new count of steps."""
        token = _steps.set(count(_used.get()))
        try:
            return template.render(variables)
        finally:
            _steps.reset(token)

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        """Compute `left * right` or `left ** right`. Raises SecurityError for an enormous result."""
        if operator == "**" and isinstance(left, int) and isinstance(right, int):
            size = left.bit_length() * right
        elif operator == "*" and isinstance(right, int) and hasattr(left, "__len__"):
            size = len(left) * right
        elif operator == "*" and isinstance(left, int) and hasattr(right, "__len__"):
            size = len(right) * left
        else:
            size = 0
        if size > MAX_PRODUCT:
            raise SecurityError(f"the result of {operator} exceeds {MAX_PRODUCT}")
        return super().call_binop(context, operator, left, right)

    def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
        tree = super()._parse(source, name, filename)
        repeated = (nodes.For, nodes.Macro, nodes.CallBlock)
        for node in tree.find_all(repeated):
            assert isinstance(node, repeated)
            # A filter, not a function: the sandbox checks each function call, which costs ten times the step itself.
            step = nodes.Filter(nodes.Const(None), _STEP, [], [], None, None)
            node.body.insert(0, nodes.ExprStmt(step))
            node.body[0].set_lineno(node.lineno).set_environment(self)
        return tree


@contextmanager
def limited(steps: int) -> Iterator[None]:
    """Limit each rendering of this thread to this number of steps, at most `MAX_STEPS`."""
    token = _used.set(max(MAX_STEPS - steps, 0))
    try:
        yield
    finally:
        _used.reset(token)


@cache
def chat_environment() -> ChatEnvironment:
    """Return the shared environment, which has no mutable state."""
    return ChatEnvironment()


@pass_context
def _count_step(_context: Context, _value: None) -> None:
    """Count a loop iteration or macro call. The context argument stops jinja from constant-folding it."""
    if next(_steps.get()) >= MAX_STEPS:
        raise SecurityError(f"more than {MAX_STEPS} loop rounds and macro calls")


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Return plain JSON. Jinja's filter escapes for HTML, which models were not trained on."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _raise_exception(message: object) -> NoReturn:
    raise RefusalError(str(message))


def _strftime_now(format: str) -> str:
    return datetime.now().strftime(format)


def template_of(path: str) -> str:
    """Return the chat template of a file. Raises ConfigError if it cannot be read or does not parse."""
    try:
        source = path_of("chat_template", path).read_text("utf-8-sig")
        chat_environment().from_string(source)
    except Exception as error:
        if isinstance(error, ConfigError):
            raise
        raise ConfigError(f"cannot use {path}: {type(error).__name__}: {error}", param="chat_template") from error
    return source
