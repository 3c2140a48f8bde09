"""`InputProcessor`: turns a prompt and its parameters into a `Request`, or raises an error that names the field.

Everything that can be checked without the engine is checked here, before anything is queued. Values of single sampling
parameters are checked by `SamplingParams`, bodies of HTTP requests by the server.
"""

from __future__ import annotations

import math
import secrets
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence, Set
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from numbers import Real
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from ferrum.client.adapter_registry import NamedAdapter, adapters_in
from ferrum.core.errors import ContextOverflow, InvalidToken, RequestError, Unsupported
from ferrum.core.guidance import Grammar, Guidance
from ferrum.core.output_format import Reading
from ferrum.core.params import SamplingParams
from ferrum.core.span_checks import check_ids
from ferrum.core.structured_outputs import StructuredOutputs
from ferrum.core.types import Pooling, Request
from ferrum.core.values import integer, listed, shown, whole
from ferrum.text.breakers import BreakerTokens
from ferrum.text.tokenizer import Tokenizer

if TYPE_CHECKING:
    from ferrum.grammar.constraint_grammars import GrammarCache
    from ferrum.images.decoded_image import DecodedImage
    from ferrum.images.image_processor import ImageProcessor

MAX_BOUNDARIES: Final = 256
"""Starts of messages that a request names; each ends a span of a model with states."""

Prompt: TypeAlias = str | Sequence[int]
"""A text, or its token ids."""


@dataclass(frozen=True, slots=True)
class FieldNames:
    """The names under which a caller knows the fields that an error can name."""

    prompt: str = "prompt"
    max_tokens: str = "max_tokens"
    structured_outputs: str | None = None
    """None: `structured_outputs.` and the constraint's own field."""


API_NAMES: Final = FieldNames()


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestOptions:
    """The options of a request besides its prompt and sampling parameters.

    Attributes:
        request_id, trace_id: default: a new id; the request id.
        priority: smaller runs first; only 0 unless the scheduling policy is `priority`.
        deadline: seconds from now after which the request is ended; None: never.
        tenant: the owner, for fair scheduling and per-key limits.
        salt: requests share cached prefixes only with requests of the same salt.
        adapters: loaded adapters that change its results.
        images: for the placeholders of the prompt, in their order.
        add_special_tokens: False for text that contains its special tokens, as rendered chats do.
        pooling: how to pool the prompt into a vector; requires `params.max_tokens` 0 and `n` 1.
        prediction: expected output (OpenAI's `prediction`); it changes the speed, never the output.
        context: limit of prompt and output tokens together; default: the model's.
        required_output: output tokens that must fit after the prompt; default: 1, or 0 if `max_tokens` is 0.
        guidance: limits on the generated tokens. Without a grammar in it, that of `params.structured_outputs` is added.
        reading: how reasoning and tool calls are separated from content.
        names: of the fields in errors.
    """

    request_id: str | None = None
    priority: int = 0
    deadline: float | None = None
    tenant: str = ""
    salt: str = ""
    trace_id: str | None = None
    adapters: tuple[NamedAdapter, ...] = ()
    images: tuple[DecodedImage, ...] = ()
    add_special_tokens: bool = True
    pooling: Pooling | None = None
    prediction: Prompt | None = None
    context: int | None = None
    required_output: int | None = None
    guidance: Guidance | None = None
    reading: Reading | None = None
    names: FieldNames = API_NAMES


DEFAULT_OPTIONS: Final = RequestOptions()


def no_images() -> ImageProcessor:
    """Refuse images. Raises Unsupported."""
    raise Unsupported("images", "this engine's model takes none")


