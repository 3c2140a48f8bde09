"""A decoder's parameters from a checkpoint: checked against the expected shapes, in the requested format.

Also the planned parameters of a model that is not loaded. Packed directories are in `packed.py`.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from fnmatch import fnmatchcase
from typing import Any, ClassVar, Final

import numpy as np
from numpy.typing import NDArray

from ferrum.core.config import DTYPES, check_quantization
from ferrum.core.errors import CheckpointError, ConfigError, Unsupported
from ferrum.core.logging import info_once
from ferrum.core.option_fields import listed as option_list
from ferrum.kernels.operations import F32, Weight
from ferrum.models.families import decoder_spec
from ferrum.models.spec import DecoderSpec
from ferrum.models.tensor_names import EMBEDDING, HEAD
from ferrum.quant.backend_quantizer import MatrixQuantizer
from ferrum.quant.backend_quantizer import quantize as reference_quantizer
from ferrum.quant.block_format import BLOCK_FORMATS
from ferrum.quant.block_weight import BlockWeight, over_panels
from ferrum.quant.dense import FORMATS, DenseWeight, cast
from ferrum.quant.ordered_weight import ordered
from ferrum.quant.panels import panel_shape
from ferrum.quant.scale_search import column_importance
from ferrum.quant.schemes import SCHEMES, is_head
from ferrum.sources.checkpoint import TensorStore, listed, quantization_method

Progress = Callable[[int, int], None]
"""Called with bytes done and bytes in total, after each parameter."""

_PIECE_BYTES: Final = 1 << 20


def model_spec(checkpoint: TensorStore, context: int | None = None, *, planning: bool = False) -> DecoderSpec:
    """Return the spec of a checkpoint from its configuration and its tensors. Arguments and errors as `decoder_spec`.

    Many checkpoints hold the head although the configuration ties it to the embedding, usually with equal numbers. If
    the numbers differ, the head was trained separately and is its own matrix, as in `transformers`. A plan, which reads
    no tensor, assumes that they are equal.

    A model that was saved without a head uses the embedding as its head, whatever its configuration says.
    """
    try:
        spec = decoder_spec(checkpoint.config, context)
    except Unsupported as error:
        raise Unsupported(checkpoint.in_its_words(error.feature), error.reason) from error
    except CheckpointError as error:
        raise CheckpointError(checkpoint.in_its_words(str(error))) from error
    if HEAD not in checkpoint.tensors:
        return replace(spec, tied_head=spec.tied_head or _is_headless(checkpoint))
    if not spec.tied_head or _is_embedding(checkpoint, planning=planning):
        return spec
    return replace(spec, tied_head=False, ignored_names=tuple(name for name in spec.ignored_names if name != HEAD))


def _is_headless(checkpoint: TensorStore) -> bool:
    """Whether the model was saved without a head; packed directories, whose panels are bytes, hold all its tensors."""
    embedding = checkpoint.tensors.get(EMBEDDING)
    return checkpoint.headless or (embedding is not None and embedding.dtype == "U8")


def _is_embedding(checkpoint: TensorStore, *, planning: bool) -> bool:
    """Whether the checkpoint's head equals its embedding, bit for bit; in a plan, whether it can."""
    head, embedding = checkpoint.tensors[HEAD], checkpoint.tensors.get(EMBEDDING)
    # A packed directory, whose panels are bytes, has a head only if it differs from the embedding.
    if embedding is None or head.dtype == "U8" or (head.dtype, head.shape) != (embedding.dtype, embedding.shape):
        return False
    if planning:
        return True
    ours, theirs = (checkpoint.read(name).reshape(-1).view(np.uint8) for name in (HEAD, EMBEDDING))
    pieces = (slice(begin, begin + _PIECE_BYTES) for begin in range(0, len(ours), _PIECE_BYTES))
    equal = all(np.array_equal(ours[piece], theirs[piece]) for piece in pieces)
    checkpoint.forget(HEAD)
    return equal


