"""Admission: from a prompt and its parameters to a `Request`, or a typed error that names the field.

All that can be checked without the engine is checked here, before anything is queued.
"""

from __future__ import annotations

import math
import secrets
import time
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from contextlib import suppress
from numbers import Real
from typing import Any, TypeAlias

from ferrum.core.errors import ContextOverflow, InvalidToken, RequestError, Unsupported
from ferrum.core.params import SamplingParams
from ferrum.core.span_checks import check_ids
from ferrum.core.types import Pooling, Request
from ferrum.core.values import integer, listed, shown, whole
from ferrum.text.tokenizer import Tokenizer

Prompt: TypeAlias = str | Sequence[int]
"""A text, or its token ids."""


class InputProcessor:
    """Makes requests for one model.

    Args:
        vocab_size: the model's; token ids are below it.
        max_sequence_length: most tokens of prompt and output together.
        tokenizer: None serves token ids alone.
        eos_token_ids: the model's end tokens.
        clock: monotonic seconds.
        prioritised: the engine serves by priority.

    Attributes:
        eos_token_ids: as given.
    """

    def __init__(
        self,
        *,
        vocab_size: int,
        max_sequence_length: int,
        tokenizer: Tokenizer | None,
        eos_token_ids: Iterable[int] = (),
        clock: Callable[[], float] = time.monotonic,
        prioritised: bool = False,
    ) -> None:
        self._vocab_size = vocab_size
        self._max_sequence_length = max_sequence_length
        self._tokenizer = tokenizer
        self.eos_token_ids = tuple(eos_token_ids)
        self._clock = clock
        self._prioritised = prioritised

    def process(
        self,
        prompt: Prompt,
        params: SamplingParams,
        *,
        request_id: str | None = None,
        priority: int = 0,
        deadline: float | None = None,
        tenant: str = "",
        salt: str = "",
        trace_id: str | None = None,
        adapter: str | None = None,
        add_special_tokens: bool = True,
        pooling: Pooling | None = None,
        prediction: Prompt = (),
    ) -> Request:
        """A request that the engine can take as it is.

        Args:
            prompt: text, or token ids that are taken as they are.
            request_id: None: a new one.
            priority: smaller is served first; other than 0 only where the engine serves by it.
            deadline: seconds from now after which the request is ended; None: never.
            tenant: whose request it is; carried along.
            salt: keeps its cached prefixes apart from those of other salts.
            trace_id: None: the request id.
            adapter: refused, for there are none yet.
            add_special_tokens: False for a text that holds its special tokens already, as chat templates do.
            pooling: how to make the prompt a vector; nothing is generated then (`params.max_tokens` must be 0, `n` 1).
            prediction: what the output may be like, within the context; it changes nothing but how soon it is there.

        Raises:
            RequestError: an empty prompt, a prompt that leaves no room in the context, an id that the model does not
                have, text without a tokenizer, or an option that cannot be honoured; `param` names it.
            Unsupported: an adapter, or a priority without the policy that knows it.
        """
        check_params(params)
        _check_features(params, adapter, pooling)
        self._check_text_options(params)
        params.check_vocabulary(self._vocab_size)
        name = f"request-{secrets.token_hex(8)}" if request_id is None else _named("request_id", request_id)
        now = self._clock()
        eos = () if params.ignore_eos else self.eos_token_ids
        return Request(
            request_id=name,
            prompt=self._tokens(prompt, params, add_special_tokens),
            params=params,
            seed=secrets.randbits(64) - 2**63 if params.seed is None else params.seed,
            stop_token_ids=frozenset((*params.stop_token_ids, *eos)),
            eos_token_ids=eos,
            bad_words=self._bad_words(params),
            priority=self.check_priority(priority),
            deadline=None if deadline is None else now + _seconds("deadline", deadline),
            arrival=now,
            tenant=_string("tenant", tenant),
            salt=_string("salt", salt),
            trace_id=name if trace_id is None else _string("trace_id", trace_id),
            pooling=pooling,
            prediction=self._predicted(prediction),
        )

    def _check_text_options(self, params: SamplingParams) -> None:
        """Without a tokenizer there is no text, and nothing that is about text can be honoured."""
        if self._tokenizer is not None:
            return
        asked = {
            "stop": bool(params.stop),
            "bad_words": bool(params.bad_words),
            "include_stop_str_in_output": params.include_stop_str_in_output,
            "skip_special_tokens": not params.skip_special_tokens,
        }
        for name, is_asked in asked.items():
            if is_asked:
                raise RequestError("the model has no tokenizer; token ids only", param=name)

    def _tokens(self, prompt: Prompt, params: SamplingParams, add_special_tokens: bool) -> tuple[int, ...]:
        tokens = self._encoded(prompt, add_special_tokens=add_special_tokens, param="prompt")
        if not tokens:
            raise RequestError("must not be empty", param="prompt")
        scored = params.max_tokens == 0
        if len(tokens) + (not scored) > self._max_sequence_length:
            wrong = "are more than there are" if scored else "leave no room for output"
            raise ContextOverflow(
                f"{len(tokens)} tokens {wrong} in a context of {self._max_sequence_length}", param="prompt"
            )
        return tokens

    def _predicted(self, prediction: Prompt) -> tuple[int, ...]:
        tokens = self._encoded(prediction, add_special_tokens=False, param="prediction")
        if len(tokens) > self._max_sequence_length:
            raise ContextOverflow(
                f"{len(tokens)} tokens are more than any output in a context of {self._max_sequence_length}",
                param="prediction",
            )
        return tokens

    def _encoded(self, text: Prompt, *, add_special_tokens: bool, param: str) -> tuple[int, ...]:
        """Ids that the model has, of a text or as given. Errors are about the field `param`."""
        if isinstance(text, str) and self._tokenizer is None:
            raise RequestError("the model has no tokenizer; give token ids", param=param)
        try:
            if isinstance(text, str) and self._tokenizer is not None:
                tokens = tuple(self._tokenizer.encode(text, add_special_tokens=add_special_tokens))
            else:
                tokens = token_ids(text)
        except RequestError as error:
            raise error.about(param) from None  # both name the prompt
        self.check_tokens(tokens, param=param)
        return tokens

    def check_tokens(self, tokens: Sequence[int], *, param: str) -> None:
        """Refuse ids that the model does not have. Raises InvalidToken, with the position."""
        check_ids(tokens, self._vocab_size, param=param)

    def check_priority(self, priority: int) -> int:
        """The priority, as a plain int. Raises RequestError for what is none, Unsupported where it changes nothing."""
        number = whole("priority", priority)
        if number and not self._prioritised:
            raise Unsupported("priority", "the engine does not run with the policy priority")
        return number

    def _bad_words(self, params: SamplingParams) -> tuple[tuple[int, ...], ...]:
        tokenizer = self._tokenizer
        if tokenizer is None or not params.bad_words:
            return ()
        try:
            return bad_word_tokens(params.bad_words, lambda word: tokenizer.encode(word, add_special_tokens=False))
        except RequestError as error:
            raise error.about("bad_words") from None  # the tokenizer names the prompt


