"""Packed directories: a model quantised once, whose matrices are used in place in the mapped file.

A packed directory is a model's directory in the Hugging Face layout. Its `model.safetensors` holds each matrix as bytes
[panels, groups, bytes] in the layout of `quant/panels.py`, the same for every instruction set and backend, and each
vector and each exact matrix as F32; matrices begin at multiples of 64 bytes. Its `config.json` is the model's, with

    "quantization_config": {
        "quant_method": "ferrum", "version": 3, "numerics_id": "blocks-2",
        "scheme": a key of `SCHEMES`, "dtype": the first matrix's format before,
        "formats": [those of all matrices, sorted], or absent if all equal "dtype",
        "blocks": {matrix: its format, a key of `BLOCK_FORMATS`},
        "calibrated": true, if a text has weighed the errors of the weights,
        "adapters": [{"digest": hexadecimal, "scale": number}, ...] that were merged before, if any,
        "checksums": {tensor: number},
        "config_checksum": of all of `config.json` but this number
    }
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Final

import numpy as np
from numpy.typing import NDArray

from ferrum.core.config import ModelConfig
from ferrum.core.errors import CheckpointError, ConfigError, Unsupported
from ferrum.core.values import shown
from ferrum.kernels.group_weights import PANEL
from ferrum.kernels.interface import Kernels
from ferrum.kernels.operations import Weight
from ferrum.kernels.reference import page_sums
from ferrum.kernels.services import PageSums
from ferrum.models.tensor_names import Rows, View
from ferrum.quant.backend_quantizer import quantizer_of
from ferrum.quant.block_format import BLOCK_FORMATS
from ferrum.quant.block_weight import PRODUCTS_ID, over_panels
from ferrum.quant.dense import FORMATS
from ferrum.quant.panels import panel_shape
from ferrum.quant.schemes import SCHEMES
from ferrum.sources.checkpoint import PACKED, Checkpoint, TensorStore
from ferrum.sources.parameters import Parameters, PlannedParameters, Progress
from ferrum.sources.viewed_tensors import index_of

VERSION: Final = 3


@dataclass(frozen=True, slots=True)
class PackedHeader:
    """The header of a packed directory; see the module.

    Attributes:
        scheme: a key of `SCHEMES`.
        dtype: a key of `FORMATS`.
        formats: keys of `FORMATS`, `dtype` included.
        blocks: keys of `BLOCK_FORMATS`, by name of the matrix.
        checksums: of every tensor, by name.
        calibrated: whether a text has weighed the errors of the weights.
        adapters: digest, as hexadecimal, and scale of each adapter that was merged into the matrices before.
    """

    scheme: str
    dtype: str
    formats: tuple[str, ...]
    blocks: Mapping[str, str]
    checksums: Mapping[str, int]
    calibrated: bool = False
    adapters: tuple[tuple[str, float], ...] = ()

    def configuration(self, config: Mapping[str, Any]) -> dict[str, Any]:
        """Return the packed directory's `config.json`, from the model's."""
        adapters = [{"digest": digest, "scale": scale} for digest, scale in self.adapters]
        header = {
            "quant_method": PACKED,
            "version": VERSION,
            "numerics_id": PRODUCTS_ID,
            "scheme": self.scheme,
            "dtype": self.dtype,
            "formats": list(self.formats),
            "blocks": dict(self.blocks),
            **({"calibrated": True} if self.calibrated else {}),
            **({"adapters": adapters} if adapters else {}),
            "checksums": dict(self.checksums),
        }
        whole = {**config, "quantization_config": header}
        header["config_checksum"] = _config_checksum(whole)
        return whole


def _config_checksum(config: Mapping[str, Any]) -> int:
    """Return CRC-32 of the configuration as compact JSON with sorted keys, without `config_checksum` itself."""
    header = {name: value for name, value in config["quantization_config"].items() if name != "config_checksum"}
    whole = {**config, "quantization_config": header}
    return zlib.crc32(json.dumps(whole, sort_keys=True, separators=(",", ":")).encode())


def read_header(checkpoint: Checkpoint) -> PackedHeader:
    """Return the header of a packed directory.

    Raises:
        Unsupported: another version wrote it.
        CheckpointError: it is inconsistent.
    """
    settings = checkpoint.config.get("quantization_config")
    if not isinstance(settings, dict):
        raise CheckpointError(f"{checkpoint.directory}: config.json: quantization_config must be an object")
    for name, ours in (("version", VERSION), ("numerics_id", PRODUCTS_ID)):
        if settings.get(name) != ours:
            reason = f"{checkpoint.directory}: this release reads {ours!r}; recreate it with `ferrum quantize`"
            raise Unsupported(f"packed directory of {name} {settings.get(name)!r}", reason)
    for name, known in (("scheme", SCHEMES), ("dtype", FORMATS)):
        if not isinstance(settings.get(name), str) or settings[name] not in known:
            raise CheckpointError(f"{checkpoint.directory}: config.json: invalid {name} {settings.get(name)!r}")
    formats = settings.get("formats", [settings["dtype"]])
    known_ones = isinstance(formats, list) and all(isinstance(each, str) and each in FORMATS for each in formats)
    if not known_ones or settings["dtype"] not in formats:
        raise CheckpointError(f"{checkpoint.directory}: config.json: invalid formats {formats!r}")
    checksums = settings.get("checksums")
    if not isinstance(checksums, dict) or checksums.keys() != checkpoint.tensors.keys():
        raise CheckpointError(f"{checkpoint.directory}: config.json must have one checksum for each tensor")
    if settings.get("config_checksum") != _config_checksum(checkpoint.config):
        reason = "config.json is damaged or was changed after packing (wrong checksum)"
        raise CheckpointError(f"{checkpoint.directory}: {reason}; recreate it with `ferrum quantize`")
    blocks, calibrated = _blocks(checkpoint, settings), settings.get("calibrated", False)
    if not isinstance(calibrated, bool):
        raise CheckpointError(f"{checkpoint.directory}: config.json: invalid calibrated {calibrated!r}")
    adapters = _adapters(checkpoint, settings.get("adapters", []))
    return PackedHeader(settings["scheme"], settings["dtype"], tuple(formats), blocks, checksums, calibrated, adapters)


def _adapters(checkpoint: Checkpoint, found: Any) -> tuple[tuple[str, float], ...]:
    """Return digests and scales of merged adapters. Raises CheckpointError."""
    try:
        return tuple((bytes.fromhex(each["digest"]).hex(), float(each["scale"])) for each in found)
    except (TypeError, KeyError, ValueError):
        raise CheckpointError(f"{checkpoint.directory}: config.json: invalid adapters {shown(found)}") from None


def _blocks(checkpoint: Checkpoint, header: Mapping[str, Any]) -> Mapping[str, str]:
    blocks = header.get("blocks")
    matrices = {name for name, info in checkpoint.tensors.items() if info.dtype == "U8"}
    if not isinstance(blocks, dict) or blocks.keys() != matrices:
        raise CheckpointError(f"{checkpoint.directory}: config.json must have one format of blocks for each matrix")
    for name, format in blocks.items():
        if not isinstance(format, str) or format not in BLOCK_FORMATS:
            raise CheckpointError(f"{checkpoint.directory}: config.json: invalid format {format!r} of {name!r}")
    return blocks


class PackedParameters(Parameters):
    """The `ParameterReader` of a packed directory: matrices stay in the mapped file.

    Args: as `Parameters`, where values must match the directory or be None or "auto"; and

        sums: as `page_sums`; None skips reading the matrices, and so the check for damage.
        parts: the rows of parameters that a rank takes, by name; of others it takes all.

    Raises:
        ConfigError: another dtype or scheme is requested.
        CheckpointError, Unsupported: as `read_header`.
    """

    quantized_by: ClassVar[str | None] = PACKED

    def __init__(
        self,
        checkpoint: Checkpoint,
        dtype: str = "auto",
        progress: Progress | None = None,
        *,
        quantize: str | None = None,
        sums: PageSums | None = page_sums,
        parts: Mapping[str, Rows] | None = None,
    ) -> None:
        header = read_header(checkpoint)
        super().__init__(checkpoint, dtype, progress, quantize=header.scheme)
        formats = "+".join(header.formats)
        scheme = None if quantize is None else SCHEMES[quantize].name
        for name, asked, packed in (("dtype", dtype, formats), ("quantize", scheme, header.scheme)):
            if asked not in (None, "auto", packed):
                raise ConfigError(f"{checkpoint.directory} was packed as {packed}, not {asked}", param=name)
        self.format = header.dtype
        self._formats.update(header.formats)
        self._files = checkpoint
        self._checksums = header.checksums
        self._kinds = header.blocks
        self._sums = sums
        self._parts = parts or {}

    def matrix(self, name: str, shape: tuple[int, int], *, exact: bool = False) -> Weight:
        """Return the matrix [N, K] of that name.

        Raises:
            CheckpointError: it is missing, damaged, or has another shape or format.
        """
        if exact:
            return self._floats(name, shape)
        if name in self._files.tensors and name not in self._kinds:
            raise CheckpointError(f"{self._files.directory}: tensor {name!r} is not in panels")
        kind = BLOCK_FORMATS[self._kinds.get(name, "q8_0")]  # a missing tensor is refused below
        whole = self._wholes.get(name, shape)
        stored = panel_shape(kind, (whole[0], shape[1]))
        self._check(name, stored)
        panels = self._files.read_bytes(name)
        if name in self._wholes:
            part = self._parts[name]
            if not isinstance(part, slice) or part.start % PANEL:
                weight: Weight = over_panels(panels, kind, (whole[0], shape[1])).select(index_of(part))
                self._mark_used(name, shape[0] * shape[1], weight)
                return weight
            panels = panels.reshape(stored)[part.start // PANEL : -(-part.stop // PANEL)]
        weight = over_panels(panels, kind, shape)
        self._mark_used(name, shape[0] * shape[1], weight)
        return weight

    def expect(
        self,
        shapes: Mapping[str, tuple[int, ...]],  # noqa: ARG002
        ignored: tuple[str, ...] = (),  # noqa: ARG002
        exact: Collection[str] = (),  # noqa: ARG002
        wholes: Mapping[str, tuple[int, ...]] | None = None,
    ) -> None:
        """Refuse nothing: tensors have the shapes of panels, and loading them takes no time."""
        self._wholes = wholes or {}

    def _read(self, name: str, shape: tuple[int, ...]) -> NDArray[Any]:
        whole = super()._read(name, self._wholes.get(name, shape))
        return whole[index_of(self._parts[name])] if name in self._wholes else whole

    def release(self, name: str) -> None:  # noqa: ARG002 - kernels use the panels in the mapped file
        return

    def _check(self, name: str, shape: tuple[int, ...]) -> None:
        super()._check(name, shape)
        if self._sums is None:
            return
        if checksum(self._files.read_bytes(name), self._sums) != self._checksums[name]:
            file = self._files.file_of(name)
            raise CheckpointError(f"{self._files.directory}: tensor {name!r} in {file} is damaged (wrong checksum)")


def parameters_of(
    checkpoint: TensorStore,
    config: ModelConfig,
    kernels: Kernels,
    progress: Progress | None = None,
    *,
    views: Mapping[str, View] | None = None,
    planning: bool = False,
) -> Parameters:
    """Return the parameters of a checkpoint in the formats of a configuration, or their sizes. Errors as theirs.

    Args:
        views: of the model (`Inventory.views`), for packed directories, whose parts of ranks are panels.
    """
    dtype, scheme = config.dtype, config.quantize
    if checkpoint.mapped and isinstance(checkpoint, Checkpoint):
        sums = None if planning else kernels.page_sums()
        parts = {name: view.part for name, view in (views or {}).items() if view.part is not None}
        return PackedParameters(checkpoint, dtype, progress, quantize=scheme, sums=sums, parts=parts)
    if planning:
        return PlannedParameters(checkpoint, dtype, quantize=scheme)
    return Parameters(checkpoint, dtype, progress, quantize=scheme, quantizer=quantizer_of(kernels))


# ---- Checksums of the tensors of packed directories. They find damage, not tampering ----


def checksum(data: NDArray[np.uint8], sums: PageSums = page_sums) -> int:
    """Return the checksum of a tensor's bytes: CRC-32 of its pages' sums."""
    return zlib.crc32(sums(data).astype("<u8").tobytes())
