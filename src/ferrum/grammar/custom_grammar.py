"""Grammars of custom tools, as they are, and rewritten for text that stands escaped in a JSON string.

Literals and regular expressions of the grammar are rewritten: each character that JSON escapes becomes its escape.
"""

from __future__ import annotations

import ast
import json
import re
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from graphlib import CycleError, TopologicalSorter
from typing import Any, Final

from ferrum.core.errors import RequestError
from ferrum.core.output_format import Tool
from ferrum.core.values import shown
from ferrum.grammar.ecma_patterns import END, START, Anchored, either, matched, one_after_the_other, plain, repeated
from ferrum.grammar.lark import delimited

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)
    from re import _constants as ops  # type: ignore[attr-defined]
    from re import _parser as regex_parser  # type: ignore[attr-defined]

_DELIMITED: Final = r"""(?P<string>"(?:\\.|[^"\\])*"i?)|(?P<regex>/(?:\\.|\[(?:\\.|[^\]\\])*\]|[^/\\\n])+/[imslux]*)"""
_PIECE: Final = re.compile(
    rf"""(?P<comment>//[^\n]*|\#[^\n]*)|{_DELIMITED}"""
    r"""|(?P<import>%import\s+common\.(?P<name>\w+)(?:\s*->\s*(?P<alias>\w+))?)|(?P<refused>%(?:json|lark|regex|llguidance|import)|~(?!\d)|&|<[^>\n]*>)"""
)
_WORD: Final = re.compile(
    _DELIMITED + r"""|(?P<defined>(?m:^)[?!]?[A-Za-z_][\w-]*[ \t]*:)|(?P<alias>->[ \t]*\w+)|(?P<word>[A-Za-z_][\w-]*)"""
    r"""|(?P<other>.|\n)"""
)
_COMMON: Final = {
    "LF": r"\n",
    "CR": r"\r",
    "NEWLINE": r"(\r?\n)+",
    "WS": r"[ \t\f\r\n]+",
    "WS_INLINE": r"[ \t]+",
    "ESCAPED_STRING": r'"([^"\\\n]|\\.)*"',
    "DIGIT": "[0-9]",
    "HEXDIGIT": "[a-fA-F0-9]",
    "INT": "[0-9]+",
    "SIGNED_INT": "[+-]?[0-9]+",
    "DECIMAL": r"([0-9]+\.[0-9]*|\.[0-9]+)",
    "FLOAT": r"([0-9]+\.[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?|[0-9]+[eE][+-]?[0-9]+",
    "NUMBER": r"[0-9]+(\.[0-9]*)?([eE][+-]?[0-9]+)?",
    "SIGNED_NUMBER": r"[+-]?[0-9]+(\.[0-9]*)?([eE][+-]?[0-9]+)?",
    "LETTER": "[a-zA-Z]",
    "WORD": "[a-zA-Z]+",
    "CNAME": "[a-zA-Z_][a-zA-Z0-9_]*",
    "LCASE_LETTER": "[a-z]",
    "UCASE_LETTER": "[A-Z]",
}
"""Terminals of Lark's library, as regular expressions."""

_PAIR: Final = re.compile(r"\\.", re.DOTALL)
_SPELLED: Final = re.compile(r"\(\?<(?![=!])|\\[xu]\{(?P<code>[0-9A-Fa-f]{1,6})\}|\\.", re.DOTALL)
_ANCHORS: Final = {"AT_BEGINNING": START, "AT_BEGINNING_STRING": START, "AT_END": END, "AT_END_STRING": END}
_CATEGORIES: Final = {
    "CATEGORY_DIGIT": r"\d",
    "CATEGORY_NOT_DIGIT": r"\D",
    "CATEGORY_SPACE": r"\s",
    "CATEGORY_NOT_SPACE": r"\S",
    "CATEGORY_WORD": r"\w",
    "CATEGORY_NOT_WORD": r"\W",
}


