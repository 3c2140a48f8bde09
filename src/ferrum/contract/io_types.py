"""What goes into the named verbs of an executor and what comes out of them.

Letters: B sequences, S tokens, V vocabulary, L layers, H hidden size. Logits are float32 arrays of the executor's own
kind. Inputs take token ids as nested lists or arrays and keep them as tuples: nobody can change them afterwards.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from operator import index
from typing import Any, NewType, TypeAlias

from ferrum.core.errors import InvalidToken, RequestError
from ferrum.core.json_record import JsonRecord
from ferrum.core.span_checks import inputs_of, is_one_of
from ferrum.core.step import Array
from ferrum.core.values import integer, listed, shown, whole

TokenId = NewType("TokenId", int)
"""An index into the vocabulary."""

Matrix: TypeAlias = tuple[tuple[int, ...], ...]
"""[B, S] integers."""


class DataType(StrEnum):
    """Formats of numbers."""

    FLOAT32 = "float32"
    FLOAT16 = "float16"
    BFLOAT16 = "bfloat16"
    INT8 = "int8"
    INT4 = "int4"

    @property
    def bits(self) -> int:
        """Bits of one number."""
        return int("".join(letter for letter in self.value if letter.isdecimal()))

    def stored_bytes(self, dim: int) -> int:
        """Bytes of a key or a value of `dim` elements in the KV pool: in int8 it has a scale in float32."""
        return dim * self.bits // 8 + (4 if self is DataType.INT8 else 0)


class Device(StrEnum):
    """Where tensors live."""

    CPU = "cpu"
    CUDA = "cuda"


class LogitsPolicy(StrEnum):
    """Which rows' logits an item of a unified batch wants."""

    NONE = "none"
    LAST = "last"
    ALL = "all"


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelInfo(JsonRecord):
    """What a model is.

    Attributes:
        model_id: the directory or hub id it was loaded from.
        family: the architecture's name in its configuration.
        num_parameters: numbers in the checkpoint; a tied head counts once.
        vocab_size: token ids are below it.
        max_sequence_length: the context that the checkpoint was made for, in tokens.
        num_heads, num_kv_heads, head_dim: of the attention layers (the first one's, where they differ).
        dtype: of the dense weights.
        device: where the weights live.
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

    def kv_bytes_per_token_and_layer(self, kv_dtype: DataType) -> int:
        """Bytes of one token's keys and values in one layer: 2 x KV heads x bytes of a head."""
        return 2 * self.num_kv_heads * kv_dtype.stored_bytes(self.head_dim)


