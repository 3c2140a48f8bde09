"""`GuideProgram`: what guides of one request share, and `GrammarTokens`: what those of one model share."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from ferrum.core.errors import RequestError
from ferrum.core.guidance import Grammar, Guidance, Marker, Thought
from ferrum.text.tokenizer import Tokenizer, encode_middle

# The vocabulary

INSTALL: Final = "pip install 'ferrum-llm[structured]'"

LIMITS: Final[dict[str, Any]] = {"verbose_errors": False}
"""Arguments of `LLParserLimits`: the library's own limits, which end a grammar that would take too long."""


class GrammarTokens:
    """The vocabulary for compiling grammars. Making it takes a second for a large vocabulary.

    Added tokens can only be named by a grammar (`<[id]>`): text never matches them, so that a string of JSON holds no
    marker of a format. White space among them is text.

    Args:
        tokenizer: of the model.
        vocab_size: of the model, padding included.

    Attributes:
        tokenizer: as given.
        spellings: bytes by id, with those of `end`.
        end: the token that llguidance allows where a grammar may end: one after the vocabulary, since the end tokens
            are those of a request.

    Raises:
        RequestError: llguidance is not installed.
    """

    def __init__(self, tokenizer: Tokenizer, vocab_size: int) -> None:
        try:
            from llguidance import LLTokenizer
        except ImportError:
            raise RequestError(f"structured outputs need llguidance: {INSTALL}", param="guidance") from None
        self.tokenizer = tokenizer
        self.end = vocab_size
        vocabulary = _Vocabulary(tokenizer, vocab_size)
        self.spellings = vocabulary.tokens
        self._library: Any = LLTokenizer(vocabulary)

    def matcher(self, source: str) -> Any:
        """Compile a grammar and return its matcher. Raises RequestError with the library's reason."""
        from llguidance import LLMatcher, LLParserLimits

        matcher = LLMatcher(self._library, source, log_level=0, limits=LLParserLimits(**LIMITS))
        if matcher.is_error():
            raise RequestError(f"the grammar does not compile: {matcher.get_error().strip()}", param="guidance")
        return matcher

    def spell(self, text: bytes) -> list[int]:
        """Return tokens with the bytes of a text, which need not be whole characters."""
        tokens: list[int] = self._library.tokenize_bytes(text)
        return tokens


class _Vocabulary:
    """What `LLTokenizer` reads of a tokenizer.

    Attributes:
        tokens: bytes by id.
    """

    is_tokenizer_wrapper = True
    bos_token_id = None

    def __init__(self, tokenizer: Tokenizer, vocab_size: int) -> None:
        self.eos_token_id = vocab_size
        self.tokens: Sequence[bytes] = [*map(tokenizer.token_bytes, range(vocab_size)), b"<end of grammar>"]
        markers = tokenizer.added_ids | tokenizer.special_ids
        named = [each for each in sorted(markers) if each < vocab_size]
        special = [each for each in named if self.tokens[each].strip() or tokenizer.is_special(each)]
        self.special_token_ids = [*special, vocab_size]
        self._tokenizer = tokenizer

    def __call__(self, text: str | bytes) -> list[int]:
        """Return the tokens of a text, up to the first that spells something else, as a token for unknown text does.

        The library forces what this returns.
        """
        whole = text if isinstance(text, bytes) else text.encode()
        found, spelled = [], 0
        for token in encode_middle(self._tokenizer, whole.decode()):
            if not whole.startswith(self.tokens[token], spelled):
                break
            found.append(token)
            spelled += len(self.tokens[token])
        return found


# Tokens that would complete a marker and go on with text that the grammar after it refuses

Forbidden: TypeAlias = Mapping[bytes, frozenset[int]]
"""By the part of a marker that the output ends with: tokens that may not follow."""

NOTHING_FORBIDDEN: Final[Forbidden] = {}


def forbidden_tokens(markers: Iterable[Marker], matcher: Any, tokens: GrammarTokens) -> Forbidden:
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


# The program


@dataclass(frozen=True, slots=True)
class GuideProgram:
    """A compiled `Guidance`.

    Attributes:
        tokens: the vocabulary.
        thought: None if it makes no difference: without a budget, and before a grammar that begins at a trigger.
        opening: the tokens with which the thought opens, if the prompt has not opened it.
        end: the tokens that are forced at the budget.
        grammar, matcher: the grammar and its matcher, which is only copied; None without a grammar.
        ends: the end tokens of the request.
        forbidden: tokens that may not complete a trigger, or the close marker before a grammar without triggers.
    """

    tokens: GrammarTokens
    thought: Thought | None
    opening: tuple[int, ...]
    end: tuple[int, ...]
    grammar: Grammar | None
    matcher: Any
    ends: tuple[int, ...]
    forbidden: Forbidden

    @property
    def lazy(self) -> bool:
        """Whether the grammar begins at a trigger."""
        return self.grammar is not None and bool(self.grammar.triggers)

    @property
    def required(self) -> bool:
        """Whether every output must come to the grammar, so that none may end before it."""
        return self.grammar is not None and not self.grammar.triggers


def program_of(guidance: Guidance, tokens: GrammarTokens, matcher: Any, ends: tuple[int, ...]) -> GuideProgram:
    """Return the program of a guidance whose grammar is compiled. Raises RequestError for text without tokens."""
    thought, grammar = guidance.thought, guidance.grammar
    if thought is not None and thought.budget is None and (grammar is None or grammar.triggers):
        thought = None
    end = () if thought is None or thought.budget is None else _end(thought, tokens.tokenizer)
    begins = () if grammar is None else grammar.triggers or (() if thought is None else (thought.close,))
    refused = forbidden_tokens(begins, matcher, tokens) if begins else NOTHING_FORBIDDEN
    ends = ends or tokens.tokenizer.eos_token_ids
    return GuideProgram(tokens, thought, _opening(thought, tokens.tokenizer), end, grammar, matcher, ends, refused)


def _opening(thought: Thought | None, tokenizer: Tokenizer) -> tuple[int, ...]:
    """Return the tokens of the open marker: Harmony's is spelled by three."""
    if thought is None or thought.opened:
        return ()
    text, token = thought.open.text, thought.open.token
    if token is not None and tokenizer.token_bytes(token) == text.encode():
        return (token,)
    return tuple(encode_middle(tokenizer, text))


def _end(thought: Thought, tokenizer: Tokenizer) -> tuple[int, ...]:
    """Return the tokens of the end of a thought; its close marker is one token if it has one."""
    text, close = thought.end or thought.close.text, thought.close
    if close.token is None:
        return tuple(encode_middle(tokenizer, text))
    before, _, after = text.partition(close.text)
    return (*encode_middle(tokenizer, before), close.token, *encode_middle(tokenizer, after))
