"""Number formats and devices, with the spellings of the Rust engine."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum

from ferrum.core.values import whole


class DataType(StrEnum):
    """Number formats. `DataType("FP32")` and other spellings of the Rust engine's JSON are understood."""

    FLOAT32 = "float32"
    FLOAT16 = "float16"
    BFLOAT16 = "bfloat16"
    INT8 = "int8"
    INT4 = "int4"

    @classmethod
    def _missing_(cls, value: object) -> DataType | None:
        spelling = str(value).lower()
        name = {"fp32": "float32", "fp16": "float16", "bf16": "bfloat16"}.get(spelling, spelling)
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
    """Devices that hold tensors. `Device("CPU")`, as in the Rust engine's JSON, is understood."""

    CPU = "cpu"
    CUDA = "cuda"

    @classmethod
    def _missing_(cls, value: object) -> Device | None:
        """Return the device of another spelling; the Rust engine writes a GPU as an object with its number."""
        name = next(iter(value), None) if isinstance(value, Mapping) and len(value) == 1 else value
        return next((each for each in cls if isinstance(name, str) and name.lower() == each.value), None)
