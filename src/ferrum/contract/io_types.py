"""Inputs and outputs of an executor's named verbs, and the enums and handles in them.

Letters: B sequences, S tokens, V vocabulary, L layers, H hidden size. Logits are float32 arrays of the executor's own
kind. Inputs take token ids as nested lists or arrays and keep them as immutable tuples.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any, Final, NewType

from ferrum.contract.formats import DataType as DataType
from ferrum.contract.formats import Device as Device
from ferrum.contract.integer_lists import integer_matrix, only_row, token_matrix
from ferrum.core.errors import RequestError
from ferrum.core.json_record import JsonRecord
from ferrum.core.kv_shape import KvShape
from ferrum.core.span_checks import check_kind, inputs_of, is_one_of
from ferrum.core.state_shape import StateShape
from ferrum.core.step import Array
from ferrum.core.values import listed, shown, whole

TokenId = NewType("TokenId", int)
"""An index into the vocabulary."""


LAYERS: Final = "layers"
"""The value of `return_hidden_states` for the hidden states of each layer."""


class LogitsPolicy(StrEnum):
    """The rows whose logits an item of a unified batch returns."""

    NONE = "none"
    LAST = "last"
    ALL = "all"


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelInfo(JsonRecord):
    """The description of a model.

    Attributes:
        model_id: the directory, GGUF file or hub id that it was loaded from.
        family: the architecture's name in its configuration.
        num_parameters: numbers in the checkpoint; a tied head counts once.
        vocab_size: upper limit of token ids.
        max_sequence_length: the checkpoint's context, in tokens.
        hidden_size: numbers of a token's hidden state.
        num_layers: all layers, also those that store nothing.
        num_heads, num_kv_heads, head_dim: of the attention layers (if they differ, of the first that stores); 0
            without any.
        dtype: of the dense weights.
        device: location of the weights.
        kv_layers: what layers store per token, by layer group; empty: each stores num_kv_heads keys and values of
            head_dim.
        state_layers: what layers store per sequence, by state group.
    """

    model_id: str
    family: str
    num_parameters: int
    vocab_size: int
    max_sequence_length: int
    hidden_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    dtype: DataType
    device: Device = Device.CPU
    kv_layers: tuple[KvShape, ...] = ()
    state_layers: tuple[StateShape, ...] = ()

    def kv_bytes_per_token(self, kv_dtype: DataType) -> int:
        """Return the bytes of one token's keys and values in all layers. Raises RequestError for no `DataType`."""
        check_kind(kv_dtype, DataType, param="kv_dtype")
        alike = KvShape(self.num_kv_heads, self.head_dim, self.head_dim, num_layers=self.num_layers)
        return sum(
            kv.num_layers * kv.num_heads * (kv_dtype.stored_bytes(kv.key_dim) + kv_dtype.stored_bytes(kv.value_dim))
            for kv in self.kv_layers or (alike,)
        )


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
