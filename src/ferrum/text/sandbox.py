"""The jinja environment of chat templates: programs that come with a model, or with a request, and are not trusted.

Imported only where a template is rendered, for jinja takes a while to load.
"""

from __future__ import annotations

import json
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

MAX_STEPS: Final = 1_000_000
"""Loop rounds and macro calls of one rendering."""

MAX_PRODUCT: Final = 1 << 24
"""Length of a repeated sequence, or bits of a power."""

_STEP: Final = "(step)"
"""A filter's name that no template can spell."""

_steps: ContextVar[count[int]] = ContextVar("steps")


class RefusalError(TemplateError):
    """The template called `raise_exception`: these messages are not for this model."""


class _Generation(Extension):
    """`{% generation %}` ... `{% endgeneration %}`: marks the assistant's words for training; no effect on the text."""

    tags = {"generation"}  # noqa: RUF012  jinja's protocol

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.Scope(body).set_lineno(line)


class ChatEnvironment(ImmutableSandboxedEnvironment):
    """Jinja as chat templates expect it, without a way out and without endless work.

    Beyond jinja's own sandbox (no private attributes, no mutation of what is passed in, short ranges), every loop round
    and macro call is counted, and products that would fill the memory are refused.
    """

    intercepted_binops = frozenset({"*", "**"})

    def __init__(self) -> None:
        super().__init__(trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols, _Generation])
        self.filters["tojson"] = _tojson
        self.filters[_STEP] = _count_step
        self.globals["raise_exception"] = _raise_exception
        self.globals["strftime_now"] = _strftime_now

    def render(self, template: Template, variables: dict[str, Any]) -> str:
        """Render a compiled template with a fresh allowance of steps."""
        token = _steps.set(count())
        try:
            return template.render(variables)
        finally:
            _steps.reset(token)

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        """`left * right` and `left ** right`, unless the result would be enormous."""
        if operator == "**" and isinstance(left, int) and isinstance(right, int):
            size = left.bit_length() * right
        elif operator == "*" and isinstance(right, int) and hasattr(left, "__len__"):
            size = len(left) * right
        elif operator == "*" and isinstance(left, int) and hasattr(right, "__len__"):
            size = len(right) * left
        else:
            size = 0
        if size > MAX_PRODUCT:
            raise SecurityError(f"the result of {operator} would be too large")
        return super().call_binop(context, operator, left, right)

    def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
        tree = super()._parse(source, name, filename)
        repeated = (nodes.For, nodes.Macro, nodes.CallBlock)
        for node in tree.find_all(repeated):
            assert isinstance(node, repeated)
            # A filter, for the sandbox checks every call of a function, at ten times the cost of the step.
            step = nodes.Filter(nodes.Const(None), _STEP, [], [], None, None)
            node.body.insert(0, nodes.ExprStmt(step))
            node.body[0].set_lineno(node.lineno).set_environment(self)
        return tree


@cache
def chat_environment() -> ChatEnvironment:
    """The one environment; it holds no state of its own."""
    return ChatEnvironment()


@pass_context
def _count_step(_context: Context, _value: None) -> None:
    """Called by every loop round and macro call; it takes the context only to be no constant for jinja's optimizer."""
    if next(_steps.get()) >= MAX_STEPS:
        raise SecurityError(f"more than {MAX_STEPS} loop rounds and macro calls")


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Plain JSON: jinja's own filter escapes for HTML, which no model was trained on."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _raise_exception(message: object) -> NoReturn:
    raise RefusalError(str(message))


def _strftime_now(format: str) -> str:
    return datetime.now().strftime(format)
