"""`CompiledGuides`: guides over llguidance. One thread compiles grammars, another one computes masks."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, Final, TypeVar

from ferrum.core.errors import FerrumError, RequestError
from ferrum.core.guidance import Guidance
from ferrum.core.threads import yield_to_steps
from ferrum.guides.guide_program import GrammarTokens, GuideProgram, program_of
from ferrum.guides.sequence_guide import SequenceGuide
from ferrum.scheduler.guides import Guides, StartGuide
from ferrum.text.tokenizer import Tokenizer

_Key = TypeVar("_Key")
_Value = TypeVar("_Value")

CACHED_GRAMMARS: Final = 64
"""Compiled grammars that are kept for later requests."""


class CompiledGuides(Guides):
    """The guides of an engine.

    Nothing is loaded before the first request with a guidance.

    Args:
        tokenizer: loads the model's tokenizer; None if the model has none.
        vocab_size: of the model, padding included.
    """

    def __init__(self, tokenizer: Callable[[], Tokenizer | None], vocab_size: int) -> None:
        self._compiler = ThreadPoolExecutor(1, "ferrum-grammars", yield_to_steps)
        self._masker = ThreadPoolExecutor(1, "ferrum-masks")
        self._load, self._vocab_size = tokenizer, vocab_size
        self._tokens: GrammarTokens | None = None
        self._matchers: OrderedDict[str, Any] = OrderedDict()
        self._programs: OrderedDict[tuple[Guidance, tuple[int, ...]], GuideProgram] = OrderedDict()

    def compile(
        self, guidance: Guidance, ends: tuple[int, ...], done: Callable[[StartGuide | FerrumError], None]
    ) -> Callable[[], object]:
        return self._compiler.submit(self._compile, guidance, ends, done).cancel

    def close(self) -> None:
        for each in (self._compiler, self._masker):
            each.shutdown(wait=False, cancel_futures=True)

    # On the thread that compiles

    def _compile(
        self, guidance: Guidance, ends: tuple[int, ...], done: Callable[[StartGuide | FerrumError], None]
    ) -> None:
        try:
            program = _kept(self._programs, (guidance, ends), lambda: self._program(guidance, ends))
            start = partial(SequenceGuide, program, self._masker)
        except FerrumError as error:
            done(error)
        except BaseException as error:  # noqa: BLE001 - the library may panic; its request ends with the reason
            done(RequestError(f"the grammar does not compile: {error}", param="guidance"))
        else:
            done(start)

    def _vocabulary(self) -> GrammarTokens:
        if self._tokens is None:
            tokenizer = self._load()
            if tokenizer is None:
                raise RequestError("the model has no tokenizer: it serves token ids without limits", param="guidance")
            self._tokens = GrammarTokens(tokenizer, self._vocab_size)
        return self._tokens

    def _program(self, guidance: Guidance, ends: tuple[int, ...]) -> GuideProgram:
        tokens, matcher = self._vocabulary(), None
        if guidance.grammar is not None:
            source = guidance.grammar.source
            matcher = _kept(self._matchers, source, lambda: tokens.matcher(source))
        return program_of(guidance, tokens, matcher, ends)


def _kept(cache: OrderedDict[_Key, _Value], key: _Key, make: Callable[[], _Value]) -> _Value:
    """Return the value of a key, made now or kept from one of the last requests."""
    found = cache.pop(key) if key in cache else make()
    cache[key] = found
    if len(cache) > CACHED_GRAMMARS:
        cache.popitem(last=False)
    return found
