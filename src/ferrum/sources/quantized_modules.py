"""The layouts of quantised modules in safetensors directories: a module's tensors to its matrix.

Sources of the layouts: the quantised linear layers of AutoGPTQ, GPTQModel and AutoAWQ; the compressors of
compressed-tensors; transformers' `finegrained_fp8`; the exporter of NVIDIA's Model Optimizer.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, Protocol

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from ferrum.core.errors import CheckpointError
from ferrum.core.logging import warn_once
from ferrum.kernels.operations import F32, Bytes
from ferrum.quant.affine_matrix import AffineMatrix
from ferrum.quant.bit_words import unpack, unpack_awq, unpack_raised, words_for
from ferrum.quant.block_weight import BlockWeight
from ferrum.quant.integer_matrix import IntegerMatrix
from ferrum.quant.normal_matrix import NormalMatrix
from ferrum.quant.scaled_floats import Float8Matrix, Mxfp4Matrix, Nvfp4Matrix
from ferrum.sources.checkpoint import Checkpoint
from ferrum.sources.tensor_file import TensorInfo

# ---- The tensors of one quantised module in a checkpoint, checked against their headers before any is read ----

FLOATS: Final = ("F16", "BF16", "F32")

DTYPES: Final = {
    "F32": np.dtype("<f4"),
    "F16": np.dtype("<f2"),
    "BF16": np.dtype(ml_dtypes.bfloat16),
    "F8_E4M3": np.dtype(ml_dtypes.float8_e4m3fn),
    "F8_E8M0": np.dtype(ml_dtypes.float8_e8m0fnu),
    "I64": np.dtype("<i8"),
    "I32": np.dtype("<i4"),
    "U32": np.dtype("<u4"),
    "I8": np.dtype(np.int8),
    "U8": np.dtype(np.uint8),
}
"""The dtypes of such tensors, as files spell them."""

Reader = Callable[[], NDArray[Any]]
"""Reads a tensor from the mapped file."""

Shape = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class ModuleParts:
    """A module's tensors by the last part of their names.

    Attributes:
        files: the checkpoint.
        stem: the module's name.
    """

    files: Checkpoint
    stem: str

    def has(self, part: str) -> bool:
        """Whether the module has a tensor."""
        return f"{self.stem}.{part}" in self.files.tensors

    def info(self, part: str) -> TensorInfo:
        """Return the place of a tensor. Raises CheckpointError if it is missing."""
        found = self.files.tensors.get(f"{self.stem}.{part}")
        if found is None:
            raise CheckpointError(f"{self.files.directory}: tensor '{self.stem}.{part}' is missing")
        return found

    def matrix(self, part: str) -> tuple[int, int]:
        """Return the shape of a tensor. Raises CheckpointError if it is no matrix."""
        shape = self.info(part).shape
        if len(shape) != 2 or 0 in shape:
            raise self.error(part, f"must be a matrix, not of shape {list(shape)}")
        return shape[0], shape[1]

    def expect(self, part: str, dtypes: str | tuple[str, ...], *shapes: Shape) -> Reader:
        """Return the reader of a tensor of one of these dtypes and shapes, as an array of the first shape.

        Raises:
            CheckpointError: it is missing, or has another dtype or shape.
        """
        info = self.info(part)
        known = (dtypes,) if isinstance(dtypes, str) else dtypes
        if info.dtype not in known:
            raise self.error(part, f"must be of dtype {' or '.join(known)}, not {info.dtype}")
        if info.shape not in shapes:
            wanted = " or ".join(str(list(shape)) for shape in shapes)
            raise self.error(part, f"expected shape {wanted}, found {list(info.shape)}")
        return lambda: self.read(part).reshape(shapes[0])

    def read(self, part: str) -> NDArray[Any]:
        """Return a tensor of a dtype in `DTYPES` as a view of the mapped file."""
        info = self.info(part)
        flat: NDArray[Any] = self.files.read_bytes(f"{self.stem}.{part}").view(DTYPES[info.dtype])
        return flat.reshape(info.shape)

    def error(self, part: str, problem: str) -> CheckpointError:
        """Return an error that names a tensor."""
        name = f"{self.stem}.{part}"
        return CheckpointError(f"{self.files.directory}: tensor {name!r} in {self.files.file_of(name)}: {problem}")


_FP4_GROUP: Final = 16
"""Inputs of NVFP4 with a common scale."""

_MX_GROUP: Final = 32
"""Inputs of MXFP4 with a common scale."""

_FP8_SCALES: Final = (*FLOATS, "F8_E8M0")


@dataclass(frozen=True, slots=True)
class Layout:
    """What `config.json` says about the layout of quantised modules.

    Attributes:
        method: `quant_method`.
        bits: that integers may have: 2, 3, 4 or 8; several (compressed-tensors).
        group: inputs with a common scale; None if all have (GPTQ, AWQ and MLX).
        less_one: whether zero points are stored less one (GPTQ).
        symmetric: whether all zero points are half of the codes' range (GPTQ).
        tile: outputs and inputs with a common scale (FP8).
        by_outputs: whether words have integers of one output, not of one input (AWQ).
    """

    method: str
    bits: tuple[int, ...] = (4,)
    group: int | None = None
    less_one: bool = False
    symmetric: bool = False
    tile: tuple[int, int] | None = None
    by_outputs: bool = False


class StoredMatrix(Protocol):
    """A matrix as a file stores it: `IntegerMatrix` and others of `quant/`."""

    @property
    def shape(self) -> tuple[int, int]: ...
    def obstacle(self) -> str | None:
        """Return why no block format holds the matrix; None if one does."""

    def format(self) -> str | None:
        """Return the name of the block format that holds the matrix, or None."""

    def blocks(self) -> BlockWeight:
        """Return the matrix in its block format, which it must have."""

    def floats(self) -> F32:
        """Return the matrix, f32 [N, K]."""


FUSED: Final = {
    "gate_up_proj_blocks": {"gate_proj": slice(0, None, 2), "up_proj": slice(1, None, 2)},
    "down_proj_blocks": {"down_proj": slice(None)},
}
"""The tensors of all experts of a gpt-oss layer, and the rows of the matrices in them."""

HELPERS: Final = (
    "qweight", "qzeros", "scales", "g_idx",
    "weight_packed", "weight_scale", "weight_shape", "weight_zero_point", "weight_g_idx", "weight_global_scale",
    "weight_scale_inv", "weight_scale_2", "activation_scale", "biases",
    "weight.absmax", "weight.quant_map", "weight.nested_absmax", "weight.nested_quant_map",
    *(f"weight.quant_state.bitsandbytes__{kind}" for kind in ("nf4", "fp4")),
    *(f"{side}_{part}" for side in ("input", "output") for part in ("scale", "zero_point", "global_scale")),
)  # fmt: skip
"""The tensors of a quantised module that its matrix replaces. Those of inputs and outputs are not used."""

STORED: Final = {"qweight": ("I32",), "weight_packed": ("I32", "U8"), "weight": ("I8", "U8", "U32", "F8_E4M3")}
"""The tensors, with their dtypes, that make a module a quantised one."""


def read_module(parts: ModuleParts, part: str, layout: Layout) -> StoredMatrix:
    """Return the matrix of a module that has the tensor `part` of `STORED`.

    Raises:
        CheckpointError: a tensor is missing, or has another dtype or shape than its layout.
    """
    if part == "qweight":
        if layout.method != "awq":
            return _gptq(parts, layout)
        return _awq_by_outputs(parts, layout) if layout.by_outputs else _awq(parts, layout)
    dtype = parts.info(part).dtype
    if dtype == "I32":
        return _packed_integers(parts, layout)
    if dtype == "U32":
        return _affine(parts, layout)
    if dtype == "U8":
        return _normal(parts) if layout.method == "bitsandbytes" else _float4(parts, part)
    return _int8(parts) if dtype == "I8" else _float8(parts, layout)


def read_experts(parts: ModuleParts, part: str) -> dict[str, StoredMatrix]:
    """Return the matrices in a tensor `part` of `FUSED`, the rows of one expert after another, by their projections.

    Raises:
        CheckpointError: a tensor is missing, or has another dtype or shape than its layout.
    """
    shape = parts.info(part).shape
    if len(shape) != 4 or 0 in shape or shape[1] % len(FUSED[part]):
        raise parts.error(part, f"must be [experts, outputs, groups, bytes], not of shape {list(shape)}")
    experts, outputs, groups, _ = shape
    blocks = parts.expect(part, "U8", (experts, outputs, groups, _MX_GROUP // 2))
    scales = parts.expect(scales_of(part), "U8", (experts, outputs, groups))

    def matrix(rows: slice) -> Mxfp4Matrix:
        count = experts * len(range(outputs)[rows])
        return Mxfp4Matrix(
            shape=(count, groups * _MX_GROUP),
            packed=lambda: blocks()[:, rows].reshape(count, -1),
            exponents=lambda: scales()[:, rows].reshape(count, -1),
        )

    return {name: matrix(rows) for name, rows in FUSED[part].items()}


def scales_of(part: str) -> str:
    """Return the name of the scales of a tensor of `FUSED`."""
    return part.removesuffix("blocks") + "scales"


def _gptq(parts: ModuleParts, layout: Layout) -> IntegerMatrix:
    """Return a matrix packed along inputs: qweight [K * bits / 32, N], zero points packed along outputs."""
    (bits,) = layout.bits
    rows, outputs = parts.matrix("qweight")
    inputs, rest = divmod(rows * 32, bits)
    if rest:
        raise parts.error("qweight", f"{rows} rows of words have no whole number of integers of {bits} bits")
    groups, group = _row_groups(parts, layout, inputs)
    words = parts.expect("qweight", "I32", (rows, outputs))
    zeros = parts.expect("qzeros", "I32", (groups, words_for(outputs, bits)))
    scales = parts.expect("scales", FLOATS, (groups, outputs))
    named = parts.expect("g_idx", "I32", (inputs,)) if parts.has("g_idx") else None
    return IntegerMatrix(
        shape=(outputs, inputs),
        bits=bits,
        group=group,
        codes=lambda: unpack(words().T, bits, inputs),
        zeros=lambda: _gptq_zeros(parts, layout, zeros(), outputs),
        scales=lambda: scales().T,
        groups=_groups(parts, "g_idx", named, groups),
    )


def _gptq_zeros(parts: ModuleParts, layout: Layout, words: NDArray[Any], outputs: int) -> Bytes:
    """Return zero points [N, G]. Some writers kept them as they are, or less one, and named the other format."""
    (bits,) = layout.bits
    stored, raised = unpack(words, bits, outputs), unpack_raised(words, bits, outputs)
    found, other = (raised, stored) if layout.less_one else (stored, raised)
    centre = 1 << (bits - 1)
    if layout.symmetric and (found != centre).any():
        named, meant = ("gptq", "gptq_v2") if layout.less_one else ("gptq_v2", "gptq")
        if (other != centre).any():
            raise parts.error("qzeros", f"all zero points must be {centre}, since quantization_config has sym: true")
        warn_once(f"{parts.files.directory}: zero points are stored as {meant} has them, not {named}; read as {meant}")
        found = other
    return found.T


def _awq(parts: ModuleParts, layout: Layout) -> IntegerMatrix:
    """Return a matrix packed along outputs: qweight [K, N / 8]."""
    inputs, words = parts.matrix("qweight")
    outputs = words * 8
    groups, group = _row_groups(parts, layout, inputs)
    codes = parts.expect("qweight", "I32", (inputs, words))
    zeros = parts.expect("qzeros", "I32", (groups, words))
    scales = parts.expect("scales", FLOATS, (groups, outputs))
    return IntegerMatrix(
        shape=(outputs, inputs),
        bits=4,
        group=group,
        codes=lambda: unpack_awq(codes()),
        zeros=lambda: unpack_awq(zeros()),
        scales=lambda: scales().T,
    )


def _awq_by_outputs(parts: ModuleParts, layout: Layout) -> IntegerMatrix:
    """Return a matrix of AWQ's version "gemv": qweight [N, K / 8]; zero points and scales [N, groups] are padded."""
    outputs, words = parts.matrix("qweight")
    inputs = words * 8
    groups, group = _row_groups(parts, layout, inputs)
    _, width = parts.matrix("qzeros")
    if width * 8 < groups:
        raise parts.error("qzeros", f"{width} words have no zero points of {groups} groups")
    codes = parts.expect("qweight", "I32", (outputs, words))
    zeros = parts.expect("qzeros", "I32", (outputs, width))
    scales = parts.expect("scales", FLOATS, (outputs, width * 8))
    return IntegerMatrix(
        shape=(outputs, inputs),
        bits=4,
        group=group,
        codes=lambda: unpack(codes(), 4, inputs),
        zeros=lambda: unpack(zeros(), 4, groups),
        scales=lambda: scales()[:, :groups],
    )


