"""A decoder's parameters out of a checkpoint: checked against the shape expected, in the format asked for."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import fields, replace
from fnmatch import fnmatchcase
from typing import Any, ClassVar, Final

import numpy as np
from numpy.typing import NDArray

from ferrum.core.errors import CheckpointError, ConfigError, Unsupported
from ferrum.kernels.interface import F32, Weight
from ferrum.models.families import decoder_spec
from ferrum.models.spec import DecoderSpec
from ferrum.models.tensor_names import EMBEDDING, HEAD
from ferrum.quant.dense import FORMATS, DenseWeight, cast
from ferrum.quant.formats import SCHEMES, MatrixQuantizer, Scheme, layout_of
from ferrum.quant.formats import quantize as reference_quantizer
from ferrum.quant.panel_weight import PanelWeight, over_panels
from ferrum.quant.scale_groups import DEFAULT_GROUP, GROUPS
from ferrum.quant.weight import GroupedWeight
from ferrum.runtime.checkpoint import TensorStore, listed

Progress = Callable[[int, int], None]
"""Told bytes done and bytes in all, after each parameter."""

_PIECE_BYTES: Final = 1 << 20


def model_spec(checkpoint: TensorStore, context: int | None = None, *, planning: bool = False) -> DecoderSpec:
    """The spec of a checkpoint as its configuration and its tensors have it. Arguments and errors as `decoder_spec`.

    Many checkpoints hold the head although the configuration ties it to the embedding: mostly the same numbers once
    more. Where they are others, the head was trained on its own, and is a matrix of its own, as `transformers` has it.
    A plan, which reads none of them, takes it that they are the same.

    A model that was saved without a head has the embedding for one, whatever its configuration says: embeddings, for
    which such models are made, need none.
    """
    spec = decoder_spec(checkpoint.config, context)
    if HEAD not in checkpoint.tensors:
        return replace(spec, tied_head=spec.tied_head or _is_headless(checkpoint))
    if not spec.tied_head or _is_embedding(checkpoint, planning=planning):
        return spec
    return replace(spec, tied_head=False, ignored_names=tuple(name for name in spec.ignored_names if name != HEAD))


def _is_headless(checkpoint: TensorStore) -> bool:
    """Whether the model was saved without a head; packed directories, whose panels are bytes, hold all that it had."""
    embedding = checkpoint.tensors.get(EMBEDDING)
    return checkpoint.headless or (embedding is not None and embedding.dtype == "U8")


def _is_embedding(checkpoint: TensorStore, *, planning: bool) -> bool:
    """Whether the checkpoint's head is its embedding, bit for bit; in a plan, whether it can be."""
    head, embedding = checkpoint.tensors[HEAD], checkpoint.tensors.get(EMBEDDING)
    # A packed directory, whose panels are bytes, has a head only where it was found to be another.
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
    """The `ParameterSource` of a checkpoint. Matrices in the checkpoint's own format stay in the mapped file.

    Args:
        checkpoint: where they come from.
        dtype: the matrices' format: "auto" (each as the checkpoint has it), "float32", "float16" or "bfloat16".
        progress: told of every parameter handed out.
        quantize: a scheme in `SCHEMES`, by which matrices in that format are then quantised; None leaves them.
        group: inputs that share a scale of quantised matrices, one of `GROUPS`; None takes `DEFAULT_GROUP`.
        quantizer: rounds them.

    Attributes:
        count: how many numbers have been handed out, each tensor once.
        format: floating-point format of the matrices (where they differ, of the first) before they are quantised; empty
            until one has been handed out.
        scheme: how matrices are quantised, or None.
        group: inputs that share a scale of matrices that are.

    Raises:
        ConfigError: no such dtype, scheme or group, or a group and no scheme.
        Unsupported: the checkpoint's weights are quantised.
    """

    quantized_by: ClassVar[str | None] = None
    """The `quant_method` of checkpoints that are read; None: of those that are not quantised."""

    def __init__(
        self,
        checkpoint: TensorStore,
        dtype: str = "auto",
        progress: Progress | None = None,
        *,
        quantize: str | None = None,
        group: int | None = None,
        quantizer: MatrixQuantizer = reference_quantizer,
    ) -> None:
        if dtype != "auto" and dtype not in FORMATS:
            raise ConfigError(f"must be auto or one of {', '.join(FORMATS)}, not {dtype!r}", param="dtype")
        if quantize is not None and quantize not in SCHEMES:
            raise ConfigError(f"must be one of {', '.join(SCHEMES)}, not {quantize!r}", param="quantize")
        if group is not None and group not in GROUPS:
            raise ConfigError(f"must be one of {', '.join(map(str, GROUPS))}, not {group!r}", param="group")
        if group is not None and quantize is None:
            raise ConfigError("nothing is quantised, so nothing shares a scale: it goes with quantize", param="group")
        refuse_quantized(checkpoint.config, self.quantized_by)
        self._checkpoint = checkpoint
        self._dtype = dtype
        self._progress = progress
        self.scheme = None if quantize is None else SCHEMES[quantize]
        self.group = DEFAULT_GROUP if group is None else group
        self._quantizer = quantizer
        self._quantize = quantize
        self._formats: set[str] = set()
        self._used: set[str] = set()
        self._expected: Mapping[str, tuple[int, ...]] = {}
        self._done_bytes = 0
        self.count = 0
        self.format = ""

    @property
    def formats(self) -> tuple[str, ...]:
        """Floating-point formats of the matrices that were handed out, sorted, before they are quantised."""
        return tuple(sorted(self._formats))

    @property
    def made(self) -> str:
        """What was made of the matrices that were handed out, by name."""
        formats = "+".join(self.formats)
        return formats if self.scheme is None else f"{self._quantize} of {formats} in groups of {self.group}"

    def has(self, name: str) -> bool:
        """Whether the checkpoint holds a tensor of that name."""
        return name in self._checkpoint.tensors

    def matrix(self, name: str, shape: tuple[int, int]) -> Weight:
        """The matrix [N, K] of that name.

        Raises:
            CheckpointError: it is missing or of another shape.
            ConfigError: it does not fit into the dtype or the scheme asked for.
            Unsupported: its elements are of no dtype that ferrum computes with.
        """
        values = self._read(name, shape)
        try:
            dense = self._cast(values)
            weight = self._weight(name, dense)
        except ConfigError as error:
            raise ConfigError(f"{name!r}: {error.message}", param=error.param) from error
        if dense is not values or self.scheme is not None:
            self._checkpoint.forget(name)
        self.format = self.format or dense.dtype.name
        self._formats.add(dense.dtype.name)
        self._hand_out(name, values.size)
        return weight

    def _cast(self, values: NDArray[Any]) -> NDArray[Any]:
        """A matrix in the dtype asked for."""
        return values if self._dtype == "auto" else cast(values, self._dtype)

    def _weight(self, name: str, values: NDArray[Any]) -> Weight:
        if self.scheme is None:
            return DenseWeight(values)
        return self._quantizer(format_of(self.scheme, name), values, self.group)

    def vector(self, name: str, size: int) -> F32:
        """The vector of that name, exactly, as f32 [size] whatever the matrices' format. Errors as `matrix`."""
        vector: F32 = self._read(name, (size,)).astype(np.float32)
        self._checkpoint.forget(name)
        self._hand_out(name, size)
        return vector

    def expect(self, shapes: Mapping[str, tuple[int, ...]], ignored: tuple[str, ...] = ()) -> None:
        """Refuse at once what would be refused on the way: the checkpoint holds these tensors and no others.

        Args:
            shapes: of all that will be asked for, by name (`parameter_shapes`).
            ignored: as for `finish`.

        Raises:
            CheckpointError: as `matrix` and `finish`.
        """
        self._expected = shapes
        for name, shape in shapes.items():
            self._check(name, shape)
        self._refuse_unused(ignored)

    def finish(self, ignored: tuple[str, ...] = ()) -> None:
        """Say that the model is complete.

        Args:
            ignored: patterns (`*.inv_freq`) of tensors that may be there without being used.

        Raises:
            CheckpointError: the checkpoint holds tensors that nobody asked for: it is another model than it says.
        """
        self._refuse_unused(ignored)
        if self._progress is not None:
            self._progress(self._checkpoint.nbytes, self._checkpoint.nbytes)

    def _refuse_unused(self, ignored: tuple[str, ...]) -> None:
        unexpected = [name for name in self._unused() if not any(fnmatchcase(name, each) for each in ignored)]
        if unexpected:
            raise CheckpointError(
                f"{self._checkpoint.directory}: {len(unexpected)} tensors that the model does not have: "
                f"{listed(unexpected)}"
            )

    def _unused(self) -> list[str]:
        """Tensors that nobody has asked for, or is expected to."""
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

    def _hand_out(self, name: str, numbers: int) -> None:
        """Remember that a tensor of so many numbers was used."""
        if name not in self._used:
            self._used.add(name)
            self._done_bytes += self._checkpoint.tensors[name].nbytes
            self.count += numbers
        if self._progress is not None:
            self._progress(self._done_bytes, self._checkpoint.nbytes)


