"""Cut texts at the borders of tags: what two texts have in common, without halves of tags."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

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
