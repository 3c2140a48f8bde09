"""The fixed properties of a model and of its executor: number formats, devices, `ModelInfo`, `ExecutorTraits`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from ferrum.core.devices import MAX_ORDINAL, cuda_name, cuda_ordinal
from ferrum.core.errors import RequestError
from ferrum.core.json_record import JsonRecord
from ferrum.core.kv_shape import KvShape
from ferrum.core.memory_plan import MemoryPlan, longest_sequence
from ferrum.core.span_checks import check_kind
from ferrum.core.state_shape import StateShape
from ferrum.core.values import shown, whole


class DataType(StrEnum):
    """Number formats. `DataType("FP32")` and other spellings of the Rust engine's JSON are understood."""

    FLOAT32 = "float32"
    FLOAT16 = "float16"
    BFLOAT16 = "bfloat16"
    FLOAT8 = "float8"
    INT8 = "int8"
    INT4 = "int4"

    @classmethod
    def _missing_(cls, value: object) -> DataType | None:
        spelling = str(value).lower()
        name = {"fp32": "float32", "fp16": "float16", "bf16": "bfloat16", "fp8": "float8"}.get(spelling, spelling)
        return next((each for each in cls if name == each.value), None)

    @property
    def bits(self) -> int:
        """Bits of one number."""
        return int("".join(letter for letter in self.value if letter.isdecimal()))

    def stored_bytes(self, dim: int) -> int:
        """Return the bytes of a key or value of `dim` elements in the KV pool; int8 adds a float32 scale.

        Raises RequestError for a `dim` that is no integer or less than 0.
        """
        dim = whole("dim", dim, least=0)
        return dim * self.bits // 8 + (4 if self is DataType.INT8 and dim else 0)


class Device(StrEnum):
    """Devices that hold tensors. `Device.CUDA` is the first GPU, `Device.CUDA(1)` or `Device("cuda:1")` the second.

    The spellings of the Rust engine's JSON are understood: "CPU", {"CUDA": 1}, "Metal".
    """

    CPU = "cpu"
    CUDA = "cuda"
    METAL = "metal"

    def __call__(self, ordinal: int) -> Device:
        """Return the GPU of a number. Raises RequestError for a number that no GPU has, and on another device."""
        if self.kind is not Device.CUDA:
            raise RequestError(f"{self} has no numbers", param="device")
        number = whole("ordinal", ordinal, least=0)
        if number > MAX_ORDINAL:
            raise RequestError(f"must be at most {MAX_ORDINAL}, not {shown(number)}", param="ordinal")
        return Device(cuda_name(number))

    @property
    def kind(self) -> Device:
        """The device without its number."""
        return Device(self.value.partition(":")[0])

    @property
    def ordinal(self) -> int:
        """The number of a GPU; 0 for any other device."""
        return cuda_ordinal(self.value) or 0

    @classmethod
    def _missing_(cls, value: object) -> Device | None:
        """Return the device of another spelling; the Rust engine writes a GPU as an object with its number."""
        if isinstance(value, Mapping) and len(value) == 1:
            name, number = next(iter(value.items()))
            if str(name).lower() != "cuda" or type(number) is not int:
                return None
            value = f"cuda:{number}"
        if not isinstance(value, str):
            return None
        name, ordinal = value.lower(), cuda_ordinal(value.lower())
        if not ordinal:
            return next((each for each in cls if each.value == (name if ordinal is None else "cuda")), None)
        made = str.__new__(cls, name)  # a member that is not listed, as combinations of flags are
        made._name_, made._value_ = f"CUDA({ordinal})", name
        return cls._value2member_map_.setdefault(name, made)  # type: ignore[return-value]

    def __reduce_ex__(self, _: object) -> tuple[object, ...]:
        return Device, (self.value,)


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
class ExecutorTraits:
    """The fixed properties of an executor. All its reports derive from them.

    Attributes:
        backend: the kernels in use ("reference", "native", "cuda").
        numerics_id: the arithmetic and its version; equal ids give equal bits.
        kv_dtype: format of keys and values.
        max_batch_size: maximum sequences of one step.
        max_sequence_length: maximum tokens of a sequence.
        memory: the exact plan of its memory.
        tier: instruction tier of the kernels; empty if there is only one.
        weights: format of the weights, by name; with equal numerics_id and kv_dtype, equal names mean equal bits.
        dtypes: weight formats that it could have been loaded in.
        windows: whether some layers have a sliding window.
        latent: whether some layers store keys and values as one latent vector (DeepSeek-V2, section 2.1).
        paged: whether keys and values live in pages of the pool.
        flash: whether attention never holds a row of scores for the whole context.
        attention_weights: whether attention probabilities can be returned.
        layer_states: whether the hidden states of each layer can be returned.
        notes: warnings about how it was built (a missing fast path, and why).
        ranks: that share every matrix; `memory` is that of one.
    """

    backend: str
    numerics_id: str
    kv_dtype: DataType
    max_batch_size: int
    max_sequence_length: int
    memory: MemoryPlan
    tier: str = ""
    weights: str = ""
    dtypes: frozenset[DataType] = frozenset()
    windows: bool = False
    latent: bool = False
    paged: bool = True
    flash: bool = False
    attention_weights: bool = False
    layer_states: bool = False
    notes: tuple[str, ...] = ()
    ranks: int = 1

    @property
    def kernels(self) -> str:
        """The kernels in use, with their instruction tier."""
        return f"{self.backend} {self.tier}".rstrip()

    @property
    def largest_batch(self) -> int:
        """Sequences that one step can hold: `max_batch_size`, but at most one per page of the pool."""
        slots: tuple[int, ...] = () if self.memory.states is None else (self.memory.states.sequences,)
        return min([self.max_batch_size, *slots, *(part.num_pages for part in self.memory.pool)])

    @property
    def longest_sequence(self) -> int:
        """Tokens that one sequence can have: `max_sequence_length`, but at most what the whole pool holds."""
        return longest_sequence(self.memory.pool, self.max_sequence_length)