class PlannedParameters(Parameters):
    """What `Parameters` would hand out, by its size: of zeros, which take no memory. No tensor is read.

    Args:
        checkpoint, dtype, quantize, group: as of `Parameters`.
        panels: quantised matrices lie in panels, as the native quantiser makes them; else as the reference does.
    """

    def __init__(
        self,
        checkpoint: TensorStore,
        dtype: str = "auto",
        *,
        quantize: str | None = None,
        group: int | None = None,
        panels: bool,
    ) -> None:
        quantizer = _blank_panels if panels else _blank_rows
        super().__init__(checkpoint, dtype, quantize=quantize, group=group, quantizer=quantizer)
        self._vectors: dict[int, F32] = {}

    def vector(self, name: str, size: int) -> F32:
        """See `Parameters.vector`; those of a size are one, since kernels want them in one piece."""
        self._read(name, (size,))
        self._hand_out(name, size)
        return self._vectors.setdefault(size, np.zeros(size, np.float32))

    def _read(self, name: str, shape: tuple[int, ...]) -> NDArray[Any]:
        self._check(name, shape)
        format = self._checkpoint.tensors[name].format
        return super()._read(name, shape) if format is None else _zeros(shape, FORMATS[format])

    def _cast(self, values: NDArray[Any]) -> NDArray[Any]:
        return _zeros(values.shape, values.dtype if self._dtype == "auto" else FORMATS[self._dtype])