class InputProcessor:
    """Makes requests for one model.

    Args:
        vocab_size: of the model; token ids are below it.
        max_sequence_length: limit of prompt and output tokens together.
        tokenizer: None serves token ids only.
        eos_token_ids: the model's end tokens.
        clock: monotonic seconds.
        prioritised: the engine's scheduling policy is `priority`.
        turn_openers: returns the tokens that begin messages, before which states are worth a snapshot.
        images: returns what the model makes of images. Raises Unsupported, CheckpointError.
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
        turn_openers: Callable[[], Collection[int]] = frozenset,
        images: Callable[[], ImageProcessor] = no_images,
    ) -> None:
        self.eos_token_ids = tuple(eos_token_ids)
        self._vocab_size = vocab_size
        self._max_sequence_length = max_sequence_length
        self._tokenizer = tokenizer
        self._clock = clock
        self._prioritised = prioritised
        self._turn_openers = turn_openers
        self._images = images
        self._breakers = None if tokenizer is None else BreakerTokens(tokenizer, vocab_size)

    def process(self, prompt: Prompt, params: SamplingParams, options: RequestOptions = DEFAULT_OPTIONS) -> Request:
        """Return a request that the engine accepts.

        Args:
            prompt: text, or token ids that are used as given.
            params: how its tokens are chosen.
            options: the rest.

        Raises:
            RequestError: a field cannot be served; `param` names it. ContextOverflow, InvalidToken say more.
            Unsupported: a priority without the policy `priority`, or images for a model that takes none.
        """
        self._check_params(params, options)
        given, names = options.request_id, options.names
        name = f"request-{secrets.token_hex(8)}" if given is None else _string("request_id", given)
        if not name:
            raise RequestError("must not be empty", param="request_id")
        if options.images and isinstance(prompt, str):
            prompt = self.image_processor.spaced_text(prompt)
        tokens = self._encoded(prompt, add_special_tokens=options.add_special_tokens, param=names.prompt)
        tokens, places = self.image_processor.expand(tokens, options.images) if options.images else (tokens, ())
        required = int(params.max_tokens != 0) if options.required_output is None else options.required_output
        check_room(len(tokens), required, options.context or self._max_sequence_length, names)
        now, eos = self._clock(), () if params.ignore_eos else self.eos_token_ids
        return Request(
            request_id=name,
            prompt=tokens,
            params=params,
            seed=secrets.randbits(64) - 2**63 if params.seed is None else params.seed,
            stop_token_ids=frozenset((*params.stop_token_ids, *eos)),
            eos_token_ids=eos,
            bad_words=self._bad_words(params) if params.bad_words else (),
            dry_sequence_breakers=self._dry_breakers(params) if params.dry_multiplier else (),
            priority=self.check_priority(options.priority),
            deadline=None if options.deadline is None else now + _seconds("deadline", options.deadline),
            arrival=now,
            tenant=_string("tenant", options.tenant),
            salt=_string("salt", options.salt),
            trace_id=name if options.trace_id is None else _string("trace_id", options.trace_id),
            pooling=options.pooling,
            prediction=() if options.prediction is None else self._predicted(options.prediction),
            guidance=self._guidance(params, options),
            reading=options.reading,
            adapters=adapters_in(options.adapters, tokens) if options.adapters else (),
            images=options.images,
            image_places=places,
            boundaries=self._boundaries(tokens),
        )

    @cached_property
    def image_processor(self) -> ImageProcessor:
        """What the model makes of images. Raises Unsupported, CheckpointError."""
        return self._images()

    def _boundaries(self, tokens: tuple[int, ...]) -> tuple[int, ...]:
        """Return the last places where messages begin."""
        openers = self._turn_openers()
        return (
            tuple(place for place, token in enumerate(tokens) if token in openers)[-MAX_BOUNDARIES:] if openers else ()
        )

    def _check_params(self, params: object, options: RequestOptions) -> None:
        check_params(params)
        assert isinstance(params, SamplingParams)
        if options.pooling is not None and (params.max_tokens != 0 or params.n != 1):
            raise RequestError("requires max_tokens = 0 and n = 1", param="pooling")
        if self._tokenizer is None:
            _check_no_text(params)
            if options.guidance is not None:
                raise RequestError("the model has no tokenizer, so its output cannot be limited", param="guidance")
        if params.structured_outputs is not None:
            _check_structured(params, options)
        params.check_vocabulary(self._vocab_size)

    def _guidance(self, params: SamplingParams, options: RequestOptions) -> Guidance | None:
        """Return the limits on the tokens, with the grammar of a structured output unless they have one already."""
        given = options.guidance
        if params.structured_outputs is None or (given is not None and given.grammar is not None):
            return given
        grammar = Grammar(source=self.grammar_of(params.structured_outputs, options.names))
        return replace(given or Guidance(), grammar=grammar)

    @cached_property
    def _grammars(self) -> GrammarCache:
        from ferrum.grammar.constraint_grammars import GrammarCache  # few programs constrain outputs

        return GrammarCache()

    def grammar_of(self, outputs: StructuredOutputs, names: FieldNames = API_NAMES) -> str:
        """Return the grammar of a constraint, in llguidance's form. Raises RequestError by the caller's names."""
        try:
            return self._grammars.grammar(outputs)
        except RequestError as error:
            name = names.structured_outputs
            raise error.about(f"structured_outputs.{error.param}" if name is None else name) from None

    def _predicted(self, prediction: Prompt) -> tuple[int, ...]:
        tokens = self._encoded(prediction, add_special_tokens=False, param="prediction")
        if len(tokens) > self._max_sequence_length:
            reason = f"{len(tokens)} tokens are more than the context of {self._max_sequence_length}; shorten it"
            raise ContextOverflow(reason, param="prediction")
        return tokens

    def _encoded(self, text: Prompt, *, add_special_tokens: bool, param: str) -> tuple[int, ...]:
        """Return token ids of the model's vocabulary. Errors name the field `param`."""
        try:
            if not isinstance(text, str):
                tokens = token_ids(text)
            elif self._tokenizer is None:
                raise RequestError("the model has no tokenizer; send token ids")
            else:
                tokens = tuple(self._tokenizer.encode(text, add_special_tokens=add_special_tokens))
        except RequestError as error:
            raise error.about(param) from None
        check_ids(tokens, self._vocab_size, param=param)
        return tokens

    def check_tokens(self, tokens: Sequence[int], *, param: str) -> None:
        """Refuse ids outside the vocabulary. Raises InvalidToken with the position."""
        check_ids(tokens, self._vocab_size, param=param)

    def check_priority(self, priority: int) -> int:
        """Return the priority as a plain int. Raises RequestError, or Unsupported without the policy `priority`."""
        if type(priority) is int and not priority:
            return 0
        number = whole("priority", priority)
        if number and not self._prioritised:
            raise Unsupported("priority", "the scheduling policy is not `priority` (--policy priority)")
        return number

    def _bad_words(self, params: SamplingParams) -> tuple[tuple[int, ...], ...]:
        tokenizer = self._tokenizer
        assert tokenizer is not None  # `_check_no_text` refused them
        try:
            return bad_word_tokens(params.bad_words, lambda word: tokenizer.encode(word, add_special_tokens=False))
        except RequestError as error:
            raise error.about("bad_words") from None  # the tokenizer's error names the prompt

    def _dry_breakers(self, params: SamplingParams) -> tuple[tuple[int, ...], ...]:
        if self._breakers is None:
            return ()  # `_check_no_text` refused any
        try:
            return self._breakers.sequences(params.dry_sequence_breakers)
        except RequestError as error:
            raise error.about("dry_sequence_breakers") from None  # as above