class Parameters:
    """The `ParameterReader` of a checkpoint. Matrices in the checkpoint's own format stay in the mapped file.

    Args:
        checkpoint: the tensors.
        dtype: the matrices' format: "auto" (each as in the checkpoint), "float32", "float16" or "bfloat16".
        progress: called for every parameter.
        quantize: a scheme in `SCHEMES` that quantises the matrices of that format; None leaves them.
        quantizer: quantises one matrix.
        importance: of the inputs of matrices, by name, for the quantiser.

    Attributes:
        count: numbers handed out so far, each tensor once.
        by_format: those of matrices, by the format that they are held in.
        format: floating-point format of the matrices (of the first, if they differ) before quantisation; empty before
            the first.
        scheme: the quantisation scheme, or None.

    Raises:
        ConfigError: unknown dtype or scheme.
        Unsupported: the checkpoint's weights are quantised.
    """

    quantized_by: ClassVar[str | None] = None
    """The `quant_method` of checkpoints that are read; None for unquantised ones."""

    def __init__(
        self,
        checkpoint: TensorStore,
        dtype: str = "auto",
        progress: Progress | None = None,
        *,
        quantize: str | None = None,
        quantizer: MatrixQuantizer = reference_quantizer,
        importance: Mapping[str, F32] | None = None,
    ) -> None:
        if dtype not in DTYPES:
            raise ConfigError(f"must be one of {option_list(DTYPES)}, not {dtype!r}", param="dtype")
        check_quantization(quantize)
        refuse_quantized(checkpoint.config, self.quantized_by)
        self._checkpoint = checkpoint
        self._dtype = dtype
        self._progress = progress
        self.scheme = None if quantize is None else SCHEMES[quantize]
        self._quantizer = quantizer
        self._importance = importance or {}
        self._formats: set[str] = set()
        self._bytes: Counter[str] = Counter()
        self._used: set[str] = set()
        self._expected: Mapping[str, tuple[int, ...]] = {}
        self._exact: Collection[str] = ()
        self._wholes: Mapping[str, tuple[int, ...]] = {}
        self._wanted: Mapping[str, str] = {}
        self._done_bytes = 0
        self.count = 0
        self.by_format: Counter[str] = Counter()
        self.format = ""

    @property
    def formats(self) -> tuple[str, ...]:
        """Floating-point formats of the matrices handed out so far, sorted, before quantisation."""
        return tuple(sorted(self._formats))

    @property
    def main_format(self) -> str:
        """The format that most bytes of the matrices handed out so far have."""
        return max(self._bytes, key=self._bytes.__getitem__)

    @property
    def made(self) -> str:
        """The format of the matrices handed out so far, by name."""
        formats = "+".join(self.formats)
        return formats if self.scheme is None else f"{self.scheme.name} of {formats}"

    def has(self, name: str) -> bool:
        """Whether the checkpoint holds a tensor of that name."""
        return name in self._checkpoint.tensors

    def matrix(self, name: str, shape: tuple[int, int], *, exact: bool = False) -> Weight:
        """Return the matrix [N, K] of that name; an exact one as float32, whatever dtype and scheme are.

        Raises:
            CheckpointError: it is missing or has another shape.
            ConfigError: its values do not fit into the requested dtype or scheme.
            Unsupported: its elements have a dtype that ferrum does not compute with.
        """
        if exact:
            return self._floats(name, shape)
        kept = self._kept(name)
        if kept is not None:
            return self._blocks(name, shape, kept)
        values = self._read(name, shape)
        try:
            dense = self._cast(values, self._dtype)
            weight = self._weight(name, dense)
        except ConfigError as error:
            raise ConfigError(f"{name!r}: {error.message}", param=error.param) from error
        if dense is not values or self.scheme is not None:
            self._checkpoint.forget(name)
        self.format = self.format or dense.dtype.name
        self._formats.add(dense.dtype.name)
        self._mark_used(name, values.size, weight)
        return weight

    def _floats(self, name: str, shape: tuple[int, int]) -> DenseWeight:
        """Return a matrix as float32, which is not one of `formats`."""
        values = self._read(name, shape)
        dense = self._cast(values, "float32")
        if dense is not values:
            self._checkpoint.forget(name)
        self._mark_used(name, values.size)
        return DenseWeight(dense)

    def _kept(self, name: str) -> str | None:
        """Return the format of blocks that a matrix has in the checkpoint and keeps, or None."""
        unchanged = self._dtype == "auto" and self.scheme is None and name in self._checkpoint.tensors
        return self._checkpoint.block_format(name) if unchanged else None

    def _blocks(self, name: str, shape: tuple[int, int], format: str) -> Weight:
        self._check(name, shape)
        weight = ordered(self._held(name, shape, format), self._checkpoint.order(name))
        self.format = self.format or "bfloat16"  # as most models are trained in; keys and values take it
        self._formats.add(format)
        self._mark_used(name, math.prod(shape), weight)
        return weight

    def _held(self, name: str, shape: tuple[int, int], format: str) -> BlockWeight:  # noqa: ARG002 - for plans
        return self._checkpoint.blocks(name)

    def _cast(self, values: NDArray[Any], dtype: str) -> NDArray[Any]:
        """Return a matrix in a dtype; "auto" is its own."""
        return values if dtype == "auto" else cast(values, dtype)

    def _weight(self, name: str, values: NDArray[Any]) -> Weight:
        if self.scheme is None:
            return DenseWeight(values)
        if name not in self._wanted:
            known = self._expected or {tensor: info.shape for tensor, info in self._checkpoint.tensors.items()}
            known = {**known, **self._wholes}
            self._wanted = self.scheme.formats(known, self._exact)
        return self._quantizer(self._wanted[name], values, self._importance_of(name, values))

    def _importance_of(self, name: str, values: NDArray[Any]) -> F32 | None:
        """Return the importance of a matrix's inputs, or None if it is not known."""
        if name in self._importance or not is_head(name, self._wanted):
            return self._importance.get(name)
        if name in self._wholes:
            values = self._cast(self._checkpoint.read_whole(name), self._dtype)
        return column_importance(values)

    def release(self, name: str) -> None:
        """Free the memory of a tensor in the checkpoint, unless it is used there."""
        self._checkpoint.forget(name)

    def vector(self, name: str, size: int) -> F32:
        """Return the vector of that name, exactly, as f32 [size]. Errors as `matrix`."""
        vector: F32 = self._read(name, (size,)).astype(np.float32)
        self._checkpoint.forget(name)
        self._mark_used(name, size)
        return vector

    def expect(
        self,
        shapes: Mapping[str, tuple[int, ...]],
        ignored: tuple[str, ...] = (),
        exact: Collection[str] = (),
        wholes: Mapping[str, tuple[int, ...]] | None = None,
    ) -> None:
        """Refuse missing, misshapen and unexpected tensors before any is loaded.

        Args:
            shapes: of all tensors that will be requested, by name (`Inventory.shapes`).
            ignored: as for `finish`.
            exact: names of the matrices that will be requested as exact ones (`Inventory.exact`).
            wholes: the shapes of tensors of which a part will be requested (`Inventory.wholes`).

        Raises:
            CheckpointError: as `matrix` and `finish`.
        """
        self._expected, self._exact, self._wholes = shapes, exact, wholes or {}
        for name, shape in shapes.items():
            self._check(name, shape)
        self._refuse_unused(ignored)

    def finish(self, ignored: tuple[str, ...] = ()) -> None:
        """Declare that the model is complete.

        Args:
            ignored: patterns (`*.inv_freq`) of tensors that may exist without being used.

        Raises:
            CheckpointError: the checkpoint holds unused tensors: it is another model than it says.
        """
        self._refuse_unused(ignored)
        if self._progress is not None:
            self._progress(self._checkpoint.nbytes, self._checkpoint.nbytes)

    def _refuse_unused(self, ignored: tuple[str, ...]) -> None:
        left_out: Counter[str] = Counter()
        unexpected = []
        for name in self._unused():
            pattern = next((each for each in ignored if fnmatchcase(name, each)), None)
            if pattern is None:
                unexpected.append(name)
            else:
                left_out[pattern] += 1
        if unexpected:
            raise CheckpointError(
                f"{self._checkpoint.directory}: {len(unexpected)} unexpected tensors: {listed(unexpected)}"
            )
        for pattern, count in left_out.items():
            info_once(
                f"{self._checkpoint.directory}: {count} tensors {pattern} are left out: the model uses none of them"
            )

    def _unused(self) -> list[str]:
        """Return the tensors that are neither used nor expected."""
        return [name for name in self._checkpoint.tensors if name not in self._used and name not in self._expected]

    def _read(self, name: str, shape: tuple[int, ...]) -> NDArray[Any]:
        self._check(name, shape)
        return self._checkpoint.read(name)

    def _check(self, name: str, shape: tuple[int, ...]) -> None:
        """Raise CheckpointError unless the checkpoint has a tensor of that name and shape."""
        info = self._checkpoint.tensors.get(name)
        if info is None:
            others = self._unused()
            held = f"; unused so far: {listed(others)}" if others else ""
            raise CheckpointError(f"{self._checkpoint.directory}: tensor {name!r} is missing{held}")
        if info.shape != shape:
            raise CheckpointError(
                f"{self._checkpoint.directory}: tensor {name!r} in {self._checkpoint.file_of(name)}: "
                f"expected shape {list(shape)}, found {list(info.shape)}"
            )

    def _mark_used(self, name: str, numbers: int, weight: Weight | None = None) -> None:
        """Record that a tensor of this many numbers was used, as a matrix of this format; one that is cut, whole."""
        if name not in self._used:
            numbers = math.prod(self._wholes[name]) if name in self._wholes else numbers
            if weight is not None:
                self._bytes[weight.format] += weight.nbytes
                self.by_format[weight.format] += numbers
            self._used.add(name)
            self._done_bytes += self._checkpoint.tensors[name].nbytes
            self.count += numbers
        if self._progress is not None:
            self._progress(self._done_bytes, self._checkpoint.nbytes)


