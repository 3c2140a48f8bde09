"""What formats write around a reply's content: headers of messages, and texts that carry nothing."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from ferrum.core.output_format import Header, OutputFormat
from ferrum.formats.patterns import markers_of
from ferrum.grammar.lark import Lark, either, literal, optional, sequence
from ferrum.text.tokenizer import Tokenizer

WHITE_SPACE: Final = "/[ \\t\\r\\n]{0,8}/"
"""White space that models write after their reasoning."""

_WORD: Final = re.compile(r"\s*\S+|\s+")
_TYPE: Final = "[A-Za-z][A-Za-z0-9_.+\\/-]{0,31}"


def header_text(lark: Lark, form: OutputFormat, text: str) -> str:
    """Return an expression of a marker's text; before the end of a header a type of content may stand.

    Each word is an expression, since another text may begin with the same words.
    """
    header = form.header
    if header is None:
        return lark.text(text)
    words = sequence(*map(lark.text, _words(text.removesuffix(header.close), header)))
    if not text.endswith(header.close):
        return words
    types = [lark.rule(f"/ {_TYPE}/", terminal=True)]
    after_mark = lark.rule(f"/ ?{_TYPE}/", terminal=True)
    types += [sequence(optional(literal(" ")), lark.text(each), after_mark) for each in header.marks]
    return sequence(words, optional(either(types)), lark.text(header.close))


def _words(text: str, header: Header) -> Iterator[str]:
    """Yield the words of a text and the texts of a header among them."""
    texts = "|".join(map(re.escape, (header.open, header.close, *header.marks)))
    for part in re.split(f"({texts})", text):
        yield from _WORD.findall(part)


def message_begin(lark: Lark, form: OutputFormat) -> str:
    """Return what may begin a further message of an output, in formats with channels."""
    return optional(lark.text(form.ignored[0])) if form.content_open and form.ignored and not form.prefix else ""


def content_start(form: OutputFormat, tokenizer: Tokenizer) -> str:
    """Return a grammar in Lark of an output's content with what may stand around it; `@content` is the content."""
    texts = (form.content_open, *form.content_aliases) if form.content_open else ()
    lark = Lark(markers_of(form, tokenizer))
    opens = [header_text(lark, form, text.removeprefix(form.prefix)) for text in texts]
    ignored = list(map(lark.text, form.ignored))
    if form.prefix:
        before = either(opens)  # the prompt has begun it
    elif opens:
        before = sequence(message_begin(lark, form), optional(either(opens)))
    else:
        before = optional(either(ignored)) if ignored else ""
    closes = [lark.text(form.content_close)] if form.content_close else []
    after = optional(either([*closes, *ignored])) if closes or ignored else ""
    return lark.grammar(sequence(WHITE_SPACE if form.reasoning is not None else "", before, "@content", after))