@dataclass(frozen=True, slots=True, kw_only=True)
class KvCacheHandle(JsonRecord):
    """An immutable snapshot of a cached sequence. Whatever changes the sequence makes it stale and returns a new one.

    Attributes:
        cache_id: the sequence.
        sequence_length: stored tokens that this handle stands for.
        num_layers, num_kv_heads, head_dim, dtype: what a stored token is (KV heads, not query heads).
        device: where the keys and values live.
        block_table: numbers of the pages that hold them, in order (of the first layer group, where there are several);
            -1 for a page that has left a sliding window.
        generation: of the sequence, when the handle was made.
        executor_id: the one executor that knows the sequence.
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
        """The sequence: another name for `cache_id`."""
        return self.cache_id


GenericKvCacheHandle = KvCacheHandle


@dataclass(frozen=True, slots=True)
class PrefillInput:
    """A prompt, or the next chunk of one.

    Attributes:
        input_ids: [B, S] token ids; [S] is taken as [1, S]. B must be 1: for several there is `batch_prefill`.
        attention_mask: [B, S], or [B, stored + S] with a handle. Only ones can be honoured: others are refused.
        position_ids: [B, S]. Only stored, stored + 1, ... can be honoured: others are refused.
        kv_cache: the sequence to continue, or None to begin one.
        logits: "last" or "all" positions.
        return_hidden_states: also return the final hidden states, [B, S, H].
        return_attention_weights: also return the attention probabilities, where the backend can.

    Raises:
        InvalidToken: an id that is no integer or is negative.
        RequestError: no token, rows of different length, or an unknown wish; `param` names the field.
    """

    input_ids: Any
    attention_mask: Any = None
    position_ids: Any = None
    kv_cache: KvCacheHandle | None = None
    logits: str = "last"
    return_hidden_states: bool = False
    return_attention_weights: bool = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "input_ids", token_matrix("input_ids", self.input_ids))
        for name in ("attention_mask", "position_ids"):
            value = getattr(self, name)
            object.__setattr__(self, name, None if value is None else _matrix(name, value, _number))
        if not is_one_of(self.logits, (LogitsPolicy.LAST, LogitsPolicy.ALL)):
            raise RequestError(f"must be 'last' or 'all', not {shown(self.logits)}", param="logits")

    @property
    def batch_size(self) -> int:
        """B."""
        return len(self.input_ids)

    @property
    def sequence_length(self) -> int:
        """S: tokens of this input alone."""
        return len(self.input_ids[0])

    def with_kv_cache(self, kv_cache: KvCacheHandle) -> PrefillInput:
        """The same input as a continuation of that sequence."""
        return replace(self, kv_cache=kv_cache)

    def with_attention_mask(self, attention_mask: Any) -> PrefillInput:
        """The same input with that mask."""
        return replace(self, attention_mask=attention_mask)

    def with_position_ids(self, position_ids: Any) -> PrefillInput:
        """The same input with those positions."""
        return replace(self, position_ids=position_ids)


@dataclass(frozen=True, slots=True, eq=False)
class PrefillOutput:
    """What a prefill returns.

    Attributes:
        logits: float32 [B, 1, V] for the last position, or [B, S, V].
        kv_cache: the sequence, `S` tokens longer.
        hidden_states: float32 [B, S, H], where asked for.
        attention_weights: per layer [heads, S, length], where asked for.
    """

    logits: Array
    kv_cache: KvCacheHandle
    hidden_states: Array | None = None
    attention_weights: Array | None = None

    def last_token_logits(self) -> Array:
        """Logits of the last position, [B, V].

        Raises:
            RequestError: the logits are not of rank 3, or have no position.
        """
        if self.logits.ndim != 3:
            raise RequestError(f"must have rank 3, not the shape {tuple(self.logits.shape)}", param="logits")
        if self.logits.shape[1] == 0:
            raise RequestError("an empty sequence has no last token", param="logits")
        return self.logits[:, -1, :]


@dataclass(frozen=True, slots=True)
class DecodeInput:
    """One more token of a cached sequence.

    Attributes:
        input_ids: [1, 1]; [1] is taken as that.
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
    return_hidden_states: bool = False
    return_attention_weights: bool = False

    def __post_init__(self) -> None:
        tokens = token_matrix("input_ids", self.input_ids)
        if len(tokens) != 1 or len(tokens[0]) != 1:
            raise RequestError(f"must be one token, not [{len(tokens)}, {len(tokens[0])}]", param="input_ids")
        object.__setattr__(self, "input_ids", tokens)
        if self.position_ids is not None:
            object.__setattr__(self, "position_ids", _matrix("position_ids", self.position_ids, _number))

    @property
    def token(self) -> int:
        """The token."""
        token: int = self.input_ids[0][0]
        return token


@dataclass(frozen=True, slots=True, eq=False)
class DecodeOutput:
    """What one more token brings.

    Attributes:
        logits: float32 [1, V].
        kv_cache: the sequence, one token longer.
        hidden_state: float32 [1, H], where asked for.
        attention_weights: per layer [heads, 1, length], where asked for.
    """

    logits: Array
    kv_cache: KvCacheHandle
    hidden_state: Array | None = None
    attention_weights: Array | None = None


