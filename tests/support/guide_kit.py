"""Guides without an engine: what they allow, as letters."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Executor, Future
from typing import Any

from engine_fakes import EOS, VOCABULARY, LetterTokenizer
from ferrum.core.guidance import Guidance, Marker
from ferrum.guides.guide_program import GrammarTokens, program_of
from ferrum.guides.sequence_guide import SequenceGuide

END = "\n"
"""Stands for the end token in what these functions take and return."""

MORE = "any but the end"


class AtOnce(Executor):
    """An executor that runs each job when it is submitted."""

    def submit(self, job: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        done: Future[Any] = Future()
        done.set_result(job(*args, **kwargs))
        return done


def tokens_of(text: str) -> tuple[int, ...]:
    return tuple(EOS if letter == END else ord(letter) - 31 for letter in text)


def letter(text: str) -> Marker:
    """Return a marker that is one token."""
    return Marker(text=text, token=tokens_of(text)[0])


def guide_of(guidance: Guidance, ends: tuple[int, ...] = (EOS,)) -> SequenceGuide:
    tokens = GrammarTokens(LetterTokenizer(), VOCABULARY)
    matcher = None if guidance.grammar is None else tokens.matcher(guidance.grammar.source)
    return SequenceGuide(program_of(guidance, tokens, matcher, ends), AtOnce())


def letters_in(mask: bytes | None) -> str:
    """Return the allowed letters; `any` for all of them, `MORE` for all but the end token."""
    if mask is None:
        return "any"
    allowed = [token for token in range(VOCABULARY) if mask[token >> 3] >> (token & 7) & 1]
    if {*allowed} == {*range(VOCABULARY)} - {EOS}:
        return MORE
    return "".join(END if token == EOS else chr(token + 31) if token else "<0>" for token in allowed)


def allowed(guide: SequenceGuide, drafts: str = "") -> list[str]:
    """Return what may follow now and after each draft."""
    return [letters_in(mask) for mask in guide.masks(tokens_of(drafts))]


def trace(guidance: Guidance, text: str) -> list[str]:
    """Return what may follow before each letter of a text and at its end."""
    guide = guide_of(guidance)
    found = allowed(guide)
    for each in tokens_of(text):
        guide.advance((each,))
        found += allowed(guide)
    return found
