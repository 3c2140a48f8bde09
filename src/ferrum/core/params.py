"""`SamplingParams`: what a request asks of the sampler, with vLLM's names and meanings.

A field's metadata has its help text and the one rule that applies it, as `room.name`: a function of `sampling`, or a
duty of another room. Every default is neutral. The rules themselves are in `sampling/`.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field, fields
from numbers import Real
from typing import Any, Final, NoReturn

from ferrum.core.errors import InvalidToken, RequestError
from ferrum.core.structured_outputs import StructuredOutputs
from ferrum.core.values import listed, shown, whole

MAX_CHOICES: Final = 128
MAX_STOP_STRINGS: Final = 64
MAX_STOP_LENGTH: Final = 256
MAX_BAD_WORDS: Final = 4096
ALL_TOKENS: Final = -1
"""Value of `logprobs` or `prompt_logprobs` that reports the whole vocabulary."""

_GREEDY_BELOW: Final = 1e-5
_USUAL: Final = 2**63
"""Integers without an upper limit are accepted up to this one without a look at their size in bits."""


def _refuse(name: str, reason: str) -> NoReturn:
    raise RequestError(reason, param=name)


def _flag(name: str, value: object) -> bool:
    if not isinstance(value, bool):
        _refuse(name, f"must be true or false, not {shown(value)}")
    return value


@dataclass(frozen=True, slots=True)
class _Integer:
    """A validator of integers within bounds, or None if optional."""

    low: int
    high: int | None = None
    optional: bool = False

    def __call__(self, name: str, value: Any) -> int | None:
        if value is None and self.optional:
            return None
        if type(value) is int and self.low <= value <= (_USUAL if self.high is None else self.high):
            return value
        number = whole(name, value)
        if number < self.low or (self.high is not None and number > self.high):
            most = "" if self.high is None else f" and at most {self.high}"
            _refuse(name, f"must be at least {self.low}{most}, not {number}")
        return number


@dataclass(frozen=True, slots=True)
class _Number:
    """A validator of finite numbers within bounds; `above` excludes the lower one."""

    low: float
    high: float
    above: bool = False

    def __call__(self, name: str, value: Any) -> float:
        if isinstance(value, bool) or not isinstance(value, Real):
            _refuse(name, f"must be a number, not {shown(value)}")
        try:
            number = float(value)
        except OverflowError:
            number = math.inf
        if not math.isfinite(number):
            _refuse(name, f"must be finite, not {shown(value)}")
        if number < self.low or (self.above and number == self.low) or number > self.high:
            bound = f"{'above' if self.above else 'at least'} {self.low:g}"
            _refuse(name, f"must be {bound} and at most {self.high:g}, not {number:g}")
        return number


def _items(name: str, value: Any) -> list[Any]:
    if value is None:
        return []
    items = listed(value)
    if isinstance(items, (str, bytes, Mapping)) or not isinstance(items, Iterable):
        _refuse(name, f"must be a list, not {shown(value)}")
    return list(items)


def _strings(name: str, value: Any, most: int) -> tuple[str, ...]:
    """Return one string or several as a tuple; an empty one would match everywhere and is refused.

    Equal strings are kept once, after they are counted: the OpenAPI document limits the list as it is sent.
    """
    items = [value] if isinstance(value, str) else _items(name, value)
    if len(items) > most:
        _refuse(name, f"has {len(items)} strings, more than {most}")
    for item in items:
        if not isinstance(item, str):
            _refuse(name, f"must contain strings only, not {shown(item)}")
        if not item:
            _refuse(name, "must not contain an empty string")
    return tuple(dict.fromkeys(items))


def _stop_strings(name: str, value: Any) -> tuple[str, ...]:
    strings = _strings(name, value, MAX_STOP_STRINGS)
    longest = max(map(len, strings), default=0)
    if longest > MAX_STOP_LENGTH:
        _refuse(name, f"has a string of {longest} characters, more than {MAX_STOP_LENGTH}")
    return strings


_NOT_BLANK: Final = re.compile(r"[^\s\x1c-\x1f\x85\ufeff]")
"""Spelled out, because engines of regular expressions differ on what a space is, and clients read the schema."""


def _words(name: str, value: Any) -> tuple[str, ...]:
    words = _strings(name, value, MAX_BAD_WORDS)
    if not all(map(_NOT_BLANK.search, words)):
        _refuse(name, "must not contain a blank word")
    return words


def _token(name: str, value: Any) -> int:
    token = whole(name, value)
    if token < 0:
        raise InvalidToken(f"token id {token} is negative", param=name)
    return token


def _tokens(name: str, value: Any) -> tuple[int, ...]:
    return tuple(dict.fromkeys(_token(name, item) for item in _items(name, value)))


def _allowed(name: str, value: Any) -> tuple[int, ...] | None:
    if value is None:
        return None
    tokens = _tokens(name, value)
    if not tokens:
        _refuse(name, "must not be empty: no token could be generated")
    return tokens


_BIAS: Final = _Number(-100.0, 100.0)


def _bias(name: str, value: Any) -> dict[int, float] | None:
    """Return the biases by token id; ids may be decimal strings, as JSON spells object keys."""
    if value is None:
        return None
    if not isinstance(value, Mapping):
        _refuse(name, f"must map token ids to numbers, not {shown(value)}")
    bias: dict[int, float] = {}
    for key, amount in value.items():
        decimal = isinstance(key, str) and key.isascii() and key.isdecimal() and len(key) < 20
        token = int(key) if decimal else _token(name, key)
        if token in bias:
            _refuse(name, f"names token {token} twice")
        bias[token] = _BIAS(name, amount)
    return bias


def _structured(name: str, value: Any) -> StructuredOutputs | None:
    """Return the constraint, from its record, an object or JSON text; errors name the field within."""
    if value is None or isinstance(value, StructuredOutputs):
        return value
    try:
        return StructuredOutputs.from_json(value) if isinstance(value, str) else StructuredOutputs.from_dict(value)
    except RequestError as error:
        raise error.about(name if error.param in (None, name) else f"{name}.{error.param}") from None


_SEED: Final = _Integer(-(2**63), 2**63 - 1, optional=True)
_COUNT: Final = _Integer(0, optional=True)
_TOP: Final = _Integer(ALL_TOKENS, optional=True)
_PENALTY: Final = _Number(-2.0, 2.0)
_FACTOR: Final = _Number(0.01, 100.0)


def _option(default: Any, normalise: Callable[[str, Any], Any], rule: str, help: str) -> Any:
    return field(default=default, metadata={"normalise": normalise, "rule": rule, "help": help})


@dataclass(frozen=True, slots=True, weakref_slot=True, kw_only=True)
class SamplingParams:
    """The sampling parameters of one request, validated and normalised.

    Sequences become tuples, numbers plain ints and floats.

    Raises:
        RequestError: a value of the wrong type or out of range, or a contradiction; `param` names the field.
    """

    n: int = _option(1, _Integer(1, MAX_CHOICES), "scheduler.choices", f"Choices to generate, 1 to {MAX_CHOICES}.")
    temperature: float = _option(
        1.0, _Number(0.0, 2.0), "sampling.temperature", "Divides the logits, 0 to 2; below 1e-5 is greedy."
    )
    top_p: float = _option(
        1.0, _Number(0.0, 1.0, above=True), "sampling.top_p", "Keep the most likely tokens up to this probability mass."
    )
    top_k: int = _option(0, _Integer(-1), "sampling.top_k", "Keep the k most likely tokens; 0 or -1 keeps all.")
    min_p: float = _option(
        0.0, _Number(0.0, 1.0), "sampling.min_p", "Drop tokens less likely than this times the likeliest one, 0 to 1."
    )
    seed: int | None = _option(None, _SEED, "sampling.draw", "Signed 64-bit seed of all draws (default: random).")
    stop: Sequence[str] = _option(
        (), _stop_strings, "text.stop_strings", f"Up to {MAX_STOP_STRINGS} strings that end the text."
    )
    stop_token_ids: Sequence[int] = _option(
        (), _tokens, "scheduler.stop_tokens", "Token ids that end a choice, in addition to the model's own."
    )
    bad_words: Sequence[str] = _option(
        (), _words, "sampling.bad_words", f"Up to {MAX_BAD_WORDS} words that are never generated."
    )
    include_stop_str_in_output: bool = _option(
        False, _flag, "text.include_stop", "Keep the stop string at the end of the text."
    )
    ignore_eos: bool = _option(False, _flag, "scheduler.end_of_text", "Do not stop at the model's own end tokens.")
    max_tokens: int | None = _option(
        16, _COUNT, "scheduler.length", "Maximum tokens to generate; 0 only scores the prompt, None fills the context."
    )
    min_tokens: int = _option(
        0, _Integer(0), "sampling.min_tokens", "Tokens before an end token, stop token or stop string may end a choice."
    )
    logprobs: int | None = _option(
        None,
        _TOP,
        "sampling.sample",
        "Report log-probabilities of each token and this many top tokens; -1 reports all.",
    )
    logprob_token_ids: Sequence[int] = _option(
        (), _tokens, "sampling.given_tokens", "Report the log-probabilities of these token ids too; needs logprobs."
    )
    prompt_logprobs: int | None = _option(
        None, _TOP, "scheduler.prompt_logprobs", "The same for the prompt's tokens, from the second on."
    )
    presence_penalty: float = _option(
        0.0, _PENALTY, "sampling.presence_penalty", "Subtracted once from the logit of each generated token, -2 to 2."
    )
    frequency_penalty: float = _option(
        0.0, _PENALTY, "sampling.frequency_penalty", "Subtracted from a logit per time it was generated, -2 to 2."
    )
    repetition_penalty: float = _option(
        1.0, _FACTOR, "sampling.repetition_penalty", "Divides positive logits of seen tokens, multiplies others."
    )
    logit_bias: Mapping[int, float] | None = _option(
        None, _bias, "sampling.logit_bias", "Added to the logits of the given token ids, -100 to 100 each."
    )
    allowed_token_ids: Sequence[int] | None = _option(
        None, _allowed, "sampling.allowed_tokens", "The only token ids that may be generated."
    )
    skip_special_tokens: bool = _option(True, _flag, "text.special_tokens", "Leave special tokens out of the text.")
    structured_outputs: StructuredOutputs | None = _option(  # noqa: RUF009 - it returns a field of dataclasses
        None,
        _structured,
        "structured.masks",
        'Constraint on the output as JSON, such as {"regex": "[0-9]+"}; see docs/structured-outputs.md.',
    )

    def __post_init__(self) -> None:
        for name, normalise in _NORMALISE.items():
            value = getattr(self, name)
            if value is not _DEFAULTS[name]:  # defaults are normalised already
                object.__setattr__(self, name, normalise(name, value))
        if self.min_tokens:
            self._check_lengths()
        if self.logprob_token_ids and self.logprobs is None:
            _refuse("logprob_token_ids", "needs logprobs; set it to 0 or more")

    def but(self, **changes: Any) -> SamplingParams:
        """Return a copy with some fields changed; only those are checked, since others may be large.

        Raises:
            RequestError: as the constructor.
        """
        params = copy(self)
        for name, value in changes.items():
            object.__setattr__(params, name, _NORMALISE[name](name, value))
        params._check_lengths()
        return params

    def _check_lengths(self) -> None:
        if self.max_tokens is not None and self.min_tokens > self.max_tokens:
            _refuse("min_tokens", f"{self.min_tokens} is more than max_tokens = {self.max_tokens}")

    def __hash__(self) -> int:
        """Hash the fields; biases are equal in any order."""
        biases = None if self.logit_bias is None else frozenset(self.logit_bias.items())
        return hash((biases, *(getattr(self, name) for name in _NORMALISE if name != "logit_bias")))

    @property
    def greedy(self) -> bool:
        """Whether the most likely token is taken, without a draw."""
        return self.temperature < _GREEDY_BELOW

    def check_vocabulary(self, vocab_size: int) -> None:
        """Refuse token ids that the model does not have.

        Raises:
            InvalidToken: an id of `logit_bias`, `allowed_token_ids` and others is not in [0, vocab_size).
        """
        for name in ("logit_bias", "allowed_token_ids", "stop_token_ids", "logprob_token_ids"):
            for token in getattr(self, name) or ():
                if token >= vocab_size:
                    raise InvalidToken(f"token id {token} is not below the vocabulary size {vocab_size}", param=name)

    def to_dict(self) -> dict[str, Any]:
        """Return all fields as JSON values; object keys are strings."""
        values = {each.name: getattr(self, each.name) for each in fields(self)}
        if self.logit_bias is not None:
            values["logit_bias"] = {str(token): bias for token, bias in self.logit_bias.items()}
        if self.structured_outputs is not None:
            values["structured_outputs"] = self.structured_outputs.to_dict()
        return {name: list(value) if isinstance(value, tuple) else value for name, value in values.items()}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> SamplingParams:
        """Return the parameters of `to_dict`; absent fields take their defaults.

        Raises:
            RequestError: not a mapping, an unknown name, or an invalid value.
        """
        if not isinstance(values, Mapping):
            _refuse(cls.__name__, f"must be an object, not {shown(values)}")
        for name in values:
            if name not in _NORMALISE:
                _refuse(name, "unknown sampling parameter")
        return cls(**values)


_NORMALISE: Final[Mapping[str, Callable[[str, Any], Any]]] = {
    each.name: each.metadata["normalise"] for each in fields(SamplingParams)
}
_DEFAULTS: Final[Mapping[str, Any]] = {each.name: each.default for each in fields(SamplingParams)}

TOKEN_SCHEMA: Final[Mapping[str, Any]] = {"type": "integer", "format": "token-id", "minimum": 0}
"""JSON Schema of a token id. The upper limit, the vocabulary size, depends on the model."""

_STOP_LENGTH: Final = {"minLength": 1, "maxLength": MAX_STOP_LENGTH}

_SCHEMAS: Final[Mapping[Callable[[str, Any], Any], Mapping[str, Any]]] = {
    _stop_strings: {
        **_STOP_LENGTH,
        "maxItems": MAX_STOP_STRINGS,
        "items": {"type": "string", **_STOP_LENGTH},
    },
    _words: {"maxItems": MAX_BAD_WORDS, "items": {"type": "string", "pattern": _NOT_BLANK.pattern}},
    _tokens: {"items": TOKEN_SCHEMA},
    _allowed: {"minItems": 1, "items": TOKEN_SCHEMA},
    _bias: {
        "propertyNames": {"pattern": "^(0|[1-9][0-9]{0,18})$"},
        "additionalProperties": {"type": "number", "minimum": _BIAS.low, "maximum": _BIAS.high},
    },
}


def value_schema(name: str) -> dict[str, Any]:
    """Return the JSON Schema of a parameter's values, beyond their type."""
    normalise = _NORMALISE[name]
    if isinstance(normalise, _Integer | _Number):
        low = "exclusiveMinimum" if isinstance(normalise, _Number) and normalise.above else "minimum"
        return {low: normalise.low} | ({} if normalise.high is None else _at_most(normalise.high))
    return dict(_SCHEMAS.get(normalise, {}))


def _at_most(high: float) -> dict[str, float]:
    """Return an upper bound as a double, the only number that many JSON readers have."""
    return {"maximum": high} if float(high) == high else {"exclusiveMaximum": high + 1}


def over_recommended(recommended: Mapping[str, Any], given: Mapping[str, Any]) -> SamplingParams:
    """Return parameters: the given values, then the recommended ones.

    A recommended `min_tokens` is lowered to `max_tokens`, given or default.

    Raises:
        RequestError: a value is invalid.
    """
    params = SamplingParams(**{**recommended, "min_tokens": 0, **given})
    least = recommended.get("min_tokens", 0)
    if not least or "min_tokens" in given:
        return params
    return params.but(min_tokens=least if params.max_tokens is None else min(least, params.max_tokens))
