"""From an adapter's name to its `AdapterFile`: a PEFT directory, a GGUF file, or a repository of the hub."""

from __future__ import annotations

from pathlib import Path

from ferrum.core.errors import ModelNotFound
from ferrum.sources.adapters.adapter_file import AdapterFile
from ferrum.sources.adapters.peft_adapter import read_peft
from ferrum.sources.read_model import ReadModel


def open_adapter(name: str, model: ReadModel) -> AdapterFile:
    """Return an adapter for a model. It may run while steps are computed; large arrays stay in mapped files.

    Args:
        name: a PEFT directory.
        model: as its files describe it (`read_spec`).

    Raises:
        ModelNotFound: there is no such adapter.
        CheckpointError: a file is damaged, or does not fit the model; the error names the tensor.
        Unsupported: a tensor or a field of the configuration cannot be applied; the error names it.
    """
    path = Path(name).expanduser()
    if not path.exists():
        raise ModelNotFound(f"there is no such file or directory: {name}", param="adapter")
    return read_peft(path, model)
