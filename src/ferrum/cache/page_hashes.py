"""Content hashes of full and partial pages, by which sequences with equal prefixes share them.

A page's hash is a digest of the previous page's hash and its own tokens. The chain starts with everything else that
keys and values depend on, so positions follow from the chain. Which page has which hash is in `pool.py`.
"""

from __future__ import annotations

from array import array
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import astuple, dataclass
from hashlib import sha256
from itertools import takewhile

from ferrum.cache.pool import HashedPage, PageGroup, PageHash, PagePool
from ferrum.core.policy_config import POLICY
from ferrum.core.step import AdapterUse, Inputs


@dataclass(frozen=True, slots=True, kw_only=True)
class PrefixScope:
    """Everything besides tokens that keys and values depend on.

    Attributes:
        model: the weights, by their content or, within one process, by where they were loaded from.
        weights: formats of the weights, and other options that change them.
        kv_format: format of keys and values.
        page_size: tokens per page.
        numerics_id: identifies the arithmetic.
    """

    model: str
    weights: str
    kv_format: str
    page_size: int
    numerics_id: str

    def root(self, *, tenant: str, salt: str) -> PageHash:
        """Return the hash that a sequence's first page hash is derived from.

        Args:
            tenant, salt: requests that differ in them share no pages, so timing reveals nothing about the other.
        """
        fields = (*map(str, astuple(self)), tenant, salt)
        return sha256(b"".join(_framed(field.encode()) for field in fields)).digest()

    def extend(
        self,
        page_hashes: list[PageHash],
        root: PageHash,
        tokens: Sequence[int],
        inputs: Sequence[Inputs] = (),
        adapters: Sequence[AdapterUse] = (),
    ) -> None:
        """Append the hashes of the full pages of `tokens` that `page_hashes` does not have yet.

        Args:
            inputs: given rows of the sequence. Tokens do not name them, since all images have the same placeholder.
            adapters: of the sequence. Each is in the hash of the page in which it begins, and so in all later ones.
        """
        size = self.page_size
        for page in range(len(page_hashes), len(tokens) // size):
            previous, begin = page_hashes[-1] if page_hashes else root, page * size
            given = b"".join([_named(each, begin, begin + size) for each in inputs])
            given += named_adapters(adapters, begin, begin + size)
            page_hashes.append(self.hash_page(previous, tokens[begin : begin + size], given))

    def hash_page(self, previous: PageHash, tokens: Sequence[int], given: bytes = b"") -> PageHash:
        """Return the hash of a full or partial page with these tokens, after the page `previous` or the root.

        Args:
            given: names the given rows in a full page, and the adapters that begin in the page.
        """
        return sha256(previous + array("i", tokens).tobytes() + given).digest()


def named_adapters(adapters: Sequence[AdapterUse], begin: int, end: int) -> bytes:
    """Return what names the adapters that begin at these positions; nothing if there are none."""
    found = [each for each in adapters if begin <= each.start < end]
    return b"".join(_framed(f"adapter {each.key} {each.scale.hex()} {each.start}".encode()) for each in found)


def _named(inputs: Inputs, begin: int, end: int) -> bytes:
    """Return what names the rows in a page, and their places in it; nothing if there are none."""
    found = inputs.at(begin, end)
    places = array("q", [found.start, *inputs.positions[found.start : found.stop]])
    # A page that ends in a block has keys of rows that have seen the rest of it.
    block = b"" if inputs.block is None else _framed(array("q", [inputs.block.start, inputs.block.stop]).tobytes())
    return _framed(inputs.digest) + _framed(places.tobytes()) + block if found else b""


def _framed(field: bytes) -> bytes:
    """Return bytes prefixed with their length, so that distinct lists of fields give distinct bytes."""
    return len(field).to_bytes(8, "little") + field


class SequenceHashes:
    """How many pages of one sequence have their hash, and which of them are not published yet.

    A full page gets its hash at once, since it may leave a window soon. It is published only after its sequence has
    produced finite logits: before that it may hold a NaN that would spread to others with the same prefix.

    Args:
        page_hashes: of its full pages, as far as its tokens are known: a view that its owner appends to.
        assigned: number of pages that have their hash already.
    """

    __slots__ = ("_assigned", "_page_hashes", "_unpublished")

    def __init__(self, page_hashes: Sequence[PageHash] = (), assigned: int = 0) -> None:
        self._page_hashes = page_hashes
        self._assigned = assigned
        self._unpublished: list[tuple[PagePool, HashedPage]] = []

    def assign(self, pools: Sequence[PagePool], rows: Sequence[Sequence[int]], freed: Sequence[int], full: int) -> None:
        """Give the first `full` pages of every row their hashes, except the leading `freed` ones."""
        for index in range(self._assigned, min(full, len(self._page_hashes))):
            for pool, row, gone in zip(pools, rows, freed, strict=True):
                hashed = None if index < gone else pool.hashes.assign(row[index], self._page_hashes[index])
                if hashed is not None:
                    self._unpublished.append((pool, hashed))
            self._assigned = index + 1

    def cut(self, full: int) -> None:
        """Keep only the first `full` pages."""
        self._assigned = min(self._assigned, full)

    def publish(self) -> list[tuple[PagePool, HashedPage]]:
        """Let the pages be found; return those that now are."""
        if not self._unpublished:
            return []
        published = [(pool, hashed) for pool, hashed in self._unpublished if pool.publish(hashed)]
        self._unpublished.clear()
        return published

    def discard(self) -> None:
        """Remove the hashes that are not published."""
        for pool, hashed in self._unpublished:
            pool.remove_hash(hashed)
        self._unpublished.clear()


def longest_match(groups: Sequence[PageGroup], pools: Sequence[PagePool], page_hashes: Sequence[PageHash]) -> int:
    """Return how many leading pages can be adopted.

    A group without a window needs all of them, a group with one only those that the next query sees.
    """
    if len(groups) == 1 and groups[0].window is None:  # the usual case, in a tenth of the time
        return pools[0].hashes.find_run(page_hashes)
    runs = [0] * len(groups)
    longest = 0
    for count, page_hash in enumerate(page_hashes, 1):
        for index, (group, pool) in enumerate(zip(groups, pools, strict=True)):
            runs[index] = 0 if pool.hashes.find(page_hash) is None else runs[index] + 1
            if runs[index] < count and group.window is None:
                return longest
        if all(run >= count - group.unseen(count * group.page_size) for run, group in zip(runs, groups, strict=True)):
            longest = count
    return longest


@dataclass(frozen=True, slots=True)
class PartialPage:
    """A page whose first tokens a sequence can start with.

    Attributes:
        page_hash: its hash.
        tokens: how many of its tokens to use.
    """

    page_hash: PageHash
    tokens: int


@dataclass(slots=True)
class _Successors:
    """Partial pages after one full page: a bit for each length, and the last one's hash and tokens."""

    lengths: int = 0
    page_hash: PageHash = b""
    tokens: tuple[int, ...] = ()


class PartialPages:
    """Partial pages that may exist, by the hash of the full page before them.

    A sequence that continues where another ended copies that one's last page and computes only the new tokens.

    Args:
        capacity: number of full pages to remember successors of.
    """

    def __init__(self, capacity: int = POLICY.max_partial_pages) -> None:
        self._capacity = capacity
        self._successors: OrderedDict[PageHash, _Successors] = OrderedDict()

    def add(self, previous: PageHash, page_hash: PageHash, tokens: Sequence[int]) -> None:
        """Record that a page of this hash holds these tokens after the page `previous`."""
        known = self._successors.setdefault(previous, _Successors())
        known.lengths |= 1 << len(tokens)
        known.page_hash, known.tokens = page_hash, tuple(tokens)
        self._successors.move_to_end(previous)
        if len(self._successors) > self._capacity:
            self._successors.popitem(last=False)

    def find(
        self,
        previous: PageHash,
        tokens: Sequence[int],
        hash_page: Callable[[Sequence[int]], PageHash],
        exists: Callable[[PageHash], bool],
    ) -> PartialPage | None:
        """Return the partial page that holds most of `tokens` after a page.

        Candidates are pages that `tokens` start with, and the page recorded last.

        Args:
            hash_page: returns the hash of a partial page with the given tokens.
            exists: returns whether a page of the hash exists.
        """
        known = self._successors.get(previous)
        if known is None:
            return None
        self._successors.move_to_end(previous)
        alike = sum(1 for _ in takewhile(bool, map(int.__eq__, known.tokens, tokens)))
        common = alike if exists(known.page_hash) else 0
        for count in range(len(tokens), common, -1):
            if known.lengths >> count & 1 and exists(page_hash := hash_page(tokens[:count])):
                return PartialPage(page_hash, count)
        return PartialPage(known.page_hash, common) if common else None
