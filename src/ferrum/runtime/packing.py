"""Writing of packed directories; `packed.py` describes and reads them."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Final, Self

import numpy as np
from numpy.typing import NDArray

from ferrum.core.config import check_quantization
from ferrum.core.errors import ConfigError
from ferrum.kernels.operations import F32, Weight
from ferrum.kernels.services import PageSums
from ferrum.models.decoder import inventory
from ferrum.quant.backend_quantizer import quantizer_of
from ferrum.quant.block_format import BLOCK_FORMATS
from ferrum.quant.block_weight import BlockWeight
from ferrum.quant.panels import panel_shape
from ferrum.quant.scale_search import QUICK, Search
from ferrum.quant.schemes import SCHEMES
from ferrum.runtime.adapters.merged_adapters import ScaledAdapter, with_adapters
from ferrum.runtime.backend import choose_kernels
from ferrum.sources.checkpoint import TensorStore
from ferrum.sources.model_source import ModelSource
from ferrum.sources.packed import PackedHeader, checksum
from ferrum.sources.parameters import Parameters, Progress, model_spec
from ferrum.sources.tensor_file import file_header
from ferrum.sources.viewed_tensors import with_views
from ferrum.text.fast_tokenizer import fast_form
from ferrum.text.pooling import module_files
from ferrum.text.tokenizer_config import TEMPLATES_FOLDER

_TENSORS: Final = "model.safetensors"
_CONFIG: Final = "config.json"
_BLOCK: Final = 8 << 20
_WEIGHTS: Final = (
    *("*.safetensors", "*.safetensors.index.json", "*.bin", "*.pt", "*.pth", "*.ckpt", "*.gguf"),
    *("*.h5", "*.msgpack", "*.onnx", "*.onnx_data"),  # the same weights for other programs
)


@dataclass(frozen=True, slots=True)
class _Entry:
    """A tensor to write: its name, safetensors dtype and shape; of a matrix [N, K], and its format if it is packed."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    matrix: tuple[int, int] | None = None
    format: str | None = None

    @property
    def nbytes(self) -> int:
        return int(np.prod(self.shape)) * (1 if self.format is not None else 4)


class _BlockWriter:
    """A writer of a file in large blocks, each aligned to its size.

    Linux then keeps the file in pages of 2 MiB, which can be mapped as such: half a million page faults fewer, and
    reads are 10% faster than from small pages.
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
    source: ModelSource,
    target: Path,
    scheme: str,
    dtype: str = "auto",
    progress: Progress | None = None,
    *,
    importance: Mapping[str, F32] | None = None,
    search: Search = QUICK,
    adapters: Sequence[ScaledAdapter] = (),
) -> None:
    """Quantise a model into a packed directory, holding one matrix at a time.

    A run that fails or is interrupted leaves the target as it was. Of two runs into one target, the second is refused.
    `config.json` is written last, so that the result of a killed run does not load.

    Args:
        source: the model. Its other files are copied, the tokenizer in its fastest form.
        target: created; it may be an empty directory.
        scheme: a key of `SCHEMES`.
        dtype: as for `Parameters`: the format that matrices are rounded to first.
        progress: called with bytes read and bytes in total.
        importance: of the inputs of matrices, by name (`calibration.py`).
        search: how many scales are tried. The default gives the bits of quantising on load.
        adapters: are merged into the matrices first, as `open_adapters` returns them.

    Raises:
        ConfigError: unknown dtype, weights that do not fit into it, or as `check_packing`.
        CheckpointError, Unsupported: the model cannot be read or loaded: tensors are missing, misshapen or unexpected.
    """
    store = with_adapters(check_packing(source, scheme), adapters)
    spec = model_spec(store)
    kernels = choose_kernels("cpu", "auto").kernels
    quantizer, sums = quantizer_of(kernels, search), kernels.page_sums()
    asks = inventory(spec)
    store = with_views(store, asks)
    parameters = Parameters(store, dtype, progress, quantize=scheme, quantizer=quantizer, importance=importance)
    parameters.expect(asks.shapes, spec.ignored_names, asks.exact)
    refuse_used(target)
    companions = _other_files(source)
    with _atomic_directory(target, [_TENSORS, *companions, _CONFIG]):
        entries = _entries(asks.shapes, SCHEMES[scheme].formats(asks.shapes, asks.exact))
        checksums = _write_tensors(target / _TENSORS, entries, parameters, sums)
        for name in companions:
            _copy(source, name, target / name)
        blocks = {entry.name: entry.format for entry in entries if entry.format is not None}
        name, calibrated = SCHEMES[scheme].name, importance is not None
        merged = tuple((each.file.digest.hex(), each.scale) for each in adapters)
        header = PackedHeader(name, parameters.format, parameters.formats, blocks, checksums, calibrated, merged)
        (target / _CONFIG).write_text(json.dumps(header.configuration(store.config), indent=1) + "\n", "utf-8")


def check_packing(source: ModelSource, scheme: str) -> TensorStore:
    """Return the tensors of a model that can be packed.

    Raises:
        ConfigError: an unknown scheme, or a packed model.
        CheckpointError, Unsupported: the model cannot be read.
    """
    check_quantization(scheme)
    store = source.checkpoint()
    if store.mapped:
        raise ConfigError(f"{store.directory} is already packed: quantise the original model", param="model")
    return store


def refuse_used(target: Path) -> None:
    """Raise ConfigError if the target exists and is not an empty directory."""
    try:
        used = target.exists() and (not target.is_dir() or any(target.iterdir()))
    except OSError as error:
        raise ConfigError(f"{target} cannot be created: {error}", param="out") from None
    if used:
        raise ConfigError(f"{target} exists and is not an empty directory", param="out")


@contextmanager
def _atomic_directory(target: Path, names: list[str]) -> Iterator[None]:
    """Create the directory; if writing fails or is interrupted, restore its previous state.

    Args:
        target: the directory.
        names: of the files to write. The first is created at once: it claims the directory.

    Raises:
        ConfigError: it cannot be created, or another run has claimed it.
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
                raise ConfigError(f"{target} is in use by another run", param="out") from None
        except OSError as error:
            raise ConfigError(f"{target} cannot be created: {error}", param="out") from None
        made = names
        yield
    except BaseException:
        for name in reversed(made):  # the first file last: it is the claim
            with suppress(OSError):  # the first error matters, not this one
                (target / name).unlink()
        for path in absent:
            with suppress(OSError):
                path.rmdir()
        raise