def custom_grammar(tool: Tool, *, escaped: bool, quote: str = '"') -> str | None:
    """Return a Lark expression of a custom tool's text; None if any text is allowed.

    Args:
        escaped: the text stands in a JSON string, without its quotes.
        quote: around an escaped text of a regular expression; Python has two.

    Raises:
        RequestError: the grammar has something that cannot be rewritten; `param` is `tools`.
    """
    if not tool.definition:
        return None
    if tool.syntax == "regex":
        if escaped:
            return f"/{escaped_regex(tool.definition, tool.name, quote)}/"
        return delimited(_PAIR.sub(lambda found: found.group().replace("\\Z", "\\z"), tool.definition))
    source = tool.definition
    if escaped:
        source = _as_terminals(_PIECE.sub(lambda found: _rewritten(found, tool.name), source))
    return f"%lark {{\n{source}\n}}"


def _as_terminals(source: str) -> str:
    """Return a grammar with its rules as terminals, unless they refer to themselves or ignore text.

    An escape may begin where a terminal ends. The library's lexer does not go back there, but within one it need not.
    """
    parts = [(found.lastgroup or "", found.group()) for found in _WORD.finditer(source)]
    defined = {text.rstrip(": \t").lstrip("?!") for kind, text in parts if kind == "defined"}
    uses: dict[str, set[str]] = {}
    name = ""
    for kind, text in parts:
        if kind == "defined":
            name = text.rstrip(": \t").lstrip("?!")
            uses.setdefault(name, set())
        elif kind == "word" and text in defined:
            uses.setdefault(name, set()).add(text)
    try:
        TopologicalSorter(uses).prepare()
    except CycleError:
        return source
    if "%ignore" in source:
        return source
    names = {each: f"R_{each.upper().replace('-', '_')}" for each in defined}
    out = []
    for kind, text in parts:
        if kind == "defined":
            text = names[text.rstrip(": \t").lstrip("?!")] + ":"
        out.append("" if kind == "alias" else names.get(text, text) if kind == "word" else text)
    return "".join(out) + f"\nstart: {names.get('start', 'start')}"


def _rewritten(found: re.Match[str], tool: str) -> str:
    text = found.group()
    if found["string"]:
        try:
            value = ast.literal_eval(text.removesuffix("i"))
        except (ValueError, SyntaxError):
            raise _refusal(tool, f"has the literal {shown(text)}, which is no string") from None
        if text.endswith("i"):
            return f"/{escaped_regex('(?i)' + re.escape(value), tool)}/"
        return json.dumps(json.dumps(value, ensure_ascii=False)[1:-1], ensure_ascii=False)
    if found["regex"]:
        body, _, flags = text[1:].rpartition("/")
        return f"/{escaped_regex(f'(?{flags})' * bool(flags) + body, tool)}/"
    if found["import"]:
        if found["name"] not in _COMMON:
            raise _refusal(tool, f"imports common.{found['name']}, which is not known here")
        return f"{found['alias'] or found['name']}: /{escaped_regex(_COMMON[found['name']], tool)}/"
    if found["refused"]:
        raise _refusal(tool, f"uses {shown(text)}, which this model's format of calls cannot enforce")
    return ""


def _refusal(tool: str, reason: str) -> RequestError:
    return RequestError(f"the grammar of {shown(tool)} {reason}", param="tools")


@dataclass(frozen=True, slots=True)
class _String:
    """A string between quotes in calls of a tool."""

    tool: str
    quote: str

    @property
    def plain(self) -> str:
        """What classes meet without their escaped characters."""
        return rf"&&[^\{self.quote}\\\x00-\x1f]"

    def escapes(self, matches: Callable[[str], object]) -> list[str]:
        """Return the escapes of the characters that match."""
        found = [char for char in (*map(chr, range(0x20)), self.quote, "\\") if matches(char)]
        return [f"\\{char}" if char == self.quote else json.dumps(char)[1:-1] for char in found]


