"""Inputs and outputs of an executor's named verbs, their handles, and the checks of them
against stored tokens.

Letters: B sequences, S tokens, V vocabulary, L layers, H hidden size. Logits are float32 arrays of the executor's own
kind. Inputs take token ids as nested lists or arrays and keep them as immutable tuples.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, NewType

from ferrum.contract.decoder_llm import LogitsPolicy
from ferrum.contract.integer_lists import integer_matrix, only_row, token_matrix
from ferrum.contract.model_info import DataType, Device
from ferrum.core.errors import RequestError
from ferrum.core.json_record import JsonRecord
from ferrum.core.span_checks import check_kind, inputs_of, is_one_of
from ferrum.core.step import Array
from ferrum.core.values import listed, shown, whole

TokenId = NewType("TokenId", int)
"""An index into the vocabulary."""


LAYERS: Final = "layers"
"""The value of `return_hidden_states` for the hidden states of each layer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KvCacheHandle(JsonRecord):
    """An immutable snapshot of a cached sequence. Any change of the sequence makes it stale and returns a new one.

    Attributes:
        cache_id: the sequence.
        sequence_length: stored tokens that this handle covers.
        num_layers, num_kv_heads, head_dim, dtype: the shape of a stored token (KV heads, not query heads; if layers
            differ, of the first that stores).
        device: location of the keys and values.
        block_table: page numbers of the first layer group, in order; -1 for a page that left a sliding window.
        generation: the sequence's generation when the handle was made.
        executor_id: the executor that owns the sequence.
    """

    cache_id: str
    sequence_length: int
    num_layers: int
    num_kv_heads: int
    head_dim: int
    dtype: DataType
    device: Device
    block_table: tuple[int, ...]
    generation: int
    executor_id: str

    @property
    def request_cache_id(self) -> str:
        """Another name of `cache_id`."""
        return self.cache_id


GenericKvCacheHandle = KvCacheHandle


def _check_flags(record: object, *names: str) -> None:
    """Refuse fields that are no truth values. Raises RequestError; `param` names the field."""
    for name in names:
        check_kind(listed(getattr(record, name)), bool, param=name)


def _check_returns(inputs: PrefillInput | DecodeInput) -> None:
    """Refuse unknown values of the return options. Raises RequestError; `param` names the field."""
    _check_flags(inputs, "return_attention_weights")
    if not is_one_of(listed(inputs.return_hidden_states), (False, True, LAYERS)):
        reason = f"must be false, true or 'layers', not {shown(inputs.return_hidden_states)}"
        raise RequestError(reason, param="return_hidden_states")


@dataclass(frozen=True, slots=True)
class TokenInput:
    """Tokens of one sequence; see its two kinds, `PrefillInput` and `DecodeInput`."""

    input_ids: Any

    @property
    def batch_size(self) -> int:
        """B."""
        return len(self.input_ids)

    @property
    def sequence_length(self) -> int:
        """S: tokens of this input alone."""
        return len(self.input_ids[0])


@dataclass(frozen=True, slots=True)
class PrefillInput(TokenInput):
    """A prompt, or the next chunk of one.

    Attributes:
        input_ids: [B, S] token ids; [S] is taken as [1, S]. B must be 1: use `batch_prefill` for several prompts.
        attention_mask: [B, S], or [B, stored + S] with a handle: ones, and zeros for padding at either end of the S,
            which is left out; results are of the other tokens alone.
        position_ids: [B, S]. Must be stored, stored + 1, ... at the tokens that are no padding.
        kv_cache: the sequence to continue, or None to begin one.
        logits: "last" or "all" positions.
        return_hidden_states: True also returns the final hidden states, [B, S, H]; "layers" those of each layer, if the
            backend keeps them.
        return_attention_weights: also return the attention probabilities, if the backend keeps them.

    Raises:
        InvalidToken: an id that is no integer or is negative.
        RequestError: no token, rows of different length, or an unknown `logits`; `param` names the field.
    """

    input_ids: Any
    attention_mask: Any = None
    position_ids: Any = None
    kv_cache: KvCacheHandle | None = None
    logits: str = "last"
    return_hidden_states: bool | str = False
    return_attention_weights: bool = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "input_ids", token_matrix("input_ids", self.input_ids))
        for name in ("attention_mask", "position_ids"):
            value = getattr(self, name)
            object.__setattr__(self, name, None if value is None else integer_matrix(name, value))
        _check_returns(self)
        if not is_one_of(self.logits, (LogitsPolicy.LAST, LogitsPolicy.ALL)):
            raise RequestError(f"must be 'last' or 'all', not {shown(self.logits)}", param="logits")

    def with_kv_cache(self, kv_cache: KvCacheHandle) -> PrefillInput:
        """Return a copy that continues this sequence."""
        return replace(self, kv_cache=kv_cache)

    def with_position_ids(self, position_ids: Any) -> PrefillInput:
        """Return a copy with these positions."""
        return replace(self, position_ids=position_ids)

    def with_attention_mask(self, attention_mask: Any) -> PrefillInput:
        """Return a copy with this mask."""
        return replace(self, attention_mask=attention_mask)


