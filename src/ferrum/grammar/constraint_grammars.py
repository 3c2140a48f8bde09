"""From a constraint to a grammar in llguidance's form, and the check that the library compiles it.

White space in JSON: by default one space, or one line break and up to 40 spaces or 10 tabs of indentation, wherever
JSON allows it. So compact, spaced and indented JSON are all allowed, as models write them, but a model cannot write
white space without end; none is allowed before the first and after the last character. vLLM's and llguidance's default
is unlimited, llama.cpp's is limited as here. Strings are written without `\\u` escapes: an escaped name of a property
would be another text for the same name. Properties keep the order of the schema.
"""

from __future__ import annotations

import json
import re
import time
from collections import OrderedDict
from collections.abc import Callable
from functools import partial
from threading import Lock
from typing import Any, Final

from ferrum.core.errors import InvalidGrammar, InvalidSchema, RequestError
from ferrum.core.structured_outputs import StructuredOutputs
from ferrum.grammar.gbnf_lark import gbnf_as_lark
from ferrum.grammar.json_schema import checked_schema, walked
from ferrum.grammar.lark import WHITE_SPACE, joined, json_of, literal, regex_literal, schema_grammar
from ferrum.grammar.structural_tags import tag_grammars

_LOCATING: Final = 0.3
"""Seconds to find the place of a fault that only the library sees."""
_MOST_MESSAGE: Final = 200
_BLANK: Final = re.compile(r"(?:\\x20|\\[snrt]|[ \n\r\t\[\]()|?*+]|\?:|\{\d*,?\d*\})+")
_LARK: Final = re.compile(r"(?m)^\s*(?:%llguidance\b|[?!]?start\b[^\n:]*:)")
_GBNF: Final = re.compile(r"(?m)^[ \t]*[A-Za-z0-9_-]+[ \t]*::=")
_PIECES: Final = re.compile(
    r"""(?P<kept>"(?:\\.|[^"\\\n])*"|//[^\n]*|/(?:\\.|[^/\\\n])+/)|(?P<json>%json\b)|(?P<option>%llguidance\b)"""
    r"""|(?P<attribute>\b(?:max_tokens|temperature|stop)\s*=)|(?P<rule>:)"""
)
_MOST_RULES: Final = 500
"""Rules and terminals; llguidance's recursion through them ends the process at about 2500."""
_MOST_CHARACTERS: Final = 64 * 1024
_READER: Final = json.JSONDecoder()
_LIBRARY_PLACE: Final = re.compile(r"^at \d+\(\d+\): |^\d+\(\d+\): ")


def library() -> Any:
    """Return llguidance. Raises RequestError if it is not installed."""
    try:
        import llguidance
    except ImportError:
        raise RequestError("needs llguidance (pip install 'ferrum-llm[structured]')") from None
    return llguidance


def constraint_grammar(outputs: StructuredOutputs) -> str:
    """Return the grammar of a constraint, in llguidance's JSON of grammars.

    Raises:
        InvalidSchema, InvalidGrammar: the constraint is wrong or cannot be enforced; `param` is its field.
        RequestError: llguidance is needed and not installed.
    """
    kind = outputs.given[0]
    if kind in ("json", "json_object"):
        schema = json.loads(outputs.json) if outputs.json is not None else {"type": "object"}
        checked = checked_schema(schema, kind, closed=outputs.disable_additional_properties)
        return schema_grammar(checked, white_space=_white_space(outputs))
    try:
        return joined(_grammars(outputs))
    except RequestError as error:
        raise error.about(kind) from None


def _grammars(outputs: StructuredOutputs) -> list[dict[str, Any]]:
    if outputs.choice is not None:
        return [{"lark_grammar": f"start: CHOICE\nCHOICE: {' | '.join(map(literal, outputs.choice))}"}]
    if outputs.regex is not None:
        return [{"lark_grammar": f"start: {regex_literal(outputs.regex)}"}]
    if outputs.grammar is not None:
        return [{"lark_grammar": client_lark(outputs.grammar)}]
    assert outputs.structural_tag is not None
    tag = json.loads(outputs.structural_tag)
    return tag_grammars(tag, _nested_json, partial(client_lark, followed=True))