def bad_word_tokens(words: Iterable[str], encode: Callable[[str], Sequence[int]]) -> tuple[tuple[int, ...], ...]:
    """The token sequences that `bad_words` forbids: each word as it begins a text and as it follows a space.

    Args:
        words: the words; leading white space is not part of them.
        encode: text to token ids, without special tokens.

    Raises:
        RequestError: a word that comes to no token at all.
    """
    found: dict[tuple[int, ...], None] = {}
    for word in words:
        for text in (word.lstrip(), " " + word.lstrip()):
            tokens = tuple(encode(text))
            if not tokens:
                raise RequestError(f"{word!r} has no tokens", param="bad_words")
            found[tokens] = None
    return tuple(found)


def check_params(params: object) -> None:
    """Refuse what only stands where parameters belong. Raises RequestError."""
    if not isinstance(params, SamplingParams):
        raise RequestError(f"must be SamplingParams, not {type(params).__name__}", param="sampling_params")


def _check_features(params: SamplingParams, adapter: str | None, pooling: Pooling | None) -> None:
    if adapter is not None:
        raise Unsupported("adapter", "this engine has no adapters")
    if pooling is not None and (params.max_tokens != 0 or params.n != 1):
        raise RequestError("demands max_tokens = 0 and n = 1", param="pooling")


def token_ids(prompt: Any) -> tuple[int, ...]:
    """A prompt of token ids as plain ints, from any sequence of any integer type.

    Raises:
        RequestError: as `entries_of`.
        InvalidToken: something in it is no integer; the message has its position.
    """
    entries, tokens = entries_of("prompt", prompt), []
    if set(map(type, entries)) == {int}:  # as nearly always, and in a fraction of the time
        return tuple(entries)
    for position, entry in enumerate(entries):
        try:
            tokens.append(integer(entry))
        except TypeError:
            raise InvalidToken(f"{shown(entry)} at position {position} is not a token id", param="prompt") from None
    return tuple(tokens)


def entries_of(param: str, prompts: Any, *, wanted: str = "text or a list") -> list[Any]:
    """The entries of a list or array of token ids, or of several prompts.

    Raises:
        RequestError: it is no such list. What can be iterated over may yet be none: bytes are not ids, the keys of a
            mapping are not prompts, and a set has no order.
    """
    if not isinstance(prompts, bytes | bytearray | memoryview | Mapping | Set):
        entries = listed(prompts)  # an array of no dimension is a number
        if hasattr(entries, "__iter__"):
            return list(entries)
    raise RequestError(f"must be {wanted}, not {type(prompts).__name__}", param=param)


def _string(param: str, value: object) -> str:
    """Text that can be sent, hashed and written: half a surrogate pair cannot."""
    try:
        if isinstance(value, str):
            value.encode()
            return value
    except UnicodeEncodeError:
        pass
    raise RequestError(f"must be a string that UTF-8 can hold, not {shown(value)}", param=param)


def _named(param: str, value: object) -> str:
    if name := _string(param, value):
        return name
    raise RequestError("must not be empty", param=param)


def _seconds(param: str, value: object) -> float:
    if isinstance(value, Real) and not isinstance(value, bool):
        with suppress(OverflowError):  # an int may be larger than all floats
            seconds = float(value)
            if 0 < seconds < math.inf:
                return seconds
    raise RequestError(f"must be a positive number of seconds, not {shown(value)}", param=param)
