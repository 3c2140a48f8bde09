"""GBNF in llguidance's Lark, with the same language.

llguidance's lexer takes the longest match of a terminal and never goes back, while GBNF knows no terminals. So each
character is a terminal, which is exact, but takes milliseconds a step where many texts are possible. A node without
recursion becomes one terminal where its longest match is the only one that the grammar allows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final, TypeAlias

from ferrum.core.errors import InvalidGrammar
from ferrum.grammar.gbnf import (
    ROOT,
    Chars,
    Choice,
    Node,
    Range,
    Reference,
    Repeat,
    Sequence,
    chars,
    children,
    references,
    rules_of,
)
from ferrum.grammar.lark import Lark, character

# Facts: which characters follow each other, and which the same text may reach.
#
# A place is one `Chars` of the rules. Sets of places are bits. What is known of a rule holds for all its uses together,
# so that facts name more places than there are, never fewer.

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


# The writer

MOST_TERMINAL: Final = 10_000
"""Characters of a terminal, counted repetitions included."""

_MOST_REGEX: Final = 8192
_MOST_GROUPS: Final = 100
_LONG: Final = 60
"""Characters of a terminal that gets a name, so that it is written once."""

_NOTHING: Final = Sequence(())


def gbnf_as_lark(text: str, *, followed: bool = False) -> str:
    """Return a grammar in Lark.

    Args:
        text: GBNF.
        followed: other text may come after that of the grammar.

    Raises:
        InvalidGrammar: the grammar is wrong, has no finite text, or a rule that may begin with itself.
    """
    rules = _finite(rules_of(text))
    facts = Facts(rules, followed=followed)
    _check_beginnings(rules, facts)
    return _Writer(rules, facts).lark()


@dataclass(frozen=True, slots=True)
class _Terminal:
    """A node without recursion: its regular expression, with its size and nested groups, and the node's places."""

    regex: str
    size: int
    depth: int
    places: Places


class _Writer:
    """Writes the rules of one grammar.

    Args:
        rules: by name; none may begin with itself.
        facts: about them.
    """

    def __init__(self, rules: Mapping[str, Node], facts: Facts) -> None:
        self._rules = rules
        self._facts = facts
        self._names: dict[str, str] = {}
        self._lark = Lark()
        self._known: dict[int, _Terminal | None] = {}
        self._terminals: dict[str, _Terminal] = {}
        waiting, size = dict(rules), -1
        while size < len(self._terminals):  # innermost first
            size = len(self._terminals)
            for name in [each for each in waiting if all(map(self._terminals.get, references(waiting[each])))]:
                found = self._terminal(waiting.pop(name))
                if found is not None:
                    self._terminals[name] = found

    def lark(self) -> str:
        """Return the grammar."""
        waiting = [ROOT]
        self._names[ROOT] = self._lark.reserve()
        while waiting:
            name = waiting.pop()
            known = len(self._names)
            self._lark.define(self._names[name], self._text(self._rules[name], self._facts.follow[name]))
            waiting += [*self._names][known:]
        return self._lark.grammar(self._names[ROOT])

    def _terminal(self, node: Node) -> _Terminal | None:
        """Return a node as a terminal; None if it is recursive or too large."""
        if id(node) not in self._known:
            self._known[id(node)] = self._made(node)
        return self._known[id(node)]

    def _made(self, node: Node) -> _Terminal | None:
        match node:
            case Chars(ranges):
                return _Terminal(_class(ranges), 1, 0, self._facts.of(node).first)
            case Reference(name):
                return self._terminals.get(name)
        parts = [each for each in map(self._terminal, children(node)) if each is not None]
        if len(parts) < len(children(node)):
            return None
        size, depth, places = sum(each.size for each in parts), 1 + max((each.depth for each in parts), default=0), 0
        for each in parts:
            places |= each.places
        match node:
            case Repeat(_, least, most):
                regex = f"(?:{parts[0].regex}){{{least},{'' if most is None else most}}}"
                size *= max(least, most or 1)
            case Choice():
                regex = f"(?:{'|'.join(each.regex for each in parts)})"
            case _:
                regex = "".join(each.regex for each in parts)
        fits = size <= MOST_TERMINAL and len(regex) <= _MOST_REGEX and depth <= _MOST_GROUPS
        return _Terminal(regex, size, depth, places) if fits else None

    def _text(self, node: Node, follow: Places) -> str:
        """Return a node in Lark. `follow`: the places that may come after it."""
        fact = self._facts.of(node)
        if not fact.first:
            return '""'
        found = self._terminal(node)
        is_whole = node is self._rules[ROOT] and not follow
        if found and (is_whole or isinstance(node, Chars) or self._facts.is_alone(node, found.places, follow)):
            body = f"/{found.regex}/ & /(?s:.+)/" if fact.empty else f"/{found.regex}/"
            if not fact.empty and len(body) < _LONG:
                return body
            return self._lark.rule(body, terminal=True) + "?" * fact.empty
        if isinstance(node, Reference):
            if node.name not in self._names:
                self._names[node.name] = self._lark.reserve()
            return self._names[node.name]
        parts = [self._text(each, after) for each, after in self._facts.within(node, follow)]
        if isinstance(node, Repeat):
            return f"({parts[0]}){{{node.least},{'' if node.most is None else node.most}}}"
        return f"({' | '.join(parts)})" if isinstance(node, Choice) else " ".join(parts)


