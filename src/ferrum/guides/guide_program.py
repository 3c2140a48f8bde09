"""`GuideProgram`: what guides of one request share: its markers, the forced end of its thought, and its matcher."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ferrum.core.guidance import Grammar, Guidance, Thought
from ferrum.guides.grammar_tokens import GrammarTokens
from ferrum.guides.marker_rests import NO_RESTS, RefusedRests, refused_rests
from ferrum.text.tokenizer import Tokenizer, encode_middle


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
        refused: tokens that may not complete a trigger, or the close marker before a grammar without triggers.
    """

    tokens: GrammarTokens
    thought: Thought | None
    opening: tuple[int, ...]
    end: tuple[int, ...]
    grammar: Grammar | None
    matcher: Any
    ends: tuple[int, ...]
    refused: RefusedRests

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
    refused = refused_rests(begins, matcher, tokens) if begins else NO_RESTS
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
