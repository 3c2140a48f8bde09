"""Writing packed directories (`packed.py` says what they are)."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from ferrum.core.errors import ConfigError
from ferrum.models.families import decoder_spec
from ferrum.quant.formats import SCHEMES, layout_of
from ferrum.quant.groups import DEFAULT_GROUP
from ferrum.quant.weight import GroupedWeight
from ferrum.runtime.checkpoint import Checkpoint
from ferrum.runtime.kernels import choose_kernels, quantizer_for
from ferrum.runtime.packed import PackedHeader, checksum
from ferrum.runtime.parameters import Parameters, Progress, format_of

_ALIGNMENT: Final = 64
_WEIGHTS: Final = ("*.safetensors", "*.safetensors.index.json", "*.bin", "*.pt", "*.pth", "*.ckpt", "*.gguf")


@dataclass(frozen=True, slots=True)
class _Entry:
    """A tensor to be written: its name, safetensors dtype and shape; and of a matrix the shape [N, K] before."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    matrix: tuple[int, int] | None

    @property
    def nbytes(self) -> int:
        return int(np.prod(self.shape)) * (1 if self.matrix is not None else 4)


def pack_directory(
    source: Path,
    target: Path,
    scheme: str,
    dtype: str = "auto",
    progress: Progress | None = None,
    *,
    group: int = DEFAULT_GROUP,
) -> None:
    """Quantise a model into a packed directory. Beside the result, one matrix at a time is held.

    `config.json` is written last: an interrupted run leaves no directory that would load.

    Args:
        source: the model's directory.
        target: created; an empty directory may be there.
        scheme: a key of `SCHEMES`.
        dtype: as for `Parameters`: what matrices are rounded to before.
        progress: told bytes read, and bytes in all.
        group: inputs that share a scale, one of `GROUPS`.

    Raises:
        ConfigError: no such scheme, group or dtype, weights that do not fit into it, or the target is in use.
        CheckpointError, Unsupported: the model cannot be read.
    """
    checkpoint = Checkpoint(source)
    ignored = decoder_spec(checkpoint.config).ignored_names
    quantizer = quantizer_for(choose_kernels("auto").kernels)
    parameters = Parameters(checkpoint, dtype, progress, quantize=scheme, group=group, quantizer=quantizer)
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise ConfigError(f"{target} is there already, and not an empty directory", param="out")
    target.mkdir(parents=True, exist_ok=True)
    entries = _entries(checkpoint, scheme, group, ignored)
    checksums = {}
    with (target / "model.safetensors").open("wb") as file:
        file.write(_file_header(entries))
        for entry, data in _tensors(entries, parameters):
            data.tofile(file)
            checksums[entry.name] = checksum(data)
    for path in sorted(source.iterdir()):
        weights = any(fnmatchcase(path.name, pattern) for pattern in _WEIGHTS)
        if path.is_file() and path.name != "config.json" and not weights:
            shutil.copyfile(path, target / path.name)
    header = PackedHeader(scheme, group, parameters.format, checksums).as_json()
    config = {**checkpoint.config, "quantization_config": header}
    (target / "config.json").write_text(json.dumps(config, indent=1) + "\n", "utf-8")


def _entries(checkpoint: Checkpoint, scheme: str, group: int, ignored: tuple[str, ...]) -> list[_Entry]:
    """What to write: matrices first, since theirs are whole cache lines, then vectors."""
    entries = []
    for name, info in checkpoint.tensors.items():
        if any(fnmatchcase(name, pattern) for pattern in ignored):
            continue
        if len(info.shape) == 2:
            shape = (info.shape[0], info.shape[1])
            layout = layout_of(format_of(SCHEMES[scheme], name), group)
            entries.append(_Entry(name, "U8", layout.shape(shape), shape))
        else:
            entries.append(_Entry(name, "F32", info.shape, None))
    return sorted(entries, key=lambda entry: entry.matrix is None)


def _file_header(entries: list[_Entry]) -> bytes:
    """The safetensors header: its length, then JSON filled with spaces so that the data are aligned."""
    places, end = {}, 0
    for entry in entries:
        begin, end = end, end + entry.nbytes
        places[entry.name] = {"dtype": entry.dtype, "shape": entry.shape, "data_offsets": [begin, end]}
    text = json.dumps(places, separators=(",", ":")).encode()
    text += b" " * (-(8 + len(text)) % _ALIGNMENT)
    return len(text).to_bytes(8, "little") + text


def _tensors(entries: list[_Entry], parameters: Parameters) -> Iterator[tuple[_Entry, NDArray[np.uint8]]]:
    """Each tensor's bytes, made when they are written."""
    for entry in entries:
        if entry.matrix is None:
            yield entry, parameters.vector(entry.name, entry.shape[0]).astype("<f4").view(np.uint8)
        else:
            weight = parameters.matrix(entry.name, entry.matrix)
            assert isinstance(weight, GroupedWeight), "a scheme makes grouped weights"
            yield entry, weight.panels.reshape(-1)
