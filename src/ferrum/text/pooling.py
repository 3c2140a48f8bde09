"""How a model that was published for embeddings pools its hidden states, by the files of `sentence-transformers`.

`modules.json` lists what the states go through, one folder each; the pooling's has a `config.json`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from ferrum.core.errors import CheckpointError, Unsupported
from ferrum.core.types import Pooling
from ferrum.text.json_files import read_json_array, read_json_object

_MODULES: Final = "modules.json"
_COMPUTED: Final = {"Transformer", "Pooling", "Normalize"}
"""Every vector has the length 1 here, whether the last of these is listed or not."""

_MODES: Final = {
    "mean": Pooling.MEAN,
    "mean_tokens": Pooling.MEAN,
    "mean_sqrt_len_tokens": Pooling.MEAN,  # another length, and lengths become 1
    "lasttoken": Pooling.LAST,
}
_PREFIX: Final = "pooling_mode_"
_FOLDER: Final = re.compile(r"\w[\w.-]*", re.ASCII)
_CHOOSE: Final = "choose `mean` or `last`"


def pooling_file(directory: str | Path) -> str | None:
    """The file with the model's pooling, relative to its directory, whether it is there or not; None: it has none.

    Raises:
        CheckpointError: `modules.json` is damaged.
    """
    for module in _modules(Path(directory) / _MODULES):
        if _kind(module) == "Pooling":
            return f"{module['path']}/config.json"
    return None


def load_pooling(directory: str | Path) -> Pooling:
    """The pooling that the model was trained with; the mean where its files say nothing.

    Raises:
        CheckpointError: a file is damaged or missing.
        Unsupported: its vectors are made in a way that is not computed here.
    """
    for module in _modules(Path(directory) / _MODULES):
        if _kind(module) not in _COMPUTED:
            raise Unsupported(f"{_MODULES}: {module['type']}", f"embeddings go through no such module; {_CHOOSE}")
    name = pooling_file(directory)
    if name is None:
        return Pooling.MEAN
    path = Path(directory) / name
    config = read_json_object(path)
    if config is None:
        raise CheckpointError(f"{path}: is missing, though {_MODULES} names it; {_CHOOSE}")
    modes = _modes(config)
    if len(modes) != 1 or modes[0] not in _MODES:
        raise Unsupported(f"{name}: pooling by {' and '.join(modes) or 'nothing'}", _CHOOSE)
    return _MODES[modes[0]]


def _modes(config: Mapping[str, Any]) -> list[str]:
    """Those that are on: of a flag each, or by one name, as newer files have it."""
    if "pooling_mode" in config:
        named = config["pooling_mode"]
        return [str(mode) for mode in named] if isinstance(named, list) else [str(named)]
    return [name.removeprefix(_PREFIX) for name, on in config.items() if name.startswith(_PREFIX) and on]


def _modules(path: Path) -> list[dict[str, Any]]:
    modules = read_json_array(path) or []
    for module in modules:
        if not isinstance(module, dict) or not isinstance(module.get("type"), str):
            raise CheckpointError(f"{path}: a module must be an object with its `type`")
        folder = module.get("path")
        if _kind(module) == "Pooling" and not (isinstance(folder, str) and _FOLDER.fullmatch(folder)):
            raise CheckpointError(f"{path}: the path of a pooling must be the name of a folder, not {folder!r}")
    return modules


def _kind(module: Mapping[str, Any]) -> str:
    """The class that a module's type names, wherever the library has it."""
    return str(module["type"]).rpartition(".")[2]
