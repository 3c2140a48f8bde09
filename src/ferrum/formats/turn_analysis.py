"""Read the markers of reasoning and content off renderings with and without reasoning."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from ferrum.core.output_format import Reasoning
from ferrum.formats import probe_conversations as probes
from ferrum.formats.probe_conversations import NotFoundError, Renderings

VARIABLES: Final[tuple[Mapping[str, Any], ...]] = (
    {},
    {"enable_thinking": True},
    {"enable_thinking": False},
    {"thinking": True},
    {"thinking": False},
)
"""Variables that switch reasoning on and off in known templates."""

_CLOSE_IN_SOURCE: Final = re.compile(r"</think>|\[/THINK\]")
"""A closing tag that templates cut reasoning off at."""


@dataclass(frozen=True, slots=True)
class Turn:
    """What surrounds the parts of an answer.

    Attributes:
        header: from the end of the question to the answer.
        end: what follows an answer without calls.
        reasoning: None if the template writes none.
        content_open, content_close: of channels.
        empty: texts that stand for absent reasoning.
    """

    header: str
    end: str
    reasoning: Reasoning | None
    content_open: str
    content_close: str
    empty: tuple[str, ...]


def find_turn(renderings: Renderings, source: str) -> Turn:
    """Return what surrounds the parts of an answer. Raises NotFoundError if content is not rendered as it is."""
    plain = _around(renderings.turn(probes.assistant(content=probes.CONTENT)), probes.CONTENT)
    if plain is None:
        raise NotFoundError("the chat template does not render an answer")
    past = _around(renderings.turn(probes.assistant(content=probes.CONTENT), probes.next_user()), probes.CONTENT)
    rendered = (renderings.turn(prompt=True, variables=each) for each in VARIABLES)
    # Some templates append a switch to the question, which is no part of the answer.
    prompts = [each for each in rendered if each is not None and shared_prefix(each, plain[0])]
    leads = [plain[0], *([past[0]] if past else []), *prompts]
    thought = _thought(renderings)
    header = shared_prefix(*leads, *([thought[0]] if thought else []))
    content_open = plain[0][len(header) :].strip()
    if thought is not None:
        reasoning = _markers(header, thought, content_open, prompts)
    else:
        reasoning = _from_source(source, prompts)
    if reasoning is not None and any(
        tag.group() in content_open for text in (reasoning.open, reasoning.close) for tag in tags(text)
    ):
        content_open = ""
    closing = tags(plain[1])
    content_close = closing[0].group() if content_open and len(closing) > 1 else ""
    empty = tuple({each[len(header) :] for each in leads if each != header})
    return Turn(header, plain[1], reasoning, content_open, content_close, empty)


def _around(text: str | None, word: str) -> tuple[str, str] | None:
    """Return the texts before and after a word that must occur once."""
    if text is None or text.count(word) != 1:
        return None
    before, _, after = text.partition(word)
    return before, after


def _thought(renderings: Renderings) -> tuple[str, str] | None:
    """Return the texts before reasoning and after it, under the first variables that render it.

    The text after it ends at the content, or after its first tag if reasoning is rendered only before calls.
    """
    message = probes.assistant(content=probes.CONTENT, reasoning=probes.REASONING)
    calling = probes.assistant([(probes.NAMES[0], {})], reasoning=probes.REASONING)
    for variables in VARIABLES:
        around = _around(renderings.turn(message, variables=variables), probes.REASONING)
        if around is not None and (rest := _around(around[1], probes.CONTENT)) is not None:
            return around[0], rest[0]
    for variables in VARIABLES:
        around = _around(renderings.turn(calling, variables=variables), probes.REASONING)
        if around is not None and (found := tags(around[1])):
            return around[0], around[1][: found[0].end()]
    return None


def _markers(header: str, thought: tuple[str, str], content_open: str, prompts: list[str]) -> Reasoning | None:
    before, after = thought
    open_, close = before[len(header) :], after
    if content_open and after.strip() != content_open:
        close = after.removesuffix(content_open)
    if not open_.strip():
        last = tags(before)[-1] if tags(before) else None
        prefilled = next((each for each in prompts if each.startswith(before) and each != before), "")
        if last is not None and last.group() in {tag.group().replace("/", "", 1) for tag in tags(close)}:
            open_ = before[last.start() :]  # every answer of the template begins with reasoning, if only with its tags
        else:
            open_ = prefilled[len(before) :]  # only prompts open reasoning
    return Reasoning(open=open_, close=close) if open_.strip() and close.strip() else None


def _from_source(source: str, prompts: list[str]) -> Reasoning | None:
    """Return the tags at which the template cuts off the reasoning of answers, or that its prompts open."""
    close = _CLOSE_IN_SOURCE.search(source)
    if close is None:
        return None
    open_ = close.group().replace("/", "", 1)
    written = next((each[each.rindex(open_) :] for each in prompts if each.rstrip().endswith(open_)), open_)
    return Reasoning(open=written, close=close.group())


# Texts cut at the borders of tags

_TAG: Final = re.compile(r"<[^<>\s][^<>]*(?:>|$)|\[/?[A-Z][A-Z_ ]*\]")
"""A tag in angle brackets, closed or up to the end of the text, or one of capitals in square brackets."""


def shared_prefix(*texts: str) -> str:
    """Return the longest common prefix that ends at no tag's inside."""
    cut = _shared(texts)
    for text in texts:
        for tag in _TAG.finditer(text):
            if tag.start() < cut < tag.end():
                cut = tag.start()
    return texts[0][:cut]


def shared_suffix(*texts: str) -> str:
    """Return the longest common suffix that begins at no tag's inside."""
    length = _shared([text[::-1] for text in texts])
    for text in texts:
        for tag in _TAG.finditer(text):
            if tag.start() < len(text) - length < tag.end():
                length = len(text) - tag.end()
    return texts[0][len(texts[0]) - length :]


def tags(text: str) -> list[re.Match[str]]:
    """Return the tags of a text in order."""
    return list(_TAG.finditer(text))


def _shared(texts: Sequence[str]) -> int:
    """Return the length of the longest common prefix."""
    least, most = min(texts), max(texts)
    return next((place for place, letter in enumerate(least) if letter != most[place]), len(least))