def _class(ranges: tuple[Range, ...]) -> str:
    if len(ranges) == 1 and ranges[0][0] == ranges[0][1]:
        return character(ranges[0][0])
    inside = (character(low) if low == high else f"{character(low)}-{character(high)}" for low, high in ranges)
    return f"[{''.join(inside)}]"


def _finite(rules: Mapping[str, Node]) -> dict[str, Node]:
    """Return the rules that the root needs, without options that have no finite text.

    Raises:
        InvalidGrammar: the root has no finite text.
    """
    known: set[str] = set()
    size = -1
    while size < len(known):
        size = len(known)
        known.update(name for name in rules if name not in known and _cut(rules[name], known) is not None)
    found: dict[str, Node] = {}
    waiting = [ROOT]
    while waiting:
        name = waiting.pop()
        if name in found:
            continue
        body = _cut(rules[name], known)
        if body is None:
            raise InvalidGrammar(f"the rule {name} has no finite text: each of its options leads to itself")
        found[name] = body
        waiting.extend(references(body))
    return found


def _cut(node: Node, known: set[str]) -> Node | None:
    """Return a node without what has no finite text by the known rules, or None if nothing is left."""
    match node:
        case Reference(name):
            return node if name in known else None
        case Sequence(parts):
            kept = [each for each in (_cut(part, known) for part in parts) if each is not None]
            return Sequence(tuple(kept)) if len(kept) == len(parts) else None
        case Choice(options):
            left = [each for each in (_cut(option, known) for option in options) if each is not None]
            return Choice(tuple(left)) if left else None
        case Repeat(part, least, most):
            inner = None if most == 0 else _cut(part, known)
            return Repeat(inner, least, most) if inner is not None else _NOTHING if least == 0 else None
    return node


def _check_beginnings(rules: Mapping[str, Node], facts: Facts) -> None:
    """Refuse a rule that may begin with itself, as llama.cpp does."""
    begins = {name: set(_begins(rules[name], facts)) for name in rules}
    for name in rules:
        seen: set[str] = set()
        waiting = list(begins[name])
        while waiting:
            each = waiting.pop()
            if each not in seen:
                seen.add(each)
                waiting.extend(begins[each])
        if name in seen:
            raise InvalidGrammar(f"the rule {name} may begin with itself; repeat a part of it with * instead")


def _begins(node: Node, facts: Facts) -> Iterator[str]:
    """Yield the rules that a node may begin with."""
    if isinstance(node, Reference):
        yield node.name
    for each in children(node):
        yield from _begins(each, facts)
        if isinstance(node, Sequence) and not facts.of(each).empty:
            return
