"""Places of characters in a GBNF grammar: which follow each other, and which the same text may reach.

A place is one `Chars` of the rules. Sets of places are bits. What is known of a rule holds for all its uses together,
so that facts name more places than there are, never fewer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final, TypeAlias

from ferrum.core.errors import InvalidGrammar
from ferrum.grammar.gbnf import ROOT, Chars, Choice, Node, Reference, Repeat, Sequence, chars, children

Places: TypeAlias = int
MOST_PLACES: Final = 4000
"""Places of which it is found which follow each other; sets of more take too long."""

_MOST_PAIRS: Final = 300_000
_MOST_PASSES: Final = 60


@dataclass(frozen=True, slots=True)
class Fact:
    """What is known of a node: whether it matches the empty text, and the places where its texts begin and end."""

    empty: bool = False
    first: Places = 0
    last: Places = 0


NOTHING: Final = Fact(empty=True)
ANY: Final = chars([], negated=True)


class Facts:
    """The facts of one grammar.

    Args:
        rules: by name; each has a finite text.
        followed: other text may come after that of the grammar.

    Attributes:
        follow: by rule, the places that may come after it.
    """

    def __init__(self, rules: Mapping[str, Node], *, followed: bool) -> None:
        self._rules = rules
        self._chars = [node for body in rules.values() for node in nodes_of(body) if isinstance(node, Chars)]
        few = len(self._chars) <= MOST_PLACES
        self._places = {id(node): place if few else 0 for place, node in enumerate(self._chars)}
        self._by_rule = dict.fromkeys(rules, Fact())
        self._settle(self._look)
        outside = 1 << len(self._chars) if followed else 0
        self.follow = dict.fromkeys(rules, 0)
        self.follow[ROOT] = outside
        self._next: list[Places] = [0] * (len(self._chars) + followed)
        self._meets: list[Places] = []
        self._rivals: list[Places] = []
        if few:
            self._chars += [ANY] * followed
            self._settle(self._place)
            for body in rules.values():
                self._connect(body)
            self._follow(self._by_rule[ROOT].last | outside, outside)
            self._meets = self._meetings()
            self._rivals = self._together(self._by_rule[ROOT].first | outside)

    def of(self, node: Node) -> Fact:
        """Return the facts of a node."""
        match node:
            case Chars():
                place = 1 << self._places[id(node)]
                return Fact(first=place, last=place)
            case Reference(name):
                return self._by_rule[name]
            case Choice(options):
                found = Fact()
                for each in map(self.of, options):
                    found = Fact(found.empty or each.empty, found.first | each.first, found.last | each.last)
                return found
            case Repeat(part, least):
                inner = self.of(part)
                return Fact(inner.empty or least == 0, inner.first, inner.last)
        found = NOTHING
        for each in map(self.of, node.parts):
            found = _joined(found, each)
        return found

    def within(self, node: Node, follow: Places) -> Iterator[tuple[Node, Places]]:
        """Yield the nodes directly within one, each with the places that may come after it.

        Args:
            follow: the places that may come after the node.
        """
        if isinstance(node, Sequence):
            found = []
            for each in reversed(node.parts):
                found.append((each, follow))
                fact = self.of(each)
                follow = fact.first | (follow if fact.empty else 0)
            yield from reversed(found)
        elif isinstance(node, Repeat):
            yield node.part, follow | (self.of(node.part).first if _loops(node) else 0)
        else:
            yield from ((each, follow) for each in children(node))

    def is_alone(self, node: Node, places: Places, follow: Places) -> bool:
        """Return whether the longest match of a node is what the grammar says, wherever it stands.

        Args:
            places: all those of the node, which has no recursion.
            follow: the places that may come after it.
        """
        if not self._rivals or any(self._rivals[each] & ~places for each in bits(places)):
            return False
        ends = self.of(node).last
        for each in bits(ends):
            ends |= self._rivals[each]
        longer = 0
        for each in bits(ends):
            longer |= self._next[each] & places
        return not any(self._meets[each] & longer for each in bits(follow))

    def _settle(self, update: Callable[[str], bool]) -> None:
        """Update the rules in both orders until nothing changes."""
        names = list(self._rules)
        for _ in range(_MOST_PASSES):
            if not [name for name in names if update(name)]:
                return
            names.reverse()
        raise InvalidGrammar("has rules that depend on each other in too many ways")

    def _look(self, name: str) -> bool:
        before, self._by_rule[name] = self._by_rule[name], self.of(self._rules[name])
        return self._by_rule[name] != before

    def _place(self, name: str) -> bool:
        """Add what follows the references within a rule to their rules; return whether anything is new."""
        changed = False
        stack = [(self._rules[name], self.follow[name])]
        while stack:
            node, follow = stack.pop()
            if isinstance(node, Reference):
                changed |= bool(follow & ~self.follow[node.name])
                self.follow[node.name] |= follow
            stack.extend(self.within(node, follow))
        return changed

    def _connect(self, node: Node) -> None:
        """Note which places follow each other within a node."""
        for each in children(node):
            self._connect(each)
        if isinstance(node, Repeat) and _loops(node):
            self._follow(self.of(node.part).last, self.of(node.part).first)
        if isinstance(node, Sequence):
            before = NOTHING
            for fact in map(self.of, node.parts):
                self._follow(before.last, fact.first)
                before = _joined(before, fact)

    def _follow(self, ends: Places, starts: Places) -> None:
        for each in bits(ends):
            self._next[each] |= starts

    def _meetings(self) -> list[Places]:
        """Return, by place, the places that share a character with it."""
        bounds = sorted({bound for each in self._chars for low, high in each.ranges for bound in (low, high + 1)})
        order = {bound: number for number, bound in enumerate(bounds)}
        classes = [
            [number for low, high in each.ranges for number in range(order[low], order[high + 1])]
            for each in self._chars
        ]
        by_class = [0] * len(bounds)
        for place, found in enumerate(classes):
            for each in found:
                by_class[each] |= 1 << place
        meets = []
        for found in classes:
            sharing = 0
            for each in found:
                sharing |= by_class[each]
            meets.append(sharing)
        return meets

    def _together(self, start: Places) -> list[Places]:
        """Return, by place, the others that the same text may reach; empty if that takes too long."""
        rivals, pairs = [0] * len(self._chars), []

        def add(starts: Places, others: Places) -> None:
            for each in bits(starts):
                new = others & self._meets[each] & ~rivals[each] & ~(1 << each)
                rivals[each] |= new
                for other in bits(new):
                    rivals[other] |= 1 << each
                    pairs.append((each, other))

        for each in {start, *self._next}:
            add(each, each)
        work = 0
        while pairs:
            one, other = pairs.pop()
            work += self._next[one].bit_count() + 1
            if work > _MOST_PAIRS:
                return []
            add(self._next[one], self._next[other])
        return rivals


def nodes_of(node: Node) -> Iterator[Node]:
    """Yield a node and those within it."""
    yield node
    for each in children(node):
        yield from nodes_of(each)


def bits(places: Places) -> Iterator[int]:
    """Yield the numbers of the places in a set."""
    while places:
        lowest = places & -places
        yield lowest.bit_length() - 1
        places ^= lowest


def _loops(node: Repeat) -> bool:
    return node.most is None or node.most > 1


def _joined(one: Fact, other: Fact) -> Fact:
    """Return the facts of two nodes one after the other."""
    first = one.first | (other.first if one.empty else 0)
    return Fact(one.empty and other.empty, first, other.last | (one.last if other.empty else 0))
