"""Which engine holds which beginnings of prompts, and so gets requests that begin alike."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from hashlib import sha256
from typing import Final

from ferrum.cache.page_hashes import PrefixScope
from ferrum.cache.pool import PageHash
from ferrum.core.types import Request

_MOST_PAGES: Final = 1 << 16
"""Pages whose owners are known; the one used longest ago is forgotten."""

SPREAD: Final = 1.25
"""An engine gets a request for its prefix up to this multiple of the mean load: "Consistent Hashing with Bounded Loads"
(Mirrokni, Thorup and Zadimoghaddam 2018)."""

SLACK: Final = 2
"""Sequences above that multiple that are bearable, too. A few sequences are rarely divided evenly: with four for each
of two engines, the multiple alone sent a fifth of the requests away from their prefix."""


class PrefixOwners:
    """Chooses an engine for each request: one with the longest beginning of the prompt, if its load is bearable.

    Args:
        page_size: tokens whose hash is one link of the chain.
    """

    def __init__(self, page_size: int) -> None:
        self._scope = PrefixScope(model="", weights="", kv_format="", page_size=page_size, numerics_id="")
        self._owners: OrderedDict[PageHash, tuple[int, ...]] = OrderedDict()

    def choose(self, request: Request, loads: dict[int, int]) -> int:
        """Return the engine for a request, and remember its pages there.

        Args:
            loads: sequences of each engine that takes requests, at least one.
        """
        hashes = self._hashes(request)
        bearable = SPREAD * (sum(loads.values()) + 1) / len(loads) + SLACK
        known = (self._owners.get(each, ()) for each in reversed(hashes))
        longest = next((found for each in known if (found := [one for one in each if one in loads])), [])
        owners = [each for each in longest if loads[each] + 1 <= bearable]
        owner = min(owners or loads, key=lambda each: (loads[each], each))
        for each in hashes:
            self._owners[each] = (*(one for one in self._owners.get(each, ()) if one != owner), owner)
            self._owners.move_to_end(each)
        while len(self._owners) > _MOST_PAGES:
            self._owners.popitem(last=False)
        return owner

    def forget(self, engine: int) -> None:
        """Forget the pages of an engine that has ended."""
        for page, owners in list(self._owners.items()):
            left = tuple(each for each in owners if each != engine)
            if left:
                self._owners[page] = left
            else:
                del self._owners[page]

    def _hashes(self, request: Request) -> Sequence[PageHash]:
        """Return the hashes of the full pages of a prompt."""
        hashes: list[PageHash] = []
        root = sha256(self._scope.root(tenant=request.tenant, salt=request.salt)).digest()
        uses = [each.use for each in request.adapters]
        self._scope.extend(hashes, root, request.prompt, request.inputs, uses)
        return hashes
