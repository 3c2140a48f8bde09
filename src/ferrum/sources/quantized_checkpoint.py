"""Quantised safetensors directories as stores of plain matrices, for the methods of `METHODS`.

`quantized_modules.py` has the layouts of modules. `docs/packed-checkpoints.md` says what each format becomes.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from ferrum.core.errors import CheckpointError, Unsupported
from ferrum.core.logging import warn_once
from ferrum.kernels.operations import Int32
from ferrum.quant.block_weight import BlockWeight
from ferrum.quant.integer_matrix import IntegerMatrix
from ferrum.sources.checkpoint import MLX, Checkpoint, TensorStore
from ferrum.sources.quantized_modules import (
    FUSED,
    HELPERS,
    STORED,
    Layout,
    ModuleParts,
    StoredMatrix,
    read_experts,
    read_module,
    scales_of,
)
from ferrum.sources.tensor_file import TensorInfo

_CACHE_SCALES: Final = ("k_scale", "v_scale", "q_scale", "kv_scale")
"""Scales of quantised keys and values, which `--kv-dtype` replaces."""

_PACKED: Final = ("int-quantized", "pack-quantized", "float-quantized", "naive-quantized", "nvfp4-pack-quantized")
_FORMATS: Final = (*_PACKED, "mxfp4-pack-quantized", "mixed-precision", "dense")
"""Formats of compressed-tensors that are read."""

_SETTINGS: Final = ("quantization_config", "quantization")
"""Fields of `config.json` that the plain model lacks."""

_CONVOLUTIONS: Final = ("conv1d.weight", "conv.weight")

_ADVICE: Final = "use the unquantised model with --quantize, or a GGUF file of it"


_NESTED: Final = re.compile(r"[*+}][^()]*\)[*+{]")


class QuantizedCheckpoint(TensorStore):
    """A quantised directory with the names and shapes of the model that was quantised, and a plain configuration.

    Raises:
        CheckpointError: a tensor of a quantised module is missing, or has a wrong dtype or shape.
        Unsupported: a method, or a variant of one, that is not read.
    """

    def __init__(self, files: Checkpoint) -> None:
        self._files = files
        self.directory, self.headless = files.directory, files.headless
        layout_of = _layouts_of(files)
        self.config = {key: value for key, value in files.config.items() if key not in _SETTINGS}
        self._modules: dict[str, list[str]] = {}
        self._matrices: dict[str, StoredMatrix] = {}
        self.tensors: dict[str, TensorInfo] = {}
        stems = {}
        for name, info in files.tensors.items():
            stem, _, part = name.rpartition(".")
            if info.dtype in STORED.get(part, ()):
                stems[stem] = part
        for name, info in files.tensors.items():
            stem, part = _split(name)
            if stem in stems and (part in HELPERS or part == stems[stem]):
                self._modules.setdefault(_matrix_name(stem), []).append(name)
            elif part not in _CACHE_SCALES:
                self.tensors[name] = info
        for stem, part in stems.items():
            matrix = read_module(ModuleParts(self._files, stem), part, layout_of(stem))
            self._add(_matrix_name(stem), matrix, f"{stem}.{part}")
        for name in [name for name in self.tensors if name.rpartition(".")[2] in FUSED]:
            self._add_experts(*name.rsplit(".", 1))
        self._drop_blank_biases(stems)

    def _add(self, name: str, matrix: StoredMatrix, source: str, share: int = 1) -> None:
        """Add a matrix that is one of `share` in its tensors."""
        if name in self.tensors:
            raise CheckpointError(f"{self.directory}: {name!r} is there as floats and as {source!r}")
        nbytes = sum(self._files.tensors[each].nbytes for each in self._modules[name]) // share
        self._matrices[name] = matrix
        self.tensors[name] = TensorInfo("F32", matrix.shape, 0, nbytes)

    def _add_experts(self, stem: str, part: str) -> None:
        matrices = read_experts(ModuleParts(self._files, stem), part)
        sources = [f"{stem}.{part}", f"{stem}.{scales_of(part)}"]
        for each in sources:
            del self.tensors[each]
        for projection, matrix in matrices.items():
            name = f"{stem}.{projection}.weight"
            self._modules[name] = sources
            self._add(name, matrix, sources[0], len(matrices))

    def _drop_blank_biases(self, stems: Mapping[str, str]) -> None:
        """Ignore biases of zeros: AutoGPTQ wrote them for all modules of models that have none."""
        blank: dict[str, bool] = {}
        biases = {f"{stem}.bias": stem.rpartition(".")[2] for stem in stems if f"{stem}.bias" in self.tensors}
        for name, projection in biases.items():
            zeros = self.tensors[name].format is not None and not np.any(self._files.read(name))
            blank[projection] = blank.get(projection, True) and zeros
        for name, projection in biases.items():
            if blank[projection]:
                del self.tensors[name]

    def file_of(self, name: str) -> str:
        return self._files.file_of(self._modules.get(name, [name])[0])

    def read(self, name: str) -> NDArray[Any]:
        matrix = self._matrices.get(name)
        return self._files.read(name) if matrix is None else matrix.floats()

    def block_format(self, name: str) -> str | None:
        matrix = self._matrices.get(name)
        if matrix is None:
            return None
        obstacle = matrix.obstacle()
        if obstacle is not None:
            reason = f"no block format holds {obstacle}; --dtype bfloat16 or --quantize rounds them"
            warn_once(f"{self.directory}: matrices become float32, 4 bytes a weight: {reason}")
        return matrix.format()

    def blocks(self, name: str) -> BlockWeight:
        return self._matrices[name].blocks()

    def order(self, name: str) -> Int32 | None:
        matrix = self._matrices.get(name)
        return matrix.order() if isinstance(matrix, IntegerMatrix) else None

    def forget(self, name: str) -> None:
        for each in self._modules.get(name, [name]):
            self._files.forget(each)


def _split(name: str) -> tuple[str, str]:
    """Return a tensor's module, and its name there; bitsandbytes puts parts of a weight under the weight."""
    module, found, part = name.partition(".weight.")
    if found:
        return module, f"weight.{part}"
    stem, _, part = name.rpartition(".")
    return stem, part