def _affine(parts: ModuleParts, layout: Layout) -> AffineMatrix:
    """Return a matrix of MLX: weight [..., N, words] packed along inputs, leading axes of experts flattened."""
    (bits,), group = layout.bits, layout.group or 64
    shape = parts.info("weight").shape
    if len(shape) < 2 or 0 in shape:
        raise parts.error("weight", f"must be a matrix, not of shape {list(shape)}")
    *leading, words = shape
    inputs, rest = divmod(words * 32, bits)
    if rest or inputs % group:
        raise parts.error("weight", f"{words} words of {bits} bits cannot be cut into groups of {group}")
    outputs, groups = math.prod(leading), inputs // group
    flat, grouped = (outputs, words), (outputs, groups)
    codes = parts.expect("weight", "U32", flat, shape)
    scales, biases = (parts.expect(each, FLOATS, grouped, (*leading, groups)) for each in ("scales", "biases"))
    return AffineMatrix(
        shape=(outputs, inputs),
        bits=bits,
        group=group,
        codes=lambda: unpack(codes(), bits, inputs),
        scales=scales,
        biases=biases,
    )


def _normal(parts: ModuleParts) -> NormalMatrix:
    """Return a matrix of bitsandbytes with 4 bits: weight [N x K / 2, 1], and its `QuantState`."""
    part = next((each for each in HELPERS if "quant_state" in each and parts.has(each)), "weight.quant_state")
    try:
        state = json.loads(parts.read(part).tobytes())
        outputs, inputs = map(int, state["shape"])
        run, nested = int(state["blocksize"]), int(state.get("nested_blocksize", 1))
        offset = np.float32(state.get("nested_offset", 0))
    except (ValueError, TypeError, KeyError) as error:
        raise parts.error(part, f"is no state of a matrix: {error}") from None
    if min(outputs, inputs, run, nested) < 1 or outputs * inputs % 2:
        raise parts.error(part, f"[{outputs}, {inputs}] numbers in runs of {run} have no 4-bit codes")
    runs = -(-outputs * inputs // run)
    count = outputs * inputs // 2
    packed = parts.expect("weight", "U8", (count,), (count, 1), (1, count))
    table = parts.expect("weight.quant_map", "F32", (16,))
    scales = parts.expect("weight.absmax", "U8" if "nested_offset" in state else "F32", (runs,))
    if "nested_offset" in state:
        levels = parts.expect("weight.nested_quant_map", "F32", (256,))
        factors = parts.expect("weight.nested_absmax", "F32", (-(-runs // nested),))
        codes, scales = scales, lambda: levels()[codes()] * np.repeat(factors(), nested)[:runs] + offset
    return NormalMatrix(shape=(outputs, inputs), run=run, packed=packed, scales=scales, table=table)


def _packed_integers(parts: ModuleParts, layout: Layout) -> IntegerMatrix:
    """Return a matrix of compressed-tensors' "pack-quantized": codes packed along inputs, zero points along outputs."""
    outputs, words = parts.matrix("weight_packed")
    parts.expect("weight_shape", ("I64", "I32"), (2,))
    shape = parts.read("weight_shape").tolist()
    bits = next((each for each in layout.bits if [outputs, words] == [shape[0], words_for(shape[1], each)]), None)
    if bits is None:
        choices = " or ".join(map(str, layout.bits))
        raise parts.error("weight_shape", f"{shape} is not that of [{outputs}, {words}] words with {choices} bits")
    inputs = shape[1]
    packed = parts.expect("weight_packed", "I32", (outputs, words))
    groups, group, scales = _row_scales(parts, (outputs, inputs))
    named = parts.expect("weight_g_idx", "I32", (inputs,)) if parts.has("weight_g_idx") else None
    zeros = _zero_points(parts, "I32", (words_for(outputs, bits), groups))
    return IntegerMatrix(
        shape=(outputs, inputs),
        bits=bits,
        group=group,
        codes=lambda: unpack(packed(), bits, inputs),
        zeros=None if zeros is None else lambda: unpack(zeros().T, bits, outputs).T,
        scales=scales,
        groups=_groups(parts, "weight_g_idx", named, groups),
    )


def _int8(parts: ModuleParts) -> IntegerMatrix:
    """Return a matrix of compressed-tensors' "int-quantized": int8 [N, K]."""
    shape = parts.matrix("weight")
    codes = parts.expect("weight", "I8", shape)
    groups, group, scales = _row_scales(parts, shape)
    zeros = _zero_points(parts, "I8", (shape[0], groups))
    return IntegerMatrix(
        shape=shape,
        bits=8,
        group=group,
        codes=lambda: codes().view(np.uint8) ^ np.uint8(128),
        zeros=None if zeros is None else lambda: zeros().view(np.uint8) ^ np.uint8(128),
        scales=scales,
    )


def _float8(parts: ModuleParts, layout: Layout) -> Float8Matrix:
    """Return a matrix of FP8: one scale, a scale per output, or one for each tile."""
    shape = parts.matrix("weight")
    inverse = layout.method == "fp8" and not parts.has("weight_scale")  # AutoFP8's files have the plain name
    part = "weight_scale_inv" if inverse else "weight_scale"
    held = parts.info(part).shape
    whole: list[Shape] = [(1, 1), (1,), ()]
    if held in whole:
        tile, shapes = shape, whole
    elif held in ((shape[0],), (shape[0], 1)):
        tile, shapes = (1, shape[1]), [(shape[0], 1), (shape[0],)]
    else:
        height, width = layout.tile or (1, _group_of(parts, part, shape))
        tile = min(height, shape[0]), min(width, shape[1])
        shapes = [(-(-shape[0] // tile[0]), -(-shape[1] // tile[1]))]
    stored = parts.expect("weight", "F8_E4M3", shape)
    scales = parts.expect(part, _FP8_SCALES, *shapes)
    return Float8Matrix(shape=shape, tile=tile, stored=stored, scales=lambda: scales().astype(np.float32))


def _float4(parts: ModuleParts, part: str) -> StoredMatrix:
    """Return a matrix of MXFP4, or of NVFP4, whose scales have a common factor or divisor."""
    outputs, packed = parts.matrix(part)
    shape = outputs, packed * 2
    stored = parts.expect(part, "U8", (outputs, packed))
    group = _MX_GROUP if parts.info("weight_scale").dtype == "U8" else _FP4_GROUP
    if shape[1] % group:
        raise parts.error(part, f"{shape[1]} inputs cannot be cut into groups of {group}")
    count = shape[1] // group
    if group == _MX_GROUP:
        exponents = parts.expect("weight_scale", "U8", (outputs, count))
        return Mxfp4Matrix(shape=shape, packed=stored, exponents=exponents)
    scales = parts.expect("weight_scale", "F8_E4M3", (outputs, count))
    common = "weight_scale_2" if parts.has("weight_scale_2") else "weight_global_scale"
    factor = parts.expect(common, "F32", (), (1,))

    def shared() -> tuple[float, float]:
        own = factor().item()
        return (own, 1.0) if common == "weight_scale_2" else (1.0, own)

    return Nvfp4Matrix(shape=shape, packed=stored, scales=lambda: scales().view(np.uint8), common=shared)


def _row_groups(parts: ModuleParts, layout: Layout, inputs: int) -> tuple[int, int]:
    """Return the groups of a row, and their inputs."""
    group = layout.group or inputs
    if inputs % group:
        raise parts.error("qweight", f"{inputs} inputs cannot be cut into groups of {group}")
    return inputs // group, group


def _row_scales(parts: ModuleParts, shape: tuple[int, int]) -> tuple[int, int, Reader]:
    """Return the groups of a row, their inputs, and the reader of `weight_scale` [N, groups]."""
    held = parts.info("weight_scale").shape
    if held in ((), (1,)):
        one = parts.expect("weight_scale", FLOATS, (1, 1), held)
        return 1, shape[1], lambda: np.broadcast_to(one(), (shape[0], 1))
    flat = (shape[0],)
    group = shape[1] if held == flat else _group_of(parts, "weight_scale", shape)
    groups = shape[1] // group
    shapes: list[Shape] = [(shape[0], groups), *([flat] if groups == 1 else [])]
    return groups, group, parts.expect("weight_scale", FLOATS, *shapes)


def _zero_points(parts: ModuleParts, dtype: str, shape: Shape) -> Reader | None:
    """Return the reader of `weight_zero_point`; None if integers are symmetric."""
    return parts.expect("weight_zero_point", dtype, shape) if parts.has("weight_zero_point") else None


def _group_of(parts: ModuleParts, part: str, shape: tuple[int, int]) -> int:
    """Return the inputs of a group from the number of scales [N, groups] of a row."""
    outputs, groups = parts.matrix(part)
    if outputs != shape[0] or shape[1] % groups:
        raise parts.error(part, f"[{outputs}, {groups}] scales do not divide a matrix of {list(shape)}")
    return shape[1] // groups


def _groups(parts: ModuleParts, part: str, named: Reader | None, count: int) -> Reader | None:
    """Return the checked groups of inputs; None if a file marks them as unused by -1, or by zeros alone."""
    if named is None:
        return None
    groups = named()
    if (groups == -1).all() or not groups.any():
        return None
    if groups.min() < 0 or groups.max() >= count:
        raise parts.error(part, f"names group {int(groups.max())} of {count}, or a negative one")
    return named
