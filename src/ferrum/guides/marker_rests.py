"""Tokens that would complete a marker and go on with text that the grammar after it refuses: they are forbidden."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Any, Final, TypeAlias

from ferrum.core.guidance import Marker
from ferrum.guides.grammar_tokens import GrammarTokens

RefusedRests: TypeAlias = Mapping[bytes, frozenset[int]]
"""By the part of a marker that the output ends with: tokens that may not follow."""

NO_RESTS: Final[RefusedRests] = {}


def refused_rests(markers: Iterable[Marker], matcher: Any, tokens: GrammarTokens) -> RefusedRests:
    """Return the forbidden tokens for markers that are found by their bytes.

    Args:
        markers: those at which the grammar begins.
        matcher: of the grammar, at its begin.
        tokens: the vocabulary.
    """
    refused: defaultdict[bytes, set[int]] = defaultdict(set)
    accepted: dict[bytes, bool] = {}
    for text in [each.text.encode() for each in markers if each.token is None]:
        last = text[-1:]
        for token, spelled in enumerate(tokens.spellings[: tokens.end]):
            if last not in spelled[:-1]:
                continue  # most tokens
            for begun, rest in _ways_to_complete(text, spelled):
                if rest not in accepted:
                    accepted[rest] = accepts(matcher, tokens.spell(rest))
                if not accepted[rest]:
                    refused[begun].add(token)
    return {begun: frozenset(found) for begun, found in refused.items()}


def _ways_to_complete(marker: bytes, spelled: bytes) -> Iterable[tuple[bytes, bytes]]:
    """Yield how a token completes a marker: the part of the marker before it, and the text after the marker."""
    place = spelled.find(marker)
    if place >= 0 and spelled[place + len(marker) :]:
        yield b"", spelled[place + len(marker) :]
    for count in range(1, min(len(marker), len(spelled))):
        if spelled.startswith(marker[-count:]):
            yield marker[:-count], spelled[count:]


def accepts(matcher: Any, tokens: list[int]) -> bool:
    """Return whether a grammar allows these tokens at its begin."""
    count: int = matcher.deep_copy().try_consume_tokens(tokens)
    return count == len(tokens)
