"""Pooling of embedding models, read from the files of `sentence-transformers`.

`modules.json` lists the modules that hidden states pass through, one folder each; pooling has a `config.json`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

from ferrum.core.errors import CheckpointError, Unsupported
from ferrum.core.types import Pooling
from ferrum.text.model_files import ModelFiles, read_json_array, read_json_object

_MODULES: Final = "modules.json"
_COMPUTED: Final = {"Transformer", "Pooling", "Normalize", "LogitScore"}
"""Modules that are computed here. Vectors always have length 1, with or without `Normalize`."""

_WITH_CONFIG: Final = ("Pooling", "LogitScore")
"""Modules whose configuration is read; `LogitScore`, of rerankers, in `reranker`."""

_MODES: Final = {
    "mean": Pooling.MEAN,
    "mean_tokens": Pooling.MEAN,
    "mean_sqrt_len_tokens": Pooling.MEAN,  # differs in length only, and vectors are normalised
    "lasttoken": Pooling.LAST,
}
_PREFIX: Final = "pooling_mode_"
_FOLDER: Final = re.compile(r"\w[\w.-]*", re.ASCII)
_CHOOSE: Final = "use --pooling mean or --pooling last"


def module_files(files: ModelFiles) -> list[str]:
    """Return the relative paths of the modules' configurations that are read; a file may be missing.

    Raises:
        CheckpointError: `modules.json` is damaged.
    """
    return [f"{module['path']}/config.json" for module in _modules(files) if _kind(module) in _WITH_CONFIG]


def module_file(files: ModelFiles, kind: str) -> str | None:
    """Return the relative path of the configuration of a kind of module; None if none is listed.

    Raises:
        CheckpointError: as `module_files`.
    """
    return next((f"{each['path']}/config.json" for each in _modules(files) if _kind(each) == kind), None)


def load_pooling(files: ModelFiles) -> Pooling:
    """Return the pooling that the model was trained with (default: mean).

    Raises:
        CheckpointError: a file is damaged or missing.
        Unsupported: the model needs another pooling or module.
    """
    for module in _modules(files):
        if _kind(module) not in _COMPUTED:
            raise Unsupported(f"{_MODULES}: {module['type']}", f"this module is not implemented; {_CHOOSE}")
    name = module_file(files, "Pooling")
    if name is None:
        return Pooling.MEAN
    config = read_json_object(files, name)
    if config is None:
        raise CheckpointError(f"{files.where(name)}: does not exist, but {_MODULES} names it; {_CHOOSE}")
    modes = _modes(config)
    if len(modes) != 1 or modes[0] not in _MODES:
        raise Unsupported(f"{name}: pooling by {' and '.join(modes) or 'nothing'}", _CHOOSE)
    return _MODES[modes[0]]


def _modes(config: Mapping[str, Any]) -> list[str]:
    """Return the enabled modes: from a flag for each, or from `pooling_mode` in newer files."""
    if "pooling_mode" in config:
        named = config["pooling_mode"]
        return [str(mode) for mode in named] if isinstance(named, list) else [str(named)]
    return [name.removeprefix(_PREFIX) for name, on in config.items() if name.startswith(_PREFIX) and on]


def _modules(files: ModelFiles) -> list[dict[str, Any]]:
    path = files.where(_MODULES)
    modules = read_json_array(files, _MODULES) or []
    for module in modules:
        if not isinstance(module, dict) or not isinstance(module.get("type"), str):
            raise CheckpointError(f"{path}: a module must be an object with its `type`")
        folder = module.get("path")
        kind = _kind(module)
        if kind in _WITH_CONFIG and not (isinstance(folder, str) and _FOLDER.fullmatch(folder)):
            raise CheckpointError(f"{path}: the `path` of a {kind} module must be a folder name, not {folder!r}")
    return modules


def _kind(module: Mapping[str, Any]) -> str:
    """Return the class name of a module's type, without its Python path."""
    return str(module["type"]).rpartition(".")[2]


# ---- The pooling that a GGUF file names, as the files of `sentence-transformers` ----

GGUF_FOLDER: Final = "1_Pooling"

_GGUF_MODES: Final = {0: None, 1: "mean", 2: "cls", 3: "lasttoken", 4: "rank"}
"""Modes by their numbers in `pooling_type`; 0 is none."""


def gguf_modules(metadata: Mapping[str, Any]) -> list[dict[str, Any]] | None:
    """Return the content of a `modules.json`, or None if the file names no pooling. Raises CheckpointError."""
    types = {"": "Transformer", GGUF_FOLDER: "Pooling"}
    return None if _gguf_mode(metadata) is None else [{"path": path, "type": kind} for path, kind in types.items()]


def gguf_pooling_config(metadata: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the content of the `config.json` of that module, or None. Raises CheckpointError."""
    mode = _gguf_mode(metadata)
    return None if mode is None else {"pooling_mode": mode}


def _gguf_mode(metadata: Mapping[str, Any]) -> str | None:
    key = f"{metadata.get('general.architecture')}.pooling_type"
    number = metadata.get(key, 0)
    if not isinstance(number, int) or number not in _GGUF_MODES:
        raise CheckpointError(f"GGUF metadata {key} must be one of {', '.join(map(str, _GGUF_MODES))}, not {number!r}")
    return _GGUF_MODES[number]