@dataclass(frozen=True, slots=True, eq=False)
class PrefillOutput:
    """The result of a prefill.

    Attributes:
        logits: float32 [B, 1, V] for the last position, or [B, S, V].
        kv_cache: the sequence, `S` tokens longer (less the padding).
        hidden_states: float32 [B, S, H], if asked for; with "layers" L + 1 of them, as `transformers` orders them: the
            input of each layer, then the final states.
        attention_weights: per layer [heads, S, length], if asked for.
    """

    logits: Array
    kv_cache: KvCacheHandle
    hidden_states: Array | tuple[Array, ...] | None = None
    attention_weights: Array | None = None

    def last_token_logits(self) -> Array:
        """Return the logits of the last position, [B, V].

        Raises:
            RequestError: the logits are not of rank 3, or have no position.
        """
        if self.logits.ndim != 3:
            raise RequestError(f"must have rank 3, not the shape {tuple(self.logits.shape)}", param="logits")
        if self.logits.shape[1] == 0:
            raise RequestError("an empty sequence has no last token", param="logits")
        return self.logits[:, -1, :]


@dataclass(frozen=True, slots=True)
class DecodeInput(TokenInput):
    """One more token of a cached sequence.

    Attributes:
        input_ids: [1, 1]; [1] is taken as [1, 1].
        kv_cache: the sequence; its length is the token's position.
        position_ids: [1, 1]: that position, or None.
        return_hidden_states, return_attention_weights: as for `PrefillInput`.

    Raises:
        InvalidToken: an id that is no integer or is negative.
        RequestError: not exactly one token.
    """

    input_ids: Any
    kv_cache: KvCacheHandle
    position_ids: Any = None
    return_hidden_states: bool | str = False
    return_attention_weights: bool = False

    def __post_init__(self) -> None:
        tokens = token_matrix("input_ids", self.input_ids)
        if len(tokens) != 1 or len(tokens[0]) != 1:
            raise RequestError(f"must be one token, not [{len(tokens)}, {len(tokens[0])}]", param="input_ids")
        object.__setattr__(self, "input_ids", tokens)
        _check_returns(self)
        if self.position_ids is not None:
            object.__setattr__(self, "position_ids", integer_matrix("position_ids", self.position_ids))

    def with_kv_cache(self, kv_cache: KvCacheHandle) -> DecodeInput:
        """Return a copy that continues this sequence."""
        return replace(self, kv_cache=kv_cache)

    def with_position_ids(self, position_ids: Any) -> DecodeInput:
        """Return a copy with these positions."""
        return replace(self, position_ids=position_ids)

    @property
    def token(self) -> int:
        """The token."""
        token: int = self.input_ids[0][0]
        return token


@dataclass(frozen=True, slots=True, eq=False)
class DecodeOutput:
    """The result of one more token.

    Attributes:
        logits: float32 [1, V].
        kv_cache: the sequence, one token longer.
        hidden_state: float32 [1, H], if asked for; with "layers" a tuple of L + 1, as in `PrefillOutput`.
        attention_weights: per layer [heads, 1, length], if asked for.
    """

    logits: Array
    kv_cache: KvCacheHandle
    hidden_state: Array | tuple[Array, ...] | None = None
    attention_weights: Array | None = None