def _matrix_name(stem: str) -> str:
    """Return the name of a module's matrix; MLX has one module for all experts."""
    return f"{stem.replace('.switch_mlp.', '.experts.')}.weight"


def open_checkpoint(directory: Path) -> TensorStore:
    """Return the tensors of a directory, dequantised if its method is one of `METHODS`. Errors as of the stores."""
    files = Checkpoint(directory)
    return QuantizedCheckpoint(files) if is_read(files.config) else files


def is_read(config: Mapping[str, Any]) -> bool:
    """Whether a model's weights are quantised by a method of `METHODS`."""
    found = config.get("quantization_config")
    return isinstance(found, dict) and found.get("quant_method") in tuple(METHODS)  # which may be of any type


def _layouts_of(files: Checkpoint) -> Callable[[str], Layout]:
    """Return the layout of modules by their names."""
    found = files.config["quantization_config"]
    method, settings = METHODS[found["quant_method"]], _Settings(files.directory, found)
    layout, changes = method(settings), _changes(settings, method)
    if settings.method == MLX:
        moved = any(name.endswith(_CONVOLUTIONS) for name in files.tensors)
        settings.refuse_unless(not moved, "convolutions, whose axes MLX exchanges")
        return lambda stem: _own_layout(settings, method, stem) or layout
    return lambda stem: next((each for pattern, each in changes if pattern.match(stem)), layout)


def _own_layout(settings: _Settings, method: Callable[[_Settings], Layout], stem: str) -> Layout | None:
    """Return the layout of a module with other settings than the rest (MLX), or None."""
    own = settings.values.get(stem)
    return method(replace(settings, values={**settings.values, **own})) if isinstance(own, dict) else None


def _changes(settings: _Settings, method: Callable[[_Settings], Layout]) -> list[tuple[re.Pattern[str], Layout]]:
    """Return the patterns of modules with other settings than the rest (`dynamic` of GPTQModel); the first one counts.

    Those that begin with `-:` name modules that are not quantised.
    """
    changes = []
    for name, own in settings.part(settings.values, "dynamic").items():
        if _NESTED.search(name):
            raise settings.error(f"dynamic: {name!r} repeats a repetition, which may take forever to match")
        try:
            pattern = re.compile(name.removeprefix("+:").removeprefix("-:"))
        except re.error as error:
            raise settings.error(f"dynamic: {name!r} is no pattern: {error}") from None
        if not isinstance(own, dict):
            raise settings.error(f"dynamic: {name!r} must have an object, not {own!r}")
        changes.append((pattern, method(replace(settings, values={**settings.values, **own}))))
    return changes


@dataclass(frozen=True, slots=True)
class _Settings:
    """The `quantization_config` of a directory, for checked access."""

    directory: Path
    values: Mapping[str, Any]

    @property
    def method(self) -> str:
        """The name of the method."""
        return str(self.values["quant_method"])

    def refuse_unless(self, known: bool, feature: str) -> None:
        """Raise Unsupported for a feature of the method that is not read."""
        if not known:
            raise Unsupported(f"{feature} ({self.method})", f"{self.directory}: {_ADVICE}")

    def integer(self, name: str, default: int) -> int:
        """Return a positive integer, or -1."""
        value = self.values.get(name, default)
        if type(value) is not int or value == 0 or value < -1:
            raise self.error(f"{name} must be a positive integer or -1, not {value!r}")
        return value

    def part(self, values: Mapping[str, Any], name: str) -> dict[str, Any]:
        """Return an object in the settings; an empty one if it is absent."""
        found = values.get(name) or {}
        if not isinstance(found, dict):
            raise self.error(f"{name} must be an object, not {found!r}")
        return found

    def tile(self, values: Mapping[str, Any], name: str) -> tuple[int, int] | None:
        """Return the outputs and inputs with a common scale."""
        found = values.get(name)
        if found is None:
            return None
        if not isinstance(found, list) or len(found) != 2 or not all(type(each) is int and each > 0 for each in found):
            raise self.error(f"{name} must be two positive integers, not {found!r}")
        return found[0], found[1]

    def error(self, problem: str) -> CheckpointError:
        """Return an error about the settings."""
        return CheckpointError(f"{self.directory}: config.json: quantization_config: {problem}")


