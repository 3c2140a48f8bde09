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
"""Pages whose owner is known; the one used longest ago is forgotten."""

SPREAD: Final = 1.25
"""An engine gets a request for its prefix up to this multiple of the mean load: "Consistent Hashing with Bounded Loads"
(Mirrokni, Thorup and Zadimoghaddam 2018)."""


class PrefixOwners:
    """Chooses an engine for each request: the one with the longest beginning of the prompt, if its load is bearable.

    Args:
        page_size: tokens whose hash is one link of the chain.
    """

    def __init__(self, page_size: int) -> None:
        self._scope = PrefixScope(model="", weights="", kv_format="", page_size=page_size, numerics_id="")
        self._owners: OrderedDict[PageHash, int] = OrderedDict()

    def choose(self, request: Request, loads: dict[int, int]) -> int:
        """Return the engine for a request, and remember its pages there.

        Args:
            loads: sequences of each engine that takes requests, at least one.
        """
        hashes = self._hashes(request)
        bearable = SPREAD * (sum(loads.values()) + 1) / len(loads)
        known = (self._owners.get(each) for each in reversed(hashes))
        owner = next((each for each in known if each in loads), None)
        if owner is None or loads[owner] + 1 > max(bearable, 1):
            owner = min(loads, key=lambda each: (loads[each], each))
        for each in hashes:
            self._owners[each] = owner
            self._owners.move_to_end(each)
        while len(self._owners) > _MOST_PAGES:
            self._owners.popitem(last=False)
        return owner

    def forget(self, engine: int) -> None:
        """Forget the pages of an engine that has ended."""
        for each in [page for page, owner in self._owners.items() if owner == engine]:
            del self._owners[each]

    def _hashes(self, request: Request) -> Sequence[PageHash]:
        """Return the hashes of the full pages of a prompt."""
        hashes: list[PageHash] = []
        root = sha256(self._scope.root(tenant=request.tenant, salt=request.salt)).digest()
        uses = [each.use for each in request.adapters]
        self._scope.extend(hashes, root, request.prompt, request.inputs, uses)
        return hashes