@dataclass(frozen=True, slots=True)
class UnifiedBatchItem:
    """One sequence's part of a unified batch: a chunk, a decode or a verification.

    Attributes:
        seq_id: the sequence's cache id, or its handle, which is then checked. An unknown id begins a sequence.
        q_tokens: the tokens to process.
        pos_offset: stored tokens before them.
        is_final_chunk: False for a chunk that more of the prompt follows; it returns no logits.
        logits_policy: the rows whose logits to return.
        adapter: name of a loaded adapter, as by `set_lora_adapter`; None: that of the sequence.
    """

    seq_id: str | KvCacheHandle
    q_tokens: Sequence[int]
    pos_offset: int
    is_final_chunk: bool = True
    logits_policy: LogitsPolicy = LogitsPolicy.LAST
    adapter: str | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "q_tokens", only_row("q_tokens", self.q_tokens))
        object.__setattr__(self, "pos_offset", whole("pos_offset", self.pos_offset))
        _check_flags(self, "is_final_chunk")
        if not is_one_of(self.logits_policy, LogitsPolicy):
            reason = f"must be 'none', 'last' or 'all', not {shown(self.logits_policy)}"
            raise RequestError(reason, param="logits_policy")
        object.__setattr__(self, "logits_policy", LogitsPolicy(self.logits_policy))

    @property
    def policy(self) -> LogitsPolicy:
        """The logits to return: none before the final chunk."""
        return self.logits_policy if self.is_final_chunk else LogitsPolicy.NONE


@dataclass(frozen=True, slots=True)
class UnifiedBatch:
    """Any mixture of chunks, decodes and verifications, computed in one pass.

    Attributes:
        items: at most one per sequence.
    """

    items: tuple[UnifiedBatchItem, ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "items", tuple(inputs_of(UnifiedBatchItem, self.items, param="items")))

    @property
    def total_q_tokens(self) -> int:
        """Rows of the forward pass."""
        return sum(len(item.q_tokens) for item in self.items)

    @property
    def num_sampled_items(self) -> int:
        """Items that return logits."""
        return sum(item.policy is not LogitsPolicy.NONE for item in self.items)


@dataclass(frozen=True, slots=True, eq=False)
class SpeculativeDecodeOutput:
    """The result of a verified draft.

    Attributes:
        accepted_tokens: the leading drafts that were accepted.
        next_logits: float32 [1, V] after the last of them.
        kv_cache: the sequence with the input token and the accepted drafts.
    """

    accepted_tokens: tuple[int, ...]
    next_logits: Array
    kv_cache: KvCacheHandle

    @property
    def acceptance_count(self) -> int:
        """Number of accepted drafts."""
        return len(self.accepted_tokens)


# Checks against the stored tokens


def as_prompt(value: object) -> PrefillInput:
    """Return a list or array of token ids as an input. Raises RequestError for anything else."""
    if not isinstance(listed(value), list | tuple):
        check_kind(value, PrefillInput, param="inputs")
    return PrefillInput(value)


def real_tokens(inputs: PrefillInput, stored: int) -> slice:
    """Return where the tokens are that the attention mask selects: padding at either end is left out.

    Args:
        inputs: the prompt or chunk, of one sequence.
        stored: stored tokens before it.

    Raises:
        RequestError: a mask of another shape, one that hides a token between others, or one that selects none.
    """
    count = inputs.sequence_length
    if inputs.attention_mask is None:
        return slice(0, count)
    row, *others = inputs.attention_mask
    earlier, own = row[:-count], row[-count:]
    if others or len(own) < count or not {*row} <= {0, 1} or (earlier and (not stored or sum(earlier) != stored)):
        reason = f"must be zeros and ones, [1, {count}]"
        reason += f", or with {stored} ones for the stored tokens before them" if stored else ""
        raise RequestError(reason, param="attention_mask")
    if 1 not in own:
        raise RequestError("selects no token: at least one must be 1", param="attention_mask")
    first, last = own.index(1), count - own[::-1].index(1)
    if 0 in own[first:last]:
        hidden = first + own[first:last].index(0)
        reason = f"hides the token at position {hidden}: zeros may only pad the beginning or the end"
        raise RequestError(reason, param="attention_mask")
    return slice(first, last)


def check_positions(inputs: PrefillInput | DecodeInput, stored: range, real: slice = slice(None)) -> None:
    """Refuse positions other than where the tokens will be stored. Raises RequestError.

    Args:
        inputs: the tokens.
        stored: the positions of those that are no padding.
        real: where these are in the inputs.
    """
    if inputs.position_ids is None:
        return
    row, *others = inputs.position_ids
    if others or len(row) != inputs.sequence_length or row[real] != tuple(stored):
        reason = f"must be {stored.start} to {stored.stop - 1}, after the stored tokens"
        raise RequestError(reason, param="position_ids")