def _gptq(settings: _Settings) -> Layout:
    values, bits = settings.values, settings.integer("bits", 4)
    form = values.get("checkpoint_format") or values.get("format") or "gptq"
    settings.refuse_unless(bits in (2, 3, 4, 8), f"{bits} bits")
    settings.refuse_unless(form in ("gptq", "gptq_v2") and not values.get("is_marlin_format"), f"format {form}")
    group = settings.integer("group_size", 128)
    symmetric = values.get("sym") is True
    return Layout("gptq", (bits,), None if group == -1 else group, less_one=form == "gptq", symmetric=symmetric)


def _awq(settings: _Settings) -> Layout:
    older = "w_bit" in settings.values  # AutoAWQ's own names
    bits, version = settings.integer("w_bit" if older else "bits", 4), str(settings.values.get("version", "gemm"))
    settings.refuse_unless(bits == 4, f"{bits} bits")
    settings.refuse_unless(version.lower() in ("gemm", "gemv"), f"version {version.lower()}")
    group = settings.integer("q_group_size" if older else "group_size", 128)
    return Layout("awq", (bits,), None if group == -1 else group, by_outputs=version.lower() == "gemv")


def _compressed_tensors(settings: _Settings) -> Layout:
    schemes = settings.part(settings.values, "config_groups")
    groups = [settings.part(schemes, name) for name in schemes]
    for form in (settings.values.get("format"), *(each.get("format") for each in groups)):
        settings.refuse_unless(form is None or form in _FORMATS, f"format {form}")
    sparsity = settings.part(settings.values, "sparsity_config")
    settings.refuse_unless(sparsity.get("format", "dense") == "dense", "sparse weights")
    transforms = settings.part(settings.values, "transform_config")
    settings.refuse_unless(not transforms.get("config_groups"), "transforms of activations")
    tile, widths = None, set()
    for group in groups:
        weights = settings.part(group, "weights")
        bits = weights.get("num_bits", 8)
        settings.refuse_unless(bits in (4, 8), f"{bits} bits")
        widths.add(int(bits))
        tile = settings.tile(weights, "block_structure") or tile
    return Layout("compressed-tensors", tuple(sorted(widths)), tile=tile)


def _fp8(settings: _Settings) -> Layout:
    return Layout("fp8", tile=settings.tile({"weight_block_size": [128, 128], **settings.values}, "weight_block_size"))


def _modelopt(settings: _Settings) -> Layout:
    algorithm = settings.values.get("quant_algo")
    settings.refuse_unless(algorithm in ("FP8", "NVFP4"), f"quant_algo {algorithm}")
    return Layout("modelopt")


def _mlx(settings: _Settings) -> Layout:
    bits, mode = settings.integer("bits", 4), settings.values.get("mode", "affine")
    settings.refuse_unless(mode == "affine", f"mode {mode}")
    settings.refuse_unless(bits in (2, 3, 4, 5, 6, 8), f"{bits} bits")
    group = settings.integer("group_size", 64)
    settings.refuse_unless(group > 0 and group % 32 == 0, f"groups of {group}")
    return Layout("MLX", (bits,), group)


def _bitsandbytes(settings: _Settings) -> Layout:
    values = settings.values
    settings.refuse_unless(not values.get("load_in_8bit") and values.get("load_in_4bit") is True, "8 bits")
    storage = values.get("bnb_4bit_quant_storage") or "uint8"
    settings.refuse_unless(storage == "uint8", f"storage in {storage}")
    return Layout(settings.method)


def _plain(settings: _Settings) -> Layout:
    return Layout(settings.method)


METHODS: Final[dict[str, Callable[[_Settings], Layout]]] = {
    "gptq": _gptq,
    "awq": _awq,
    "compressed-tensors": _compressed_tensors,
    "fp8": _fp8,
    "modelopt": _modelopt,
    "fbgemm_fp8": _plain,
    MLX: _mlx,
    "bitsandbytes": _bitsandbytes,
    "mxfp4": _plain,
}
"""What reads the settings of a method, by its `quant_method`."""