def check_room(length: int, required_output: int, context: int, names: FieldNames) -> None:
    """Refuse a prompt of `length` tokens if it, or the output after it, exceeds the context.

    Raises:
        RequestError: the prompt is empty.
        ContextOverflow: `param` is the prompt if there is no room for any output, else the output's limit.
    """
    if not length:
        raise RequestError("must not be empty", param=names.prompt)
    if length + min(required_output, 1) > context:
        raise context_overflow(length, required_output, context, names.prompt)
    if length + required_output > context:
        raise context_overflow(length, required_output, context, names.max_tokens)


def context_overflow(prompt: int, completion: int, context: int, param: str) -> ContextOverflow:
    """Return the error for too many tokens, in OpenAI's words: clients search them to shorten their prompts.

    Args:
        prompt, completion: tokens that were asked for.
        context: limit of their sum.
        param: the field that is too large.
    """
    asked = f"you requested {prompt + completion} tokens ({prompt} in the prompt, {completion} for the completion)"
    reason = f"This model's maximum context length is {context} tokens. However, {asked}"
    return ContextOverflow(f"{reason}. Please reduce the length of the prompt or the completion.", param=param)


def bad_word_tokens(words: Iterable[str], encode: Callable[[str], Sequence[int]]) -> tuple[tuple[int, ...], ...]:
    """Return the token sequences of `bad_words`: each word at the start of a text and after a space.

    Args:
        words: the words; leading white space is ignored.
        encode: text to token ids, without special tokens.

    Raises:
        RequestError: a word has no tokens.
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
    """Refuse anything but `SamplingParams`. Raises RequestError."""
    if not isinstance(params, SamplingParams):
        raise RequestError(f"must be SamplingParams, not {type(params).__name__}", param="sampling_params")


def _check_no_text(params: SamplingParams) -> None:
    """Refuse parameters about text, for models without a tokenizer."""
    given = {
        "stop": bool(params.stop),
        "bad_words": bool(params.bad_words),
        "include_stop_str_in_output": params.include_stop_str_in_output,
        "skip_special_tokens": not params.skip_special_tokens,
        "structured_outputs": params.structured_outputs is not None,
    }
    for name, is_given in given.items():
        if is_given:
            raise RequestError("the model has no tokenizer and serves token ids only", param=name)
    if params.dry_multiplier and params.dry_sequence_breakers:
        reason = "the model has no tokenizer; set it to an empty list to use DRY without breakers"
        raise RequestError(reason, param="dry_sequence_breakers")


def _check_structured(params: SamplingParams, options: RequestOptions) -> None:
    """Refuse what contradicts a structured output, which ends with the model's end token and only there."""
    name = options.names.structured_outputs or "structured_outputs"
    if options.pooling is not None:
        raise RequestError("cannot be combined with pooling", param=name)
    if params.max_tokens == 0:
        raise RequestError(f"must be at least 1 with {name}", param=options.names.max_tokens)
    if params.min_tokens:
        raise RequestError(f"must be 0 with {name}, which decides where the output may end", param="min_tokens")
    if params.ignore_eos:
        raise RequestError(f"must be false with {name}, which ends with an end token", param="ignore_eos")