def escaped_regex(pattern: str, tool: str, quote: str = '"') -> str:
    """Return a regular expression of the texts that a regular expression matches, escaped as in JSON.

    Args:
        tool: name, for errors.
        quote: around the text.

    Raises:
        RequestError: it has something that cannot be rewritten; `param` is `tools`.
    """
    string = _String(tool, quote)
    try:
        parsed = regex_parser.parse(_SPELLED.sub(_as_python, pattern))
    except (re.error, OverflowError, RecursionError) as error:
        raise _refusal(tool, f"has a regular expression that cannot be read: {error}") from None
    flags = parsed.state.flags
    refused = flags & (re.MULTILINE | re.LOCALE | re.VERBOSE)
    if refused:
        raise _refusal(tool, f"has a regular expression with the flags {re.RegexFlag(refused)!r}")
    try:
        return matched(_nodes(parsed, flags, string))
    except ValueError as error:
        raise _refusal(tool, f"has a regular expression that {error}") from None


def _as_python(found: re.Match[str]) -> str:
    """Return an escape or a group of Rust's regular expressions as Python writes it."""
    text = found.group()
    if text == "(?<":
        return "(?P<"
    if found["code"]:
        return f"\\U{int(found['code'], 16):08x}"
    return {"\\/": "/", "\\z": "\\Z"}.get(text, text)


def _node(node: Any, flags: int, string: _String) -> Anchored:
    """Return one node of a regular expression. Its anchors may stand wherever they can match."""
    kind, value = node
    if kind is ops.LITERAL:
        return plain(_class(f"[{_char(value)}]", flags, string))
    if kind is ops.NOT_LITERAL:
        return plain(_class(f"[^{_char(value)}]", flags, string))
    if kind is ops.ANY:
        return plain(_class(r"[\x00-\U0010ffff]" if flags & re.DOTALL else r"[^\n]", flags, string))
    if kind is ops.IN:
        return plain(_class(_set(value, string), flags, string))
    if kind is ops.BRANCH:
        return either(_nodes(each, flags, string) for each in value[1])
    if kind is ops.SUBPATTERN:
        _, added, removed, body = value
        return _nodes(body, (flags | added) & ~removed, string)
    if kind in (ops.MAX_REPEAT, ops.MIN_REPEAT):  # a lazy repetition matches the same texts
        low, high, body = value
        return repeated(_nodes(body, flags, string), low, None if high is ops.MAXREPEAT else int(high))
    if kind is ops.AT and str(value) in _ANCHORS:
        return _ANCHORS[str(value)]
    raise _refusal(string.tool, f"has a regular expression with {str(kind).lower()}, which cannot be enforced")


def _nodes(body: Any, flags: int, string: _String) -> Anchored:
    return one_after_the_other(_node(each, flags, string) for each in body)


def _char(code: int) -> str:
    return f"\\x{{{code:x}}}"


def _set(items: Any, string: _String) -> str:
    """Return a set of characters as the text of a class, which Python and Rust read alike once it is `_class`."""
    inside = ""
    for kind, value in items:
        if kind is ops.NEGATE:
            inside = "^" + inside
        elif kind is ops.LITERAL:
            inside += _char(value)
        elif kind is ops.RANGE:
            inside += f"{_char(value[0])}-{_char(value[1])}"
        elif kind is ops.CATEGORY and str(value) in _CATEGORIES:
            inside += _CATEGORIES[str(value)]
        else:
            raise _refusal(string.tool, f"has a class with {str(kind).lower()}, which cannot be enforced")
    return f"[{inside}]"


def _class(text: str, flags: int, string: _String) -> str:
    """Return the escaped texts of the characters of a class."""
    python = re.sub(r"\\x\{([0-9a-f]+)\}", lambda found: f"\\U{int(found.group(1), 16):08x}", text)
    own = re.compile(python, flags & re.IGNORECASE)
    escapes = string.escapes(own.match)
    rust = text.replace(r"\U0010ffff", r"\x{10ffff}")
    plain = f"[{rust}{string.plain}]"
    if flags & re.IGNORECASE:
        plain = f"(?i:{plain})"
    if not escapes:
        return plain
    options = "|".join(each.replace("\\", "\\\\").replace("/", "\\/") for each in escapes)
    only = text[:2] != "[^" and len(escapes) == 1 and re.fullmatch(r"\[\\x\{[0-9a-f]+\}\]", text)
    return f"(?:{options})" if only else f"(?:{plain}|{options})"
