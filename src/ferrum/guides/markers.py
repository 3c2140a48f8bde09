"""Markers of a format in a growing output: by their token, or by their bytes."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ferrum.core.guidance import Marker


class MarkerFinder:
    """Finds the first of some markers in tokens as they arrive.

    Args:
        markers: those to look for.
        token_bytes: bytes of a token.

    Attributes:
        tokens: the tokens that are markers.
        by_bytes: some markers have no token, so that every token must be looked at.
    """

    def __init__(self, markers: Sequence[Marker], token_bytes: Callable[[int], bytes]) -> None:
        self.tokens = frozenset(each.token for each in markers if each.token is not None)
        self._texts = tuple(each.text.encode() for each in markers if each.token is None)
        self.by_bytes = bool(self._texts)
        self._token_bytes = token_bytes
        self._keep = max(map(len, self._texts), default=1) - 1
        self._tail = b""

    def reset(self) -> None:
        """Forget the output so far."""
        self._tail = b""

    def find(self, token: int) -> bytes | None:
        """Return None, or, if the token completes a marker, its bytes after that marker."""
        if token in self.tokens:
            return b""
        if not self._texts:
            return None
        text = self._tail + self._token_bytes(token)
        ends = [place + len(each) for each in self._texts if (place := text.find(each)) >= 0]
        if ends:
            return text[min(ends) :]
        self._tail = text[max(0, len(text) - self._keep) :]
        return None

    def ends_with(self, text: bytes) -> bool:
        """Return whether the output so far ends with a part of a marker."""
        return self._tail.endswith(text)

    def copy(self) -> MarkerFinder:
        """Return a finder that has seen the same output."""
        other = MarkerFinder((), self._token_bytes)
        other.tokens, other._texts, other.by_bytes = self.tokens, self._texts, self.by_bytes
        other._keep, other._tail = self._keep, self._tail
        return other