@dataclass(frozen=True, slots=True)
class UnifiedBatchItem:
    """One sequence's share of a unified batch: a chunk, a decode or a verification.

    Attributes:
        seq_id: the sequence's cache id, or its handle, which is then checked. An unknown id begins a sequence.
        q_tokens: the tokens to process.
        pos_offset: the stored length they follow.
        is_final_chunk: False: more of the prompt follows, no logits come back.
        logits_policy: which rows' logits to return.
        adapter: name of a loaded adapter, or None.
    """

    seq_id: str | KvCacheHandle
    q_tokens: Sequence[int]
    pos_offset: int
    is_final_chunk: bool = True
    logits_policy: LogitsPolicy = LogitsPolicy.LAST
    adapter: str | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "q_tokens", _only_row("q_tokens", self.q_tokens))
        object.__setattr__(self, "pos_offset", whole("pos_offset", self.pos_offset))
        if not is_one_of(self.logits_policy, LogitsPolicy):
            raise RequestError(
                f"must be 'none', 'last' or 'all', not {shown(self.logits_policy)}", param="logits_policy"
            )
        object.__setattr__(self, "logits_policy", LogitsPolicy(self.logits_policy))

    @property
    def policy(self) -> LogitsPolicy:
        """The logits that come back: none before the final chunk."""
        return self.logits_policy if self.is_final_chunk else LogitsPolicy.NONE


@dataclass(frozen=True, slots=True)
class UnifiedBatch:
    """Any mixture of chunks, decodes and verifications, computed in one pass. Raises RequestError for no list."""

    items: tuple[UnifiedBatchItem, ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "items", tuple(inputs_of(UnifiedBatchItem, self.items, param="items")))

    @property
    def total_q_tokens(self) -> int:
        """Rows of the forward pass."""
        return sum(len(item.q_tokens) for item in self.items)

    @property
    def num_sampled_items(self) -> int:
        """Items that get logits back."""
        return sum(item.policy is not LogitsPolicy.NONE for item in self.items)


@dataclass(frozen=True, slots=True, eq=False)
class SpeculativeDecodeOutput:
    """What a verified draft came to.

    Attributes:
        accepted_tokens: the leading drafts that were right.
        next_logits: float32 [1, V] after the last of them.
        kv_cache: the sequence with the input token and the accepted drafts.
    """

    accepted_tokens: tuple[int, ...]
    next_logits: Array
    kv_cache: KvCacheHandle

    @property
    def acceptance_count(self) -> int:
        """How many drafts were accepted."""
        return len(self.accepted_tokens)


def token_row(name: str, value: Any) -> tuple[int, ...]:
    """A list or array [S] of token ids, possibly empty, as a tuple. Raises as `token_matrix`."""
    row = listed(value)
    return () if isinstance(row, Sequence) and not row else _only_row(name, row)


def token_matrix(name: str, value: Any) -> Matrix:
    """A list or array [B, S] or [S] of token ids as tuples. Raises InvalidToken or RequestError, naming `name`."""
    return _matrix(name, value, _token)


def _only_row(name: str, value: Any) -> tuple[int, ...]:
    rows = token_matrix(name, value)
    if len(rows) != 1:
        raise RequestError("must be the tokens of one sequence", param=name)
    return rows[0]


def _matrix(name: str, value: Any, number: Callable[[str, int, Any], int]) -> Matrix:
    rows = listed(value)
    if not _is_list(rows):
        raise RequestError(f"must be a list of integers or a list of such lists, not {shown(value)}", param=name)
    rows = [listed(row) for row in rows]
    if not any(_is_list(row) for row in rows):
        rows = [rows]
    if not all(_is_list(row) for row in rows):
        raise RequestError("mixes numbers and lists", param=name)
    matrix = tuple(tuple(number(name, position, item) for position, item in enumerate(row)) for row in rows)
    if len({len(row) for row in matrix}) != 1:
        raise RequestError("all rows must have the same length", param=name)
    if not matrix[0]:
        raise RequestError("must hold at least one number", param=name)
    return matrix


def _is_list(value: Any) -> bool:
    return isinstance(value, Sequence) and not isinstance(value, str | bytes)


def _token(name: str, position: int, item: Any) -> int:
    try:
        token = integer(item)
    except TypeError:
        token = -1
    if token < 0:
        raise InvalidToken(f"{shown(item)} at position {position} is not a token id", param=name)
    return token


def _number(name: str, position: int, item: Any) -> int:
    """Positions and mask bits: any integer."""
    try:
        return index(item)
    except TypeError:
        raise RequestError(f"{shown(item)} at position {position} is not an integer", param=name) from None
