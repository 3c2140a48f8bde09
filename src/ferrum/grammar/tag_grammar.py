"""Grammars of the tags around arguments: what opens and closes them, and texts between them.

A closing tag that is text, not a token of the vocabulary, may stand in a value. It ends the value if a further argument
or the end of the call follows, as in `argument_readers`.
"""

from __future__ import annotations

from typing import Final

from ferrum.core.output_format import Calls
from ferrum.formats.patterns import SPACE
from ferrum.grammar.lark import Lark, literal, optional, regex, sequence

_SPACES: Final = "[ \\t\\r\\n]{0,16}"
_SOME_SPACES: Final = "/[ \\t\\r\\n]{1,16}/"


class Tags:
    """The tags of a format in one grammar.

    Args:
        calls: of the format; its arguments are tagged.
    """

    def __init__(self, lark: Lark, calls: Calls) -> None:
        self._lark = lark
        self._calls = calls
        self._arguments = calls.arguments
        self._is_text = lark.is_text(self._arguments.value_close)

    def key_open(self, *, first: bool) -> str:
        """Return what opens the first argument, or a further one after what stands between two."""
        arguments = self._arguments
        return self._after_space(arguments.key_open if first else arguments.between + arguments.key_open)

    def key(self, name: str, mark: str = "") -> str:
        """Return a key up to its value."""
        arguments = self._arguments
        return self._lark.text(f"{name}{arguments.key_close}{mark}{arguments.value_open}")

    def other_key(self, names: tuple[str, ...], mark: str = "") -> str:
        """Return any key but some up to its value."""
        body = '/[^<>"\\s]([^<>"\\n]*[^<>"\\s])?/'
        if names:
            body += f" & ~/{'|'.join(map(regex, names))}/"
        return sequence(self._lark.rule(body, terminal=True), self.key("", mark))

    def text(self) -> str:
        """Return any text up to a closing tag, which is part of it."""
        close = self._arguments.value_close.strip(SPACE)
        if not self._is_text:
            return self._lark.until(self._arguments.value_close.lstrip(SPACE))
        value = f"/(?s:.*){regex(close)}/"
        more = self._lark.lazy(f"{value} & ~/(?s:{_SPACES}({'|'.join(self._following())}).*)/")
        raw_open, raw_close = self._arguments.raw_open, self._arguments.raw_close
        if not raw_open:
            return sequence(self._lark.lazy(value), f"{more}*")
        plain = self._lark.lazy(f"{value} & ~/(?s:{regex(raw_open)}.*)/")
        raw = self._lark.lazy(f"/(?s:{regex(raw_open)}.*){regex(raw_close)}{_SPACES}{regex(close)}/")
        return f"( {plain} {more}* | {raw} )"

    def closed(self, body: str, *, is_string: bool = True) -> str:
        """Return a text of a terminal up to the closing tag, which is part of it. Other text may not hold the tag."""
        close, raw_open = self._arguments.value_close, self._arguments.raw_open
        if not raw_open or not is_string:
            return self._lark.closed(body, close)
        raw = self._lark.closed(body, self._arguments.raw_close + close)
        plain = self._lark.closed(f"( {body} ) & ~/{regex(raw_open)}(?s:.*)/", close)
        return f"( {plain} | {sequence(literal(raw_open), raw)} )"

    def call_close(self) -> str:
        """Return the end of a call."""
        return self._after_space(self._calls.close)

    @property
    def empty(self) -> str:
        """What stands in place of arguments; empty if it is white space that may stand there anyway."""
        empty = self._arguments.empty
        return "" if self._is_text and not empty.strip(SPACE) else self._lark.text(empty)

    def _after_space(self, text: str) -> str:
        """Return a text after any white space; its first line is one terminal, since a value may begin to go on so."""
        if not self._is_text:
            return self._lark.text(text)
        head, rest = self._lark.cut(text.lstrip(SPACE))
        line, newline, after = head.partition("\n")
        begin = f"/{_SPACES}{regex(line)}/" if line else optional(_SOME_SPACES)
        return sequence(begin, self._lark.text(newline + after + rest))

    def _following(self) -> list[str]:
        """Return regular expressions of what shows that a closing tag is one."""
        arguments, calls = self._arguments, self._calls
        texts = [arguments.between + arguments.key_open, *calls.close.split(), *calls.section_close.split()]
        heads = [self._lark.cut(each)[0] for each in texts]
        return list(dict.fromkeys(_SPACES.join(map(regex, head.split())) for head in heads if head.strip(SPACE)))
