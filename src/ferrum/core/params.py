"""`SamplingParams`: what a request asks of the sampler, with vLLM's names and meanings.

A field's metadata has its help text and the one rule that applies it, as `room.name`: a function of `sampling`, or a
duty of another room. A rule of `sampling` that reads the tokens before a row says so there, or it cannot. Every default
is neutral. The rules themselves are in `sampling/`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field, fields
from typing import Any, Final, Literal, TypeAlias

from ferrum.core.errors import InvalidToken
from ferrum.core.param_values import (
    Integer,
    Number,
    Strings,
    Words,
    allowed_tokens,
    biases,
    flag,
    refuse,
    schema_of,
    structured,
    tokens,
)
from ferrum.core.structured_outputs import StructuredOutputs
from ferrum.core.values import shown

MAX_CHOICES: Final = 128
MAX_STOP_STRINGS: Final = 64
MAX_STOP_LENGTH: Final = 256
MAX_BAD_WORDS: Final = 4096
MAX_BREAKERS: Final = 64
MAX_BREAKER_LENGTH: Final = 40
DRY_BREAKERS: Final = ("\n", ":", '"', "*")
"""Sequence breakers of DRY if a request has none: llama.cpp's."""

HISTORY: Final = "history"
Reads: TypeAlias = Literal["history"]
"""What a sampling rule may say that it reads: the tokens before a row, the newest included."""

ALL_TOKENS: Final = -1
"""Value of `logprobs` or `prompt_logprobs` that reports the whole vocabulary."""

_GREEDY_BELOW: Final = 1e-5

_SEED: Final = Integer(-(2**63), 2**63 - 1, optional=True)
_COUNT: Final = Integer(0, optional=True)
_TOP: Final = Integer(ALL_TOKENS, optional=True)
_PENALTY: Final = Number(-2.0, 2.0)
_FACTOR: Final = Number(0.01, 100.0)


def _option(
    default: Any,
    normalise: Callable[[str, Any], Any],
    rule: str,
    help: str,
    *,
    reads: Reads | None = None,
    switch: str | None = None,
) -> Any:
    """Return a field.

    Args:
        default, help: of the parameter.
        normalise: its validator, see `param_values.py`.
        rule: applies it, as `room.name`.
        reads: what the rule reads besides logits, parameters and counts of tokens.
        switch: the parameter without which this one has no effect; None: its own default turns the rule off.
    """
    words = {"normalise": normalise, "rule": rule, "help": help, "reads": reads, "switch": switch}
    return field(default=default, metadata=words)


def _dry(default: Any, normalise: Callable[[str, Any], Any], help: str) -> Any:
    """Return a setting of the rule that `dry_multiplier` turns on."""
    return _option(default, normalise, "sampling.dry", help, reads=HISTORY, switch="dry_multiplier")