def _write_tensors(path: Path, entries: list[_Entry], parameters: Parameters, sums: PageSums) -> dict[str, int]:
    """Write the file of all tensors, and return their checksums."""
    checksums = {}
    with _BlockWriter(path) as file:
        header = file_header((entry.name, entry.dtype, entry.shape, entry.nbytes) for entry in entries)
        file.write(np.frombuffer(header, np.uint8))
        for entry, data in _tensors(entries, parameters):
            file.write(data)
            checksums[entry.name] = checksum(data, sums)
            del data  # before the next one is allocated
    return checksums


def _copy(source: ModelSource, name: str, target: Path) -> None:
    target.parent.mkdir(exist_ok=True)
    if name == "tokenizer.json":
        target.write_bytes(fast_form(source.read_file(name) or b""))
    else:
        source.copy_file(name, target)


def _other_files(source: ModelSource) -> list[str]:
    """Return the files to copy: all but weights and configuration, and of folders only those that are read."""
    names = [name for name in source.file_names() if name != _CONFIG]
    names = [name for name in names if not any(fnmatchcase(name, pattern) for pattern in _WEIGHTS)]
    names += [f"{TEMPLATES_FOLDER}/{name}" for name in source.file_names(TEMPLATES_FOLDER) if name.endswith(".jinja")]
    for module in module_files(source):
        folder, _, name = module.rpartition("/")
        names += [module] if name in source.file_names(folder) else []
    return sorted(names)


def _entries(shapes: Mapping[str, tuple[int, ...]], formats: Mapping[str, str]) -> list[_Entry]:
    """Return the tensors to write: packed matrices first, since they are whole cache lines."""
    entries = []
    for name, shape in shapes.items():
        matrix = (shape[0], shape[1]) if len(shape) == 2 else None
        if matrix is None or name not in formats:
            entries.append(_Entry(name, "F32", shape, matrix))
        else:
            panels = panel_shape(BLOCK_FORMATS[formats[name]], matrix)
            entries.append(_Entry(name, "U8", panels, matrix, formats[name]))
    return sorted(entries, key=lambda entry: entry.format is None)


def _tensors(entries: list[_Entry], parameters: Parameters) -> Iterator[tuple[_Entry, NDArray[np.uint8]]]:
    """Yield each tensor's bytes, made when they are written."""
    for entry in entries:
        if entry.matrix is None:
            yield entry, parameters.vector(entry.name, entry.shape[0]).astype("<f4").view(np.uint8)
        elif entry.format is None:
            yield entry, _floats(parameters.matrix(entry.name, entry.matrix, exact=True))
        else:
            yield entry, _panels(parameters.matrix(entry.name, entry.matrix))


def _floats(weight: Weight) -> NDArray[np.uint8]:
    return weight.dequantize().astype("<f4").reshape(-1).view(np.uint8)


def _panels(weight: Weight) -> NDArray[np.uint8]:
    assert isinstance(weight, BlockWeight), "schemes give weights in blocks"
    return weight.panels.reshape(-1)