class PlannedParameters(Parameters):
    """The sizes of `Parameters`: matrices of zeros that take no memory. No tensor is read.

    Args:
        checkpoint, dtype, quantize: as of `Parameters`.
    """

    def __init__(self, checkpoint: TensorStore, dtype: str = "auto", *, quantize: str | None = None) -> None:
        super().__init__(checkpoint, dtype, quantize=quantize, quantizer=_blank_panels)
        self._vectors: dict[int, F32] = {}

    def vector(self, name: str, size: int) -> F32:
        """Return zeros; vectors of one size are one array, since kernels need contiguous ones."""
        self._read(name, (size,))
        self._mark_used(name, size)
        return self._vectors.setdefault(size, np.zeros(size, np.float32))

    def _read(self, name: str, shape: tuple[int, ...]) -> NDArray[Any]:
        self._check(name, shape)
        format = self._checkpoint.tensors[name].format
        return super()._read(name, shape) if format is None else _zeros(shape, FORMATS[format])

    def _held(self, name: str, shape: tuple[int, int], format: str) -> BlockWeight:  # noqa: ARG002 - no tensor is read
        return self._quantizer(format, _zeros(shape, FORMATS["float32"]))

    def _importance_of(self, name: str, values: NDArray[Any]) -> F32 | None:  # noqa: ARG002 - there are no numbers
        return None

    def _cast(self, values: NDArray[Any], dtype: str) -> NDArray[Any]:
        return _zeros(values.shape, values.dtype if dtype == "auto" else FORMATS[dtype])


def _blank_panels(format: str, values: NDArray[Any], importance: F32 | None = None) -> BlockWeight:  # noqa: ARG001
    """Return a blank matrix in panels: the `MatrixQuantizer` of a plan."""
    kind, (outputs, inputs) = BLOCK_FORMATS[format], values.shape
    panels: NDArray[np.uint8] = _zeros(panel_shape(kind, (outputs, inputs)), np.dtype(np.uint8))
    return over_panels(panels, kind, (outputs, inputs))


def _zeros(shape: tuple[int, ...], dtype: np.dtype[Any]) -> NDArray[Any]:
    """Return an array that repeats one zero."""
    return np.broadcast_to(np.zeros((), dtype), shape)


def refuse_quantized(config: Mapping[str, Any], *read: str | None) -> None:
    """Raise Unsupported if a model's weights are quantised by a method other than these (None means unquantised)."""
    method = quantization_method(config)
    if method not in read:
        reason = "use the unquantised model with --quantize, or a GGUF file of it (see docs/packed-checkpoints.md)"
        raise Unsupported(f"quantised checkpoint ({method})", reason)
