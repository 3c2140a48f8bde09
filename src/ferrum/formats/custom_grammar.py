"""Grammars of custom tools, as they are, and rewritten for text that stands escaped in a JSON string.

Literals and regular expressions of the grammar are rewritten: each character that JSON escapes becomes its escape.
"""

from __future__ import annotations

import ast
import json
import re
import warnings
from graphlib import CycleError, TopologicalSorter
from typing import Any, Final

from ferrum.core.errors import RequestError
from ferrum.core.output_format import Tool
from ferrum.core.values import shown

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)
    from re import _constants as ops  # type: ignore[attr-defined]
    from re import _parser as regex_parser  # type: ignore[attr-defined]

_PIECE: Final = re.compile(
    r"""(?P<comment>//[^\n]*|\#[^\n]*)|(?P<string>"(?:\\.|[^"\\])*"i?)|(?P<regex>/(?:\\.|\[(?:\\.|[^\]\\])*\]|[^/\\\n])+/[imslux]*)"""
    r"""|(?P<import>%import\s+common\.(?P<name>\w+)(?:\s*->\s*(?P<alias>\w+))?)|(?P<refused>%(?:json|lark|regex|llguidance|import)|~(?!\d)|&|<[^>\n]*>)"""
)
_WORD: Final = re.compile(
    r"""(?P<string>"(?:\\.|[^"\\])*"i?)|(?P<regex>/(?:\\.|\[(?:\\.|[^\]\\])*\]|[^/\\\n])+/[imslux]*)"""
    r"""|(?P<defined>(?m:^)[?!]?[A-Za-z_][\w-]*[ \t]*:)|(?P<alias>->[ \t]*\w+)|(?P<word>[A-Za-z_][\w-]*)"""
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

_ESCAPED: Final = [*map(chr, range(0x20)), '"', "\\"]
_PLAIN: Final = r"&&[^\"\\\x00-\x1f]"
_CATEGORIES: Final = {
    "CATEGORY_DIGIT": r"\d",
    "CATEGORY_NOT_DIGIT": r"\D",
    "CATEGORY_SPACE": r"\s",
    "CATEGORY_NOT_SPACE": r"\S",
    "CATEGORY_WORD": r"\w",
    "CATEGORY_NOT_WORD": r"\W",
}


def custom_grammar(tool: Tool, *, escaped: bool) -> str | None:
    """Return a Lark expression of a custom tool's text; None if any text is allowed.

    Args:
        escaped: the text stands in a JSON string, without its quotes.

    Raises:
        RequestError: the grammar has something that cannot be rewritten; `param` is `tools`.
    """
    if not tool.definition:
        return None
    if tool.syntax == "regex":
        return f"/{escaped_regex(tool.definition, tool.name) if escaped else _delimited(tool.definition)}/"
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


def _delimited(pattern: str) -> str:
    """Return a regular expression with its slashes escaped."""
    return re.sub(r"\\.|/", lambda found: "\\/" if found.group() == "/" else found.group(), pattern, flags=re.DOTALL)


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


def escaped_regex(pattern: str, tool: str) -> str:
    """Return a regular expression of the JSON-escaped texts that a regular expression matches."""
    try:
        parsed = regex_parser.parse(pattern.replace(r"\/", "/"))
    except (re.error, OverflowError, RecursionError) as error:
        raise _refusal(tool, f"has a regular expression that cannot be read: {error}") from None
    flags = parsed.state.flags
    refused = flags & (re.MULTILINE | re.LOCALE | re.VERBOSE)
    if refused:
        raise _refusal(tool, f"has a regular expression with the flags {re.RegexFlag(refused)!r}")
    return "".join(_node(each, flags, tool) for each in parsed)


def _node(node: Any, flags: int, tool: str) -> str:
    """Return one node of a regular expression."""
    kind, value = node
    if kind is ops.LITERAL:
        return _class(f"[{_char(value)}]", flags)
    if kind is ops.NOT_LITERAL:
        return _class(f"[^{_char(value)}]", flags)
    if kind is ops.ANY:
        return _class(r"[\x00-\U0010ffff]" if flags & re.DOTALL else r"[^\n]", flags)
    if kind is ops.IN:
        return _class(_set(value, tool), flags)
    if kind is ops.BRANCH:
        return "(?:" + "|".join(_nodes(each, flags, tool) for each in value[1]) + ")"
    if kind is ops.SUBPATTERN:
        _, added, removed, body = value
        return f"(?:{_nodes(body, (flags | added) & ~removed, tool)})"
    if kind is ops.MAX_REPEAT:
        low, high, body = value
        most = "" if high is ops.MAXREPEAT else str(int(high))
        return f"(?:{_nodes(body, flags, tool)}){{{low},{most}}}"
    raise _refusal(tool, f"has a regular expression with {str(kind).lower()}, which cannot be enforced")


def _nodes(body: Any, flags: int, tool: str) -> str:
    return "".join(_node(each, flags, tool) for each in body)


def _char(code: int) -> str:
    return f"\\x{{{code:x}}}"


def _set(items: Any, tool: str) -> str:
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
            raise _refusal(tool, f"has a class with {str(kind).lower()}, which cannot be enforced")
    return f"[{inside}]"


def _class(text: str, flags: int) -> str:
    """Return the escaped texts of the characters of a class."""
    python = re.sub(r"\\x\{([0-9a-f]+)\}", lambda found: f"\\U{int(found.group(1), 16):08x}", text)
    own = re.compile(python, flags & re.IGNORECASE)
    escapes = [json.dumps(char)[1:-1] for char in _ESCAPED if own.match(char)]
    rust = text.replace(r"\U0010ffff", r"\x{10ffff}")
    plain = f"[{rust}{_PLAIN}]"
    if flags & re.IGNORECASE:
        plain = f"(?i:{plain})"
    if not escapes:
        return plain
    options = "|".join(each.replace("\\", "\\\\").replace("/", "\\/") for each in escapes)
    only = text[:2] != "[^" and len(escapes) == 1 and re.fullmatch(r"\[\\x\{[0-9a-f]+\}\]", text)
    return f"(?:{options})" if only else f"(?:{plain}|{options})"
