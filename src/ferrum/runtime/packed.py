"""Packed directories: a model quantised once, whose matrices are used in place in the mapped file.

A packed directory is a model's directory in the Hugging Face layout. Its `model.safetensors` holds each matrix as bytes
[panels, groups, bytes] in the layout of `quant/panels.py`, the same for every instruction set and backend, and each
vector as F32; matrices begin at multiples of 64 bytes. Its `config.json` is the model's, with

    "quantization_config": {
        "quant_method": "ferrum", "version": 2, "numerics_id": "grouped-3",
        "scheme": a key of `SCHEMES`, "group": inputs that share a scale, "dtype": the first matrix's format before,
        "formats": [those of all matrices, sorted], or absent if all equal "dtype",
        "checksums": {tensor: number},
        "config_checksum": of all of `config.json` but this number
    }
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Final

from ferrum.core.errors import CheckpointError, ConfigError, Unsupported
from ferrum.kernels.interface import Weight
from ferrum.kernels.reference import page_sums
from ferrum.kernels.services import PageSums
from ferrum.quant.activations import PRODUCTS_ID
from ferrum.quant.dense import FORMATS
from ferrum.quant.formats import SCHEMES, layout_of
from ferrum.quant.panel_weight import over_panels
from ferrum.quant.scale_groups import GROUPS
from ferrum.runtime.checkpoint import Checkpoint, TensorStore
from ferrum.runtime.kv_tiers.checksum import checksum
from ferrum.runtime.parameters import Parameters, Progress, format_of, quantization_method

METHOD: Final = "ferrum"
VERSION: Final = 2


@dataclass(frozen=True, slots=True)
class PackedHeader:
    """The header of a packed directory; see the module.

    Attributes:
        scheme: a key of `SCHEMES`.
        group: one of `GROUPS`.
        dtype: a key of `FORMATS`.
        formats: keys of `FORMATS`, `dtype` included.
        checksums: of every tensor, by name.
    """

    scheme: str
    group: int
    dtype: str
    formats: tuple[str, ...]
    checksums: Mapping[str, int]

    def configuration(self, config: Mapping[str, Any]) -> dict[str, Any]:
        """Return the packed directory's `config.json`, from the model's."""
        header = {
            "quant_method": METHOD,
            "version": VERSION,
            "numerics_id": PRODUCTS_ID,
            "scheme": self.scheme,
            "group": self.group,
            "dtype": self.dtype,
            "formats": list(self.formats),
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


def is_packed(checkpoint: TensorStore) -> bool:
    """Whether a checkpoint is a packed directory."""
    return quantization_method(checkpoint.config) == METHOD


def read_header(checkpoint: Checkpoint) -> PackedHeader:
    """Return the header of a packed directory.

    Raises:
        Unsupported: another version wrote it.
        CheckpointError: it is inconsistent.
    """
    found = checkpoint.config.get("quantization_config")
    if not isinstance(found, dict):
        raise CheckpointError(f"{checkpoint.directory}: config.json: quantization_config must be an object")
    for name, ours in (("version", VERSION), ("numerics_id", PRODUCTS_ID)):
        if found.get(name) != ours:
            reason = f"{checkpoint.directory}: this release reads {ours!r}; recreate it with `ferrum quantize`"
            raise Unsupported(f"packed directory of {name} {found.get(name)!r}", reason)
    for name, kind, known in (("scheme", str, SCHEMES), ("group", int, GROUPS), ("dtype", str, FORMATS)):
        if type(found.get(name)) is not kind or found[name] not in known:
            raise CheckpointError(f"{checkpoint.directory}: config.json: invalid {name} {found.get(name)!r}")
    formats = found.get("formats", [found["dtype"]])
    known_ones = isinstance(formats, list) and all(isinstance(each, str) and each in FORMATS for each in formats)
    if not known_ones or found["dtype"] not in formats:
        raise CheckpointError(f"{checkpoint.directory}: config.json: invalid formats {formats!r}")
    checksums = found.get("checksums")
    if not isinstance(checksums, dict) or checksums.keys() != checkpoint.tensors.keys():
        raise CheckpointError(f"{checkpoint.directory}: config.json must have one checksum for each tensor")
    if found.get("config_checksum") != _config_checksum(checkpoint.config):
        reason = "config.json is damaged or was changed after packing (wrong checksum)"
        raise CheckpointError(f"{checkpoint.directory}: {reason}; recreate it with `ferrum quantize`")
    return PackedHeader(found["scheme"], found["group"], found["dtype"], tuple(formats), checksums)


class PackedParameters(Parameters):
    """The `ParameterSource` of a packed directory: matrices stay in the mapped file.

    Args: as `Parameters`, where values must match the directory or be None or "auto"; and

        sums: as `page_sums`; None skips reading the matrices, and so the check for damage.

    Raises:
        ConfigError: another dtype, scheme or group is requested.
        CheckpointError, Unsupported: as `read_header`.
    """

    quantized_by: ClassVar[str | None] = METHOD

    def __init__(
        self,
        checkpoint: Checkpoint,
        dtype: str = "auto",
        progress: Progress | None = None,
        *,
        quantize: str | None = None,
        group: int | None = None,
        sums: PageSums | None = page_sums,
    ) -> None:
        header = read_header(checkpoint)
        super().__init__(checkpoint, dtype, progress, quantize=header.scheme, group=header.group)
        formats = "+".join(header.formats)
        held = (("dtype", dtype, formats), ("quantize", quantize, header.scheme), ("group", group, header.group))
        for name, asked, packed in held:
            if asked not in (None, "auto", packed):
                raise ConfigError(f"{checkpoint.directory} was packed as {packed}, not {asked}", param=name)
        self.format = header.dtype
        self._formats.update(header.formats)
        self._files = checkpoint
        self._checksums = header.checksums
        self._sums = sums

    def matrix(self, name: str, shape: tuple[int, int]) -> Weight:
        """Return the matrix [N, K] of that name.

        Raises:
            CheckpointError: it is missing, damaged, or has another shape or format.
        """
        assert self.scheme is not None, "packed directories are quantised"
        layout = layout_of(format_of(self.scheme, name), self.group)
        self._check(name, layout.shape(shape))
        if self._files.tensors[name].dtype != "U8":
            raise CheckpointError(f"{self._files.directory}: tensor {name!r} is not in panels")
        weight = over_panels(self._files.read_bytes(name), layout, shape)
        self._mark_used(name, shape[0] * shape[1])
        return weight

    def _check(self, name: str, shape: tuple[int, ...]) -> None:
        super()._check(name, shape)
        if self._sums is None:
            return
        if checksum(self._files.read_bytes(name), self._sums) != self._checksums[name]:
            file = self._files.file_of(name)
            raise CheckpointError(f"{self._files.directory}: tensor {name!r} in {file} is damaged (wrong checksum)")