def _white_space(outputs: StructuredOutputs) -> str | None:
    """Return the pattern of white space; a client's own must match nothing else."""
    if outputs.disable_any_whitespace:
        return None
    pattern = outputs.whitespace_pattern
    if pattern is None:
        return WHITE_SPACE
    if not _BLANK.fullmatch(pattern):
        raise InvalidGrammar(
            r"may contain spaces, \s, \n, \r, \t, \x20 and repetitions only", param="whitespace_pattern"
        )
    pattern = pattern.replace(r"\s", r"[\x20\n\r\t]")
    if fault := _fault(joined([{"lark_grammar": f"start: {regex_literal(pattern)}"}])):
        raise InvalidGrammar(_short(fault), param="whitespace_pattern")
    return pattern


def _nested_json(schema: Any) -> str:
    """Return a client's schema as an expression. Raises InvalidSchema."""
    return json_of(checked_schema(schema, ""))


def client_lark(grammar: str, *, followed: bool = False) -> str:
    """Return a client's grammar in Lark, checked, and converted from GBNF if it is that.

    Args:
        grammar: Lark or GBNF.
        followed: other text may come after that of the grammar.

    Raises:
        InvalidGrammar: it is neither, or uses something that is not supported.
        InvalidSchema: a nested schema is wrong or cannot be enforced.
    """
    if _GBNF.search(grammar):
        return gbnf_as_lark(grammar, followed=followed)
    if not _LARK.search(grammar):
        raise InvalidGrammar("is neither Lark, which has a rule `start: ...`, nor GBNF, which has `root ::= ...`")
    return _checked_lark(grammar, _nested_json)


def _checked_lark(text: str, nested: Callable[[Any], str]) -> str:
    """Return a client's grammar with its schemas replaced by checked ones.

    Args:
        text: Lark, as llguidance reads it.
        nested: returns an expression of a schema, checked.

    Raises:
        InvalidGrammar: it uses an attribute that prevents taking tokens back, or options of the library.
        InvalidSchema: a nested schema is wrong or cannot be enforced.
    """
    if len(text) > _MOST_CHARACTERS:
        raise InvalidGrammar(f"has {len(text)} characters in Lark, more than {_MOST_CHARACTERS}")
    found, place, rules = [], 0, 0
    while match := _PIECES.search(text, place):
        found.append(text[place : match.end()])
        place = match.end()
        rules += match["rule"] is not None
        if rules > _MOST_RULES:
            raise InvalidGrammar(f"has more than {_MOST_RULES} rules and terminals")
        if match["attribute"] is not None:
            name = match["attribute"].rstrip("= \t\n")
            raise InvalidGrammar(f"the attribute {name} is not supported: tokens could not be taken back")
        if match["option"] is not None:
            options, place = _json(text, place, "%llguidance")
            if options != {}:
                raise InvalidGrammar("options after %llguidance are not supported")
            found.append(" {}")
        if match["json"] is not None:
            schema, place = _json(text, place, "%json")
            found[-1] = found[-1].removesuffix("%json") + nested(schema)
    return "".join([*found, text[place:]])


def _json(text: str, place: int, keyword: str) -> tuple[Any, int]:
    """Return the JSON at a place, and its end."""
    while text[place : place + 1].isspace():
        place += 1
    try:
        return _READER.raw_decode(text, place)
    except (ValueError, RecursionError) as error:
        raise InvalidGrammar(f"{keyword} is not followed by JSON: {error}") from None


def check_grammar(source: str) -> None:
    """Compile a grammar within the library's limits.

    Raises:
        InvalidGrammar: it does not compile or is too large.
        RequestError: llguidance is not installed.
    """
    message = _fault(source)
    if message:
        raise InvalidGrammar(_short(message))


def _fault(source: str) -> str:
    """Return the library's message about a grammar, or an empty one."""
    guidance = library()
    limits = guidance.LLParserLimits(verbose_errors=False)
    message: str = guidance.LLMatcher.validate_grammar(source, None, limits=limits)
    return "" if message.startswith("WARNING") else message


