"""What those that wait may begin with, found without looking at all of them in every step.

A step is short and a queue may be long: who waits for others to compute its beginning is passed over until they have,
and no more are found to have to wait in a step than takes little time.
"""

from __future__ import annotations

from typing import Final

from ferrum.core.types import Sequence
from ferrum.scheduler.live import LiveRequests
from ferrum.scheduler.prefixes import Found, Prefixes
from ferrum.scheduler.sequence import reusable, shared_length
from ferrum.scheduler.siblings import Siblings

MOST_PAGES: Final = 2048
"""Pages that are looked up at a time for sequences that are to wait, a few milliseconds' work."""

LOOK_PAGES: Final = 16
"""What else a look costs, in pages."""


class Beginnings:
    """Tells newcomers what they begin with.

    Args:
        live: the scheduler's books.
        siblings, prefixes: what there is of prompts.
    """

    def __init__(self, live: LiveRequests, siblings: Siblings, prefixes: Prefixes) -> None:
        self._live = live
        self._siblings = siblings
        self._prefixes = prefixes
        self._left = 0
        self._computing: set[str] = set()

    @property
    def spent(self) -> bool:
        """Whether all that wait are passed over until `renew`."""
        return self._left <= 0

    def renew(self) -> None:
        """The queue is gone through once more: in the next step, or because somebody has left it."""
        self._left = MOST_PAGES
        self._computing.clear()

    def of(self, sequence: Sequence) -> Sequence | Found | None:
        """What a newcomer begins with: the prompt of another choice, or what is found of it if that is more; None: it
        waits while another choice computes the prompt, or a request that is served first the same beginning.
        """
        request_id, most = sequence.request.request_id, reusable(sequence, self._live.scored(sequence))
        if self.spent or request_id in self._computing or self._waits(sequence, self._prefixes.glimpse(sequence, most)):
            return None
        sibling = self._siblings.source(sequence)
        if sibling is None and self._siblings.are_computing(sequence):
            self._computing.add(request_id)
            return None
        if sibling is not None and not sequence.generated:
            return sibling
        found = self._prefixes.look(sequence, most)
        if self._waits(sequence, found):
            self._prefixes.await_next(sequence, found)
            self._left -= LOOK_PAGES + len(sequence.names)
            return None
        return found if sibling is None or self._prefixes.length(found) > shared_length(sequence) else sibling

    def _waits(self, sequence: Sequence, found: Found | None) -> bool:
        """Whether what follows is about to be there, or is computed by one that is served first."""
        if found is None:
            return False
        return found.on_its_way or (found.soon is not None and self._live.rank(found.soon) < self._live.rank(sequence))