@dataclass(frozen=True, slots=True, weakref_slot=True, kw_only=True)
class SamplingParams:
    """The sampling parameters of one request, validated and normalised.

    Sequences become tuples, numbers plain ints and floats.

    Raises:
        RequestError: a value of the wrong type or out of range, or a contradiction; `param` names the field.
    """

    n: int = _option(1, Integer(1, MAX_CHOICES), "scheduler.choices", f"Choices to generate, 1 to {MAX_CHOICES}.")
    temperature: float = _option(
        1.0, Number(0.0, 2.0), "sampling.temperature", "Divides the logits, 0 to 2; below 1e-5 is greedy."
    )
    top_p: float = _option(
        1.0, Number(0.0, 1.0, above=True), "sampling.top_p", "Keep the most likely tokens up to this probability mass."
    )
    top_k: int = _option(0, Integer(-1), "sampling.top_k", "Keep the k most likely tokens; 0 or -1 keeps all.")
    min_p: float = _option(
        0.0, Number(0.0, 1.0), "sampling.min_p", "Drop tokens less likely than this times the likeliest one, 0 to 1."
    )
    seed: int | None = _option(None, _SEED, "sampling.draw", "Signed 64-bit seed of all draws (default: random).")
    stop: Sequence[str] = _option(
        (),
        Strings(MAX_STOP_STRINGS, MAX_STOP_LENGTH),
        "text.stop_strings",
        f"Up to {MAX_STOP_STRINGS} strings that end the text.",
    )
    stop_token_ids: Sequence[int] = _option(
        (), tokens, "scheduler.stop_tokens", "Token ids that end a choice, in addition to the model's own."
    )
    bad_words: Sequence[str] = _option(
        (),
        Words(MAX_BAD_WORDS),
        "sampling.bad_words",
        f"Up to {MAX_BAD_WORDS} words that are never generated.",
        reads=HISTORY,
    )
    include_stop_str_in_output: bool = _option(
        False, flag, "text.include_stop", "Keep the stop string at the end of the text."
    )
    ignore_eos: bool = _option(False, flag, "scheduler.end_of_text", "Do not stop at the model's own end tokens.")
    max_tokens: int | None = _option(
        16, _COUNT, "scheduler.length", "Maximum tokens to generate; 0 only scores the prompt, None fills the context."
    )
    min_tokens: int = _option(
        0, Integer(0), "sampling.min_tokens", "Tokens before an end token, stop token or stop string may end a choice."
    )
    logprobs: int | None = _option(
        None,
        _TOP,
        "sampling.sample",
        "Report log-probabilities of each token and this many top tokens; -1 reports all.",
    )
    logprob_token_ids: Sequence[int] = _option(
        (), tokens, "sampling.given_tokens", "Report the log-probabilities of these token ids too; needs logprobs."
    )
    prompt_logprobs: int | None = _option(
        None, _TOP, "scheduler.prompt_logprobs", "The same for the prompt's tokens, from the second on."
    )
    presence_penalty: float = _option(
        0.0,
        _PENALTY,
        "sampling.presence_penalty",
        "Subtracted once from the logit of each generated token, -2 to 2.",
        reads=HISTORY,
    )
    frequency_penalty: float = _option(
        0.0,
        _PENALTY,
        "sampling.frequency_penalty",
        "Subtracted from a logit per time it was generated, -2 to 2.",
        reads=HISTORY,
    )
    repetition_penalty: float = _option(
        1.0,
        _FACTOR,
        "sampling.repetition_penalty",
        "Divides positive logits of seen tokens, multiplies others.",
        reads=HISTORY,
    )
    no_repeat_ngram_size: int = _option(
        0,
        Integer(0),
        "sampling.no_repeat_ngram",
        "No sequence of this many tokens occurs twice in prompt and output; 0 allows all.",
        reads=HISTORY,
    )
    dry_multiplier: float = _option(
        0.0,
        Number(0.0, 100.0),
        "sampling.dry",
        "DRY: factor of what is subtracted from logits of tokens that would continue a repetition; 0 turns it off.",
        reads=HISTORY,
    )
    dry_base: float = _dry(1.75, Number(1.0, 100.0), "DRY: growth of the penalty per repeated token, 1 to 100.")
    dry_allowed_length: int = _dry(2, Integer(1), "DRY: the shortest repetition whose continuation is penalised.")
    dry_penalty_last_n: int = _dry(-1, Integer(-1), "DRY: last tokens to search for repetitions; -1: all, 0: none.")
    dry_sequence_breakers: Sequence[str] = _dry(
        DRY_BREAKERS,
        Strings(MAX_BREAKERS, MAX_BREAKER_LENGTH, DRY_BREAKERS),
        f"DRY: up to {MAX_BREAKERS} strings that end a repetition (default: line feed, colon, quotation mark, star).",
    )
    logit_bias: Mapping[int, float] | None = _option(
        None, biases, "sampling.logit_bias", "Added to the logits of the given token ids, -100 to 100 each."
    )
    allowed_token_ids: Sequence[int] | None = _option(
        None, allowed_tokens, "sampling.allowed_tokens", "The only token ids that may be generated."
    )
    skip_special_tokens: bool = _option(True, flag, "text.special_tokens", "Leave special tokens out of the text.")
    structured_outputs: StructuredOutputs | None = _option(  # noqa: RUF009 - it returns a field of dataclasses
        None,
        structured,
        "guides.masks",
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
            refuse("logprob_token_ids", "needs logprobs; set it to 0 or more")

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
            refuse("min_tokens", f"{self.min_tokens} is more than max_tokens = {self.max_tokens}")

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
            refuse(cls.__name__, f"must be an object, not {shown(values)}")
        for name in values:
            if name not in _NORMALISE:
                refuse(name, "unknown sampling parameter")
        return cls(**values)


_NORMALISE: Final[Mapping[str, Callable[[str, Any], Any]]] = {
    each.name: each.metadata["normalise"] for each in fields(SamplingParams)
}
_DEFAULTS: Final[Mapping[str, Any]] = {each.name: each.default for each in fields(SamplingParams)}


def value_schema(name: str) -> dict[str, Any]:
    """Return the JSON Schema of a parameter's values, beyond their type."""
    return schema_of(_NORMALISE[name])


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