def _short(message: str) -> str:
    """Return the reason in a library's message, within a limit and without the library's place and excerpt."""
    lines = message.strip().splitlines() or [""]
    if "Regex is empty" in lines[0]:
        return "Unsatisfiable schema: no string matches"
    reason = next((each.strip() for each in lines[1:] if each.startswith("error: ")), "")
    first = lines[0].partition(":  (")[0]  # the library's form of a regex follows
    line = f"{_LIBRARY_PLACE.sub('', first)} {reason}".strip()
    return line if len(line) <= _MOST_MESSAGE else line[: _MOST_MESSAGE - 3] + "..."


def checked_grammar(outputs: StructuredOutputs) -> str:
    """Return the grammar of a constraint, compiled once. Raises as `constraint_grammar` and `check_grammar`."""
    source, kind = constraint_grammar(outputs), outputs.given[0]
    try:
        check_grammar(source)
    except InvalidGrammar as error:
        if outputs.json is None:
            raise error.about(kind) from None
        pointer, reason = _located(json.loads(outputs.json), closed=outputs.disable_additional_properties)
        raise InvalidSchema(f"{pointer}: {reason}", param=kind) from None
    except RequestError as error:
        raise error.about(kind) from None
    return source


def _located(schema: Any, *, closed: bool) -> tuple[str, str]:
    """Return the pointer of the innermost schema that the library refuses as it does the whole, and the reason."""
    whole, walk = walked(schema, closed=closed)
    definitions = {"$defs": whole.get("$defs", {})}
    found, message = walk.sources[0][0], _short(_fault(schema_grammar(whole)))
    end = time.monotonic() + _LOCATING
    for place, part in walk.sources[1:]:  # an outer schema precedes those within it
        if isinstance(part, bool) or place.path[: len(found.path)] != found.path:
            continue
        if time.monotonic() > end:
            break
        fault = _short(_fault(schema_grammar({**part, **definitions})))
        if fault == message or (fault.startswith("Unsat") and f"'{place.path[-1]}'" in message):
            found, message = place, fault
    return found.pointer, message


# Constraints that were checked before

DEFAULT_BYTES: Final = 16 * 1024 * 1024
_OVERHEAD: Final = 1024
"""Bytes of an entry besides its texts, roughly."""


class GrammarCache:
    """Grammars, or the errors of constraints that have none, the most recently used ones. Threads may share it.

    Args:
        limit: bytes of all entries together.
    """

    def __init__(self, limit: int = DEFAULT_BYTES) -> None:
        self._limit = limit
        self._size = 0
        self._entries: OrderedDict[StructuredOutputs, str | RequestError] = OrderedDict()
        self._lock = Lock()
        self._compiling = Lock()

    def grammar(self, outputs: StructuredOutputs) -> str:
        """Return the grammar of a constraint. At most one thread compiles.

        Raises:
            RequestError: as `checked_grammar`.
        """
        found = self._find(outputs)
        if found is None:
            with self._compiling:
                found = self._find(outputs)  # another thread may have compiled it meanwhile
                if found is None:
                    found = _compiled(outputs)
                    self._keep(outputs, found)
        if isinstance(found, RequestError):
            raise type(found)(found.message, param=found.param)  # an instance would gather tracebacks
        return found

    def _find(self, outputs: StructuredOutputs) -> str | RequestError | None:
        with self._lock:
            found = self._entries.get(outputs)
            if found is not None:
                self._entries.move_to_end(outputs)
            return found

    def _keep(self, outputs: StructuredOutputs, found: str | RequestError) -> None:
        with self._lock:
            self._entries[outputs] = found
            self._size += _bytes(outputs, found)
            while self._size > self._limit:
                self._size -= _bytes(*self._entries.popitem(last=False))


def _compiled(outputs: StructuredOutputs) -> str | RequestError:
    try:
        return checked_grammar(outputs)
    except RequestError as error:
        return type(error)(error.message, param=error.param)


def _bytes(outputs: StructuredOutputs, found: str | RequestError) -> int:
    """Return about how many bytes an entry takes; a character takes up to four."""
    texts = (outputs.json, outputs.regex, outputs.grammar, outputs.structural_tag, *(outputs.choice or ()))
    source = found if isinstance(found, str) else found.message
    return _OVERHEAD + 4 * (len(source) + sum(len(text) for text in texts if text is not None))
