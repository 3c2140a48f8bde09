"""Writing packed directories (`packed.py` says what they are)."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Final, Self

import numpy as np
from numpy.typing import NDArray

from ferrum.core.errors import ConfigError
from ferrum.kernels.interface import Weight
from ferrum.models.decoder import parameter_shapes
from ferrum.quant.formats import SCHEMES, layout_of
from ferrum.quant.scale_groups import DEFAULT_GROUP
from ferrum.quant.weight import GroupedWeight
from ferrum.runtime.backend import choose_kernels, page_sums_for, quantizer_for
from ferrum.runtime.checkpoint import TensorStore
from ferrum.runtime.kv_tiers.checksum import PageSums, checksum
from ferrum.runtime.packed import PackedHeader, is_packed
from ferrum.runtime.parameters import Parameters, Progress, format_of, model_spec
from ferrum.runtime.tensor_file import file_header
from ferrum.text.fast_tokenizer import fast_form
from ferrum.text.pooling import pooling_file
from ferrum.text.tokenizer_config import TEMPLATES_FOLDER

_TENSORS: Final = "model.safetensors"
_CONFIG: Final = "config.json"
_BLOCK: Final = 8 << 20
_WEIGHTS: Final = (
    *("*.safetensors", "*.safetensors.index.json", "*.bin", "*.pt", "*.pth", "*.ckpt", "*.gguf"),
    *("*.h5", "*.msgpack", "*.onnx", "*.onnx_data"),  # the same for other programs
)


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


class _BlockWriter:
    """Writes a file in large blocks, each begun at a multiple of its size.

    Linux keeps what is written so on pages of 2 MiB, by which it can then be mapped: ready without half a million page
    faults, and read at the speed of the weights that a process makes itself (10% faster than from small pages).
    """

    def __init__(self, path: Path) -> None:
        self._file = path.open("wb")
        self._block = np.empty(_BLOCK, np.uint8)
        self._filled = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        with self._file:
            if kind is None:
                self._file.write(self._block[: self._filled].data)

    def write(self, data: NDArray[np.uint8]) -> None:
        """Add bytes."""
        while len(data):
            part = data[: _BLOCK - self._filled]
            self._block[self._filled : self._filled + len(part)] = part
            self._filled += len(part)
            data = data[len(part) :]
            if self._filled == _BLOCK:
                self._file.write(self._block.data)
                self._filled = 0


def pack_directory(
    store: TensorStore,
    target: Path,
    scheme: str,
    dtype: str = "auto",
    progress: Progress | None = None,
    *,
    group: int = DEFAULT_GROUP,
) -> None:
    """Quantise a model into a packed directory. Beside the result, one matrix at a time is held.

    A run that fails or is interrupted leaves the target as it was; of two into one target, the second is refused.
    `config.json` is written last: what one that was killed leaves does not load.

    Args:
        store: the model. The other files of its directory are copied, the tokenizer in the form that loads fastest.
        target: created; an empty directory may be there.
        scheme: a key of `SCHEMES`.
        dtype: as for `Parameters`: what matrices are rounded to before.
        progress: told bytes read, and bytes in all.
        group: inputs that share a scale, one of `GROUPS`.

    Raises:
        ConfigError: no such scheme, group or dtype, weights that do not fit into it, a model that is packed already, or
            a target that is in use or cannot be made.
        CheckpointError, Unsupported: the model cannot be read, or would not load: tensors are missing, misshapen or not
            the model's.
    """
    if is_packed(store):
        raise ConfigError(
            f"{store.directory} is packed already: quantise the model that it was made from", param="model"
        )
    spec = model_spec(store)
    kernels = choose_kernels("auto").kernels
    quantizer, sums = quantizer_for(kernels), page_sums_for(kernels)
    parameters = Parameters(store, dtype, progress, quantize=scheme, group=group, quantizer=quantizer)
    shapes = parameter_shapes(spec)
    parameters.expect(shapes, spec.ignored_names)
    _refuse_used(target)
    companions = _companions(store.directory)
    with _whole_or_nothing(target, [_TENSORS, *companions, _CONFIG]):
        checksums = _write_tensors(target / _TENSORS, _entries(shapes, scheme, group), parameters, sums)
        for name in companions:
            _copy(store.directory / name, target / name)
        header = PackedHeader(scheme, group, parameters.format, parameters.formats, checksums)
        (target / _CONFIG).write_text(json.dumps(header.configuration(store.config), indent=1) + "\n", "utf-8")


def _refuse_used(target: Path) -> None:
    """Raise ConfigError where something is at the place of the target that is no empty directory, or none can be."""
    try:
        used = target.exists() and (not target.is_dir() or any(target.iterdir()))
    except OSError as error:
        raise ConfigError(f"{target} cannot be made: {error}", param="out") from None
    if used:
        raise ConfigError(f"{target} is there already, and not an empty directory", param="out")


@contextmanager
def _whole_or_nothing(target: Path, names: list[str]) -> Iterator[None]:
    """Make the directory; if writing to it fails or is interrupted, it is empty again, or not there, as before.

    Args:
        target: the directory.
        names: of the files that are to be written. The first is made at once: whoever makes it has the directory.

    Raises:
        ConfigError: it cannot be made, or another run has it.
    """
    folders = {(target / name).parent for name in names} - {target}
    absent = [path for path in (*folders, target, *target.parents) if not path.exists()]
    made: list[str] = []
    try:
        try:
            target.mkdir(parents=True, exist_ok=True)
            try:
                (target / names[0]).touch(exist_ok=False)
            except FileExistsError:
                raise ConfigError(f"{target} is being written to by another run", param="out") from None
        except OSError as error:
            raise ConfigError(f"{target} cannot be made: {error}", param="out") from None
        made = names
        yield
    except BaseException:
        for name in reversed(made):  # the first last, for with it goes the claim
            with suppress(OSError):  # what failed is told, and not what cannot be deleted
                (target / name).unlink()
        for path in absent:
            with suppress(OSError):
                path.rmdir()
        raise


def _write_tensors(path: Path, entries: list[_Entry], parameters: Parameters, sums: PageSums) -> dict[str, int]:
    """Write the file of all tensors; returns their checksums."""
    checksums = {}
    with _BlockWriter(path) as file:
        header = file_header((entry.name, entry.dtype, entry.shape, entry.nbytes) for entry in entries)
        file.write(np.frombuffer(header, np.uint8))
        for entry, data in _tensors(entries, parameters):
            file.write(data)
            checksums[entry.name] = checksum(data, sums)
            del data  # before the next one is made
    return checksums


def _copy(path: Path, target: Path) -> None:
    target.parent.mkdir(exist_ok=True)
    if path.name == "tokenizer.json":
        target.write_bytes(fast_form(path.read_bytes()))
    else:
        shutil.copyfile(path, target)


def _companions(directory: Path) -> list[str]:
    """The files of a model's directory that come along: all but weights and configuration; of folders, what is read."""
    if not directory.is_dir():  # a store that lies in no file
        return []
    files = [path for path in directory.iterdir() if path.is_file() and path.name != _CONFIG]
    files = [path for path in files if not any(fnmatchcase(path.name, pattern) for pattern in _WEIGHTS)]
    files += [path for path in directory.glob(f"{TEMPLATES_FOLDER}/*.jinja") if path.is_file()]
    pooling = pooling_file(directory)
    files += [directory / pooling] if pooling is not None and (directory / pooling).is_file() else []
    return sorted(str(path.relative_to(directory)) for path in files)


def _entries(shapes: Mapping[str, tuple[int, ...]], scheme: str, group: int) -> list[_Entry]:
    """What to write: matrices first, since theirs are whole cache lines, then vectors."""
    entries = []
    for name, shape in shapes.items():
        if len(shape) == 2:
            matrix = (shape[0], shape[1])
            layout = layout_of(format_of(SCHEMES[scheme], name), group)
            entries.append(_Entry(name, "U8", layout.shape(matrix), matrix))
        else:
            entries.append(_Entry(name, "F32", shape, None))
    return sorted(entries, key=lambda entry: entry.matrix is None)


def _tensors(entries: list[_Entry], parameters: Parameters) -> Iterator[tuple[_Entry, NDArray[np.uint8]]]:
    """Each tensor's bytes, made when they are written."""
    for entry in entries:
        if entry.matrix is None:
            yield entry, parameters.vector(entry.name, entry.shape[0]).astype("<f4").view(np.uint8)
        else:
            yield entry, _panels(parameters.matrix(entry.name, entry.matrix))


def _panels(weight: Weight) -> NDArray[np.uint8]:
    assert isinstance(weight, GroupedWeight), "a scheme makes grouped weights"
    return weight.panels.reshape(-1)
