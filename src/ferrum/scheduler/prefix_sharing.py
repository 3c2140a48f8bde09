"""Sharing of prompt prefixes between requests by content hash.

A prompt that begins like one being computed waits for it instead of computing the same pages again. Which page has
which hash is in `cache/`. Choices of one request share their prompt by forks.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial

from ferrum.cache.page_hashes import PartialPage, PartialPages, PrefixScope, named_adapters
from ferrum.cache.page_table import PageTable
from ferrum.cache.pool import PageHash
from ferrum.core.policy_config import POLICY, PolicyConfig
from ferrum.core.step import block_around
from ferrum.core.types import FinishReason
from ferrum.scheduler.admission import Admission
from ferrum.scheduler.input_blocks import pages_outside_blocks
from ferrum.scheduler.queues import LiveRequests, Ranked, WaitingQueue
from ferrum.scheduler.sequence import Sequence, reusable, shared_length
from ferrum.scheduler.state_snapshots import Snapshots


@dataclass(frozen=True, slots=True)
class PrefixMatch:
    """Pages that a waiting sequence can start with.

    Attributes:
        pages: number of leading full pages.
        partial_page: part of one more page, to be copied.
        computing: the running sequence that computes the next page, or None.
        restoring: the next page is being restored from a KV tier.
        snapshot: name of the state after them, if layers have states.
    """

    pages: int
    partial_page: PartialPage | None = None
    computing: Sequence | None = None
    restoring: bool = False
    snapshot: PageHash | None = None


class PrefixSharing:
    """Page hashes of sequences, and lookups by them.

    Args:
        pages: the page table.
        scope: what hashes depend on besides tokens; None: no prefix cache.
        step: largest number of tokens by which a sequence grows in one step.
        admission: says whether there is room for a sequence, before pages are restored for it.
    """

    def __init__(self, pages: PageTable, scope: PrefixScope | None, step: int, admission: Admission) -> None:
        self._pages = pages
        self._scope = scope
        self._step = step
        self._admission = admission
        self._partial_pages = PartialPages()
        self._snapshots: Snapshots | None = None
        if pages.states is not None and scope is not None:
            self._snapshots = Snapshots(pages.states, scope.page_size, self._name_of_state)
        self._computing: dict[PageHash, Sequence] = {}
        self._promised: dict[str, list[PageHash]] = {}
        self._restored: set[str] = set()
        self._awaited: dict[str, int] = {}

    def lookup(self, sequence: Sequence, limit: int) -> PrefixMatch:
        """Return what the cache has of the sequence's first `limit` tokens, and start restores of what follows."""
        self._extend_hashes(sequence)
        if self._scope is None:
            return PrefixMatch(0)
        hashes = sequence.page_hashes[: limit // self._scope.page_size]
        count = self._pages.match(hashes)
        restores = self._pages.restores
        if count < len(hashes) and hashes[count] not in restores and sequence.cache_id not in self._restored:
            if restores.begin(hashes, count, lambda held: self._admission.fits(sequence, held=held)):
                self._restored.add(sequence.cache_id)
            count = self._pages.match(hashes)
        match = PrefixMatch(count, self._find_partial_page(sequence, count, limit))
        if block_around(sequence.request.inputs, self.length(match)) is not None:
            match = PrefixMatch(self._pages_to_adopt(sequence, count))
        if count < len(hashes):
            match = replace(match, computing=self._computing.get(hashes[count]), restoring=hashes[count] in restores)
        return match if self._snapshots is None else self._with_state(sequence, match, self._snapshots)

    def _pages_to_adopt(self, sequence: Sequence, most: int) -> int:
        """Return how many of the first pages can be adopted, and end outside a block."""
        assert self._scope is not None
        count = pages_outside_blocks(sequence, most, self._scope.page_size)
        while (found := self._pages.match(sequence.page_hashes[:count])) < count:
            count = pages_outside_blocks(sequence, found, self._scope.page_size)
        return count

    def _with_state(self, sequence: Sequence, match: PrefixMatch, snapshots: Snapshots) -> PrefixMatch:
        """Return the longest part of a match after which there is a snapshot."""
        previous = (self._hash_before(sequence, count) for count in range(match.pages, -1, -1))

        def has_pages(length: int) -> bool:
            part = self._part(sequence, match, length)
            last, hashes = part.partial_page, sequence.page_hashes[: part.pages]
            return self._pages.match(hashes) == part.pages and (
                last is None or self._pages.has_partial_page(last.page_hash)
            )

        snapshot = snapshots.longest(sequence, previous, self.length(match), has_pages)
        if snapshot is None:
            return replace(match, pages=0, partial_page=None, snapshot=None)
        return replace(self._part(sequence, match, snapshot[0]), snapshot=snapshot[1])

    def _part(self, sequence: Sequence, match: PrefixMatch, length: int) -> PrefixMatch:
        """Return the first tokens of a match, `length` of them."""
        assert self._scope is not None
        pages, rest = divmod(length, self._scope.page_size)
        if not rest:
            return replace(match, pages=pages, partial_page=None)
        last = match.partial_page
        page_hash = last.page_hash if last is not None and pages == match.pages else sequence.page_hashes[pages]
        return replace(match, pages=pages, partial_page=PartialPage(page_hash, rest))

    @property
    def shares(self) -> bool:
        """Whether sequences of different requests share prefixes."""
        return self._scope is not None

    def take_snapshot(self, sequence: Sequence) -> None:
        """Name the sequence's state if its length is one of those at which that is wanted."""
        if sequence.computed not in sequence.snapshot_lengths:
            return
        if self._snapshots is not None:
            self._name_state(sequence, sequence.computed, self._snapshots)
        elif self._pages.states is not None:  # for the other choices of the request
            self._pages.states.name(sequence.cache_id, sequence.computed, None, sequence.tenant)

    def _name_state(self, sequence: Sequence, length: int, snapshots: Snapshots) -> None:
        self._extend_hashes(sequence)
        assert self._scope is not None
        snapshots.take(sequence, self._hash_before(sequence, length // self._scope.page_size), length)

    def _name_of_state(self, sequence: Sequence, length: int) -> PageHash | None:
        """Return the name of the state after `length` tokens: the hash of the page that ends there, full or partial."""
        assert self._scope is not None
        count, rest = divmod(length, self._scope.page_size)
        begin = length - rest
        if not rest:
            return self._hash_before(sequence, count)
        if _has_inputs(sequence, begin, length) or _base_until(sequence, begin, length) != length:
            return None
        return self._scope.hash_page(self._partial_previous(sequence, count), sequence.tokens[begin:length])

    def wait_for_next(self, sequence: Sequence, match: PrefixMatch) -> None:
        """Record that the sequence waits for the page after those just matched."""
        self._awaited[sequence.cache_id] = match.pages

    def peek(self, sequence: Sequence, limit: int) -> PrefixMatch | None:
        """Return what a waiting sequence still waits for, without a lookup of all its pages.

        None means that a lookup is due. The result is no match to begin with: pages found earlier may be gone.
        """
        count = self._awaited.get(sequence.cache_id)
        if count is None or self._scope is None:
            return None
        hashes, restores = sequence.page_hashes, self._pages.restores
        for at in range(count, limit // self._scope.page_size):
            computing, restoring = self._computing.get(hashes[at]), hashes[at] in restores
            if computing is not None or restoring:
                self._awaited[sequence.cache_id] = at
                return PrefixMatch(at, None, computing, restoring)
            if not self._pages.match(hashes[at : at + 1]):
                break
        return None

    def length(self, match: PrefixMatch) -> int:
        """Return the number of matched tokens."""
        size = self._scope.page_size if self._scope is not None else 0
        return match.pages * size + (match.partial_page.tokens if match.partial_page is not None else 0)

    def adopt(self, sequence: Sequence, match: PrefixMatch) -> None:
        """Begin the sequence with a fresh match, without the partial page if there is no room for its copy."""
        cache_id, partial_page = sequence.cache_id, match.partial_page
        self._pages.adopt(cache_id, sequence.page_hashes, match.pages, partial_page, match.snapshot)
        if partial_page is not None and not self._pages.can_grow({cache_id: len(sequence.tokens)}, self._step):
            self._pages.release(cache_id)
            match = replace(match, pages=self._pages_to_adopt(sequence, match.pages), partial_page=None)
            if match.snapshot is not None and self._snapshots is not None:
                match = self._with_state(sequence, match, self._snapshots)
            self._pages.adopt(cache_id, sequence.page_hashes, match.pages, match.partial_page, match.snapshot)
        sequence.computed = self.length(match)

    def start(self, sequence: Sequence, asked: int) -> None:
        """Count the admitted sequence's match, and announce the prompt pages that it will compute.

        Args:
            sequence: runs from now on.
            asked: number of tokens that it could have used from the cache.
        """
        if self._scope is None:
            return
        if not sequence.preemptions and asked:
            sequence.cached = sequence.computed
            self._pages.count_lookup(len(sequence.request.prompt), sequence.computed)
        size = self._scope.page_size
        promised = sequence.page_hashes[sequence.computed // size : len(sequence.request.prompt) // size]
        for page_hash in promised:
            self._computing.setdefault(page_hash, sequence)
        if promised:
            self._promised[sequence.cache_id] = promised

    def inherit(self, source: Sequence, target: Sequence) -> None:
        """Give a fork the hashes of its pages and the source's count of cached tokens."""
        self._extend_hashes(target)
        self._pages.label(target.cache_id, target.page_hashes)
        target.cached = source.cached

    def publish(self, sequence: Sequence) -> None:
        """Let others use the full pages of a sequence that has produced finite logits."""
        self._extend_hashes(sequence)
        self._pages.publish(sequence.cache_id)
        self.withdraw(sequence)

    def release(self, sequence: Sequence) -> None:
        """Release the sequence's pages; its last page stays available if all of it is computed and finite."""
        finite = sequence.generated or sequence.request.params.max_tokens == 0
        if finite and sequence.finish is not FinishReason.ERROR:
            self._publish_partial_page(sequence)
        self.withdraw(sequence)
        self._pages.release(sequence.cache_id)

    def _publish_partial_page(self, sequence: Sequence) -> None:
        if self._scope is None or sequence.cache_id not in self._pages:
            return
        # A step that was in flight when the sequence ended has stored its last token, too.
        stored = min(self._pages.length(sequence.cache_id), len(sequence.tokens))
        if stored < len(sequence.tokens) - 1:
            return
        self._extend_hashes(sequence)
        count, rest = divmod(stored, self._scope.page_size)
        begin = stored - rest
        if self._snapshots is not None:
            self._name_state(sequence, stored, self._snapshots)
            self._pages.publish(sequence.cache_id)
        if rest and not _has_inputs(sequence, begin, stored) and _base_until(sequence, begin, stored) == stored:
            previous, tokens = self._partial_previous(sequence, count), sequence.tokens[begin:stored]
            page_hash = self._scope.hash_page(previous, tokens)
            self._pages.publish_partial_page(sequence.cache_id, stored, page_hash)
            self._partial_pages.add(previous, page_hash, tokens)

    def withdraw(self, sequence: Sequence) -> None:
        """Stop advertising this sequence's pages as in progress, and forget its last lookup."""
        self._restored.discard(sequence.cache_id)
        self._awaited.pop(sequence.cache_id, None)
        for page_hash in self._promised.pop(sequence.cache_id, ()):
            if self._computing.get(page_hash) is sequence:
                del self._computing[page_hash]

    def _find_partial_page(self, sequence: Sequence, count: int, limit: int) -> PartialPage | None:
        """Return part of a page that continues the first `count` pages, within the first `limit` tokens."""
        assert self._scope is not None
        begin = count * self._scope.page_size
        if begin == limit:
            return None
        # The next full page may exist, but the sequence's last token has to run in any case.
        if count < len(sequence.page_hashes) and self._pages.has_partial_page(sequence.page_hashes[count]):
            return PartialPage(sequence.page_hashes[count], limit - begin)
        end = min(limit, begin + self._scope.page_size - 1)
        if _has_inputs(sequence, begin, end):
            return None
        end = _base_until(sequence, begin, end)
        previous = self._partial_previous(sequence, count)
        tokens = sequence.tokens[begin:end]
        return self._partial_pages.find(
            previous, tokens, partial(self._scope.hash_page, previous), self._pages.has_partial_page
        )

    def _hash_before(self, sequence: Sequence, count: int) -> PageHash:
        """Return the hash that the page after the first `count` ones is derived from."""
        return sequence.page_hashes[count - 1] if count else self._root(sequence)

    def _partial_previous(self, sequence: Sequence, count: int) -> PageHash:
        """Return the hash that a partial page after the first `count` ones is derived from."""
        assert self._scope is not None
        previous, begin = self._hash_before(sequence, count), count * self._scope.page_size
        adapters = named_adapters(sequence.adapters, begin, begin + 1)
        return self._scope.hash_page(previous, (), adapters) if adapters else previous

    def _root(self, sequence: Sequence) -> PageHash:
        assert self._scope is not None
        request = sequence.request
        return self._scope.root(tenant=request.tenant, salt=request.salt)

    def _extend_hashes(self, sequence: Sequence) -> None:
        if self._scope is not None and len(sequence.tokens) // self._scope.page_size > len(sequence.page_hashes):
            special = sequence.request.inputs, sequence.adapters
            self._scope.extend(sequence.page_hashes, self._root(sequence), sequence.tokens, *special)


def _has_inputs(sequence: Sequence, begin: int, end: int) -> bool:
    """Return whether a part of the sequence has given rows: such pages are shared in full only.

    Partial pages are found by tokens, which do not name the rows.
    """
    return any(each.at(begin, end) for each in sequence.request.inputs)


def _base_until(sequence: Sequence, begin: int, end: int) -> int:
    """Return the first position after `begin` at which an adapter begins, at most `end`.

    Partial pages are found by tokens, which do not name adapters that begin among them.
    """
    return min([end, *(each.start for each in sequence.adapters if each.start > begin)])


# ---- Forks: sharing of a prompt between the choices of one request ----


class ChoiceForks:
    """Forks of a request's prompt: all of it except the last token is computed once for all choices.

    Args:
        live, running, waiting: the scheduler's state; a choice that takes over moves from waiting to running.
        pages: the page table.
        prefixes: sets the hashes of forks.
    """

    def __init__(
        self, live: LiveRequests, running: Ranked, waiting: WaitingQueue, pages: PageTable, prefixes: PrefixSharing
    ) -> None:
        self._live = live
        self._running = running
        self._waiting = waiting
        self._pages = pages
        self._prefixes = prefixes

    def source(self, sequence: Sequence) -> Sequence | None:
        """Return a running choice of the same request that has the whole prompt, or None."""
        shared = shared_length(sequence)
        return next((each for each in self._others(sequence) if self._can_share(each, shared)), None)

    def are_computing(self, sequence: Sequence) -> bool:
        """Return whether a running choice still computes the prompt."""
        return any(each.computed < shared_length(each) for each in self._others(sequence))

    def fork(self, source: Sequence, target: Sequence) -> None:
        """Begin the target with the source's prompt."""
        self._pages.fork(source.cache_id, target.cache_id)
        self._pages.truncate(target.cache_id, shared_length(target))
        target.computed = shared_length(target)
        self._prefixes.inherit(source, target)

    def hand_over(self, sequence: Sequence) -> None:
        """Fork an ending choice to a waiting one, which takes its place, if no other choice has the prompt."""
        if sequence.finish is FinishReason.ERROR or not self._can_share(sequence, shared_length(sequence)):
            return
        if self.source(sequence) is not None:
            return
        choices = self._live.choices(sequence.request.request_id)
        heir = next((each for each in choices if each.finish is None and each in self._waiting), None)
        if heir is not None:
            self.fork(sequence, heir)
            self._waiting.remove(heir)
            self._running.add(heir)

    def _others(self, sequence: Sequence) -> Iterator[Sequence]:
        """Yield the running choices of the request that have not ended, if choices share anything."""
        choices = self._live.choices(sequence.request.request_id) if shared_length(sequence) else ()
        return (each for each in choices if each.finish is None and each in self._running)

    def _can_share(self, source: Sequence, shared: int) -> bool:
        return source.computed >= shared > 0 and self._pages.can_truncate(source.cache_id, shared)


class PromptReuse:
    """Search for what a waiting sequence begins with, bounded per step: steps are short and queues may be long.

    Args:
        live: the scheduler's requests.
        forks, prefixes: the two ways to begin with computed tokens.
        config: constants.

    Attributes:
        left: this step's budget for lookups; without any, nothing is found.
    """

    def __init__(
        self, live: LiveRequests, forks: ChoiceForks, prefixes: PrefixSharing, config: PolicyConfig = POLICY
    ) -> None:
        self._live = live
        self._forks = forks
        self._prefixes = prefixes
        self._config = config
        self.left = 0
        self._computing: set[str] = set()

    def reset(self) -> None:
        """Start a new pass over the queue, with a full budget."""
        self.left = self._config.prefix_lookup_pages
        self._computing.clear()

    def find(self, sequence: Sequence) -> Sequence | PrefixMatch | None:
        """Return another choice to fork, or the cached prefix if that is longer.

        None means that the sequence waits: another choice computes the prompt, or a request that is served first
        computes the same prefix, or pages are being restored.
        """
        request_id, limit = sequence.request.request_id, reusable(sequence, self._live.scored(sequence))
        if (
            self.left <= 0
            or request_id in self._computing
            or self._waits(sequence, self._prefixes.peek(sequence, limit))
        ):
            return None
        forks = sequence.request.params.n > 1
        source = self._forks.source(sequence) if forks else None
        if forks and source is None and self._forks.are_computing(sequence):
            self._computing.add(request_id)
            return None
        if source is not None and not sequence.generated:
            return source
        match = self._prefixes.lookup(sequence, limit)
        if self._waits(sequence, match):
            self._prefixes.wait_for_next(sequence, match)
            self.left -= self._config.prefix_lookup_cost + len(sequence.page_hashes)
            return None
        return match if source is None or self._prefixes.length(match) > shared_length(sequence) else source

    def _waits(self, sequence: Sequence, match: PrefixMatch | None) -> bool:
        """Return whether the next page is being restored, or computed by a sequence that is served first."""
        if match is None:
            return False
        first = match.computing
        return match.restoring or (first is not None and first.rank < sequence.rank)