def _blank_panels(name: str, values: NDArray[Any], group: int) -> PanelWeight:
    """The `MatrixQuantizer` of a plan whose weights lie in panels."""
    outputs, inputs = values.shape
    layout = layout_of(name, group)
    panels: NDArray[np.uint8] = _zeros(layout.shape((outputs, inputs)), np.dtype(np.uint8))
    return over_panels(panels, layout, (outputs, inputs))


def _blank_rows(name: str, values: NDArray[Any], group: int) -> GroupedWeight:
    """The `MatrixQuantizer` of a plan whose weights lie as the reference makes them: one row of them, repeated."""
    row = reference_quantizer(name, values[:1], group)
    held = ((field.name, getattr(row, field.name)) for field in fields(row))
    whole: dict[str, Any] = {
        key: np.broadcast_to(part, (len(values), *part.shape[1:])) for key, part in held if isinstance(part, np.ndarray)
    }
    return replace(row, **whole)


def _zeros(shape: tuple[int, ...], dtype: np.dtype[Any]) -> NDArray[Any]:
    """An array of one zero, again and again."""
    return np.broadcast_to(np.zeros((), dtype), shape)


def format_of(scheme: Scheme, name: str) -> str:
    """The format that the scheme has for the matrix of that name, a key of `QUANTIZERS`."""
    return scheme.ends if name in (EMBEDDING, HEAD) else scheme.layers


def refuse_quantized(config: Mapping[str, Any], *read: str | None) -> None:
    """Raise Unsupported where a model's weights are quantised by another method than those (None: not at all)."""
    method = quantization_method(config)
    if method not in read:
        raise Unsupported(f"quantised checkpoint ({method})", "only float32, float16 and bfloat16 weights are read")


def quantization_method(config: Mapping[str, Any]) -> str | None:
    """How a model's `config.json` says that its weights are quantised; None: not at all. MLX names no method."""
    quantization = config.get("quantization_config") or config.get("quantization")
    if not quantization:
        return None
    named = quantization.get("quant_method") if isinstance(quantization, dict) else quantization
    return str(named or "without the name of a method")