def token_ids(prompt: Any) -> tuple[int, ...]:
    """Return a prompt of token ids as plain ints, from any sequence of any integer type.

    Raises:
        RequestError: as `entries_of`.
        InvalidToken: an entry is not an integer; the message has its position.
    """
    entries, tokens = entries_of("prompt", prompt), []
    if set(map(type, entries)) == {int}:  # the usual case, in a fraction of the time
        return tuple(entries)
    for position, entry in enumerate(entries):
        try:
            tokens.append(integer(entry))
        except TypeError:
            raise InvalidToken(f"{shown(entry)} at position {position} is not a token id", param="prompt") from None
    return tuple(tokens)


def entries_of(param: str, prompts: Any, *, wanted: str = "text or a list") -> list[Any]:
    """Return the entries of a list or array: token ids, or several prompts.

    Raises:
        RequestError: not a list. Bytes, mappings and sets can be iterated over, but are not lists.
    """
    if not isinstance(prompts, bytes | bytearray | memoryview | Mapping | Set):
        entries = listed(prompts)  # a zero-dimensional array becomes a number
        if hasattr(entries, "__iter__"):
            return list(entries)
    raise RequestError(f"must be {wanted}, not {type(prompts).__name__}", param=param)


def _string(param: str, value: object) -> str:
    """Return text that UTF-8 can encode: half of a surrogate pair cannot be sent, hashed or written."""
    with suppress(UnicodeEncodeError):
        if isinstance(value, str):
            value.encode()
            return value
    raise RequestError(f"must be a string that UTF-8 can encode, not {shown(value)}", param=param)


def _seconds(param: str, value: object) -> float:
    if isinstance(value, Real) and not isinstance(value, bool):
        with suppress(OverflowError):  # an int may exceed all floats
            seconds = float(value)
            if 0 < seconds < math.inf:
                return seconds
    raise RequestError(f"must be a positive number of seconds, not {shown(value)}", param=param)
