"""The models on this machine that load without a network: their names, for `ferrum list` and for suggestions."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Final

from ferrum.core.errors import CheckpointError, ConfigError, ModelNotFound
from ferrum.sources.checkpoint import read_config
from ferrum.sources.gguf_choice import Wanted, choose, is_gguf_name, models_below
from ferrum.sources.gguf_file import is_gguf, open_shards
from ferrum.sources.hub_cache import hub_folder
from ferrum.sources.model_folders import FoundModel, hub_models, models_directory, models_in_folder, models_of_others
from ferrum.sources.readable_files import files_below, is_file, is_folder


@dataclass(frozen=True, slots=True)
class LocalModel:
    """A model that loads without a network.

    Attributes:
        name: what `resolve_model` takes.
        path: its directory or file.
        nbytes: bytes of its files.
        family: the architecture in its configuration; empty if that cannot be read.
    """

    name: str
    path: Path
    nbytes: int
    family: str


def list_models(models_dir: str | None = None) -> list[LocalModel]:
    """Return the models on this machine by the names that load them.

    The order is that in which names are looked up: the built-in model, those of `models_dir`, the hub's cache, and the
    caches of other programs. A name that an earlier model has, or that is a path here, is replaced by the model's path.

    Raises:
        ConfigError: the hub's cache or `models_dir` is no folder.
    """
    models = [describe(BUILT_IN, built_in())] if built_in().is_dir() else []
    names = {BUILT_IN}
    for found in _found(models_dir):
        taken = found.name in names or _is_path(found.name)
        name = str(found.paths[0].absolute()) if taken else found.name
        if name not in names:
            names.add(name)
            models.append(_described(FoundModel(name, found.paths)))
    return models


def _found(models_dir: str | None) -> Iterator[FoundModel]:
    folder = models_directory(models_dir)
    if folder is not None:
        yield from sorted(models_in_folder(folder), key=lambda model: model.name)
    cache = hub_folder()
    if is_file(cache):
        raise ConfigError(f"is not a cache of the hub, but a file: {cache}", param="HF_HUB_CACHE")
    yield from sorted(hub_models(cache), key=lambda model: model.name)
    yield from models_of_others()


def _is_path(name: str) -> bool:
    """Whether a path here takes precedence over a name."""
    try:
        return existing(Path(name)) is not None
    except ModelNotFound:  # several files
        return True
    except (OSError, ValueError):
        return False


def describe(name: str, path: Path) -> LocalModel:
    """Return the model in a directory or file."""
    parts = (path,) if path.is_dir() else tuple(shard.path for shard in open_shards(path))
    return _described(FoundModel(name, parts))


def _described(model: FoundModel) -> LocalModel:
    path = model.paths[0]
    if not is_folder(path):
        return LocalModel(model.name, path, _size(model.paths), "GGUF")
    try:
        architectures = read_config(path).get("architectures")
    except CheckpointError:
        architectures = None
    family = str(architectures[0]) if isinstance(architectures, list) and architectures else ""
    return LocalModel(model.name, path, _size(files_below(path)), family)


def _size(paths: Iterable[Path]) -> int:
    total = 0
    for path in paths:
        with suppress(OSError):  # deleted since
            total += path.stat().st_size
    return total


def suggestion(name: str, models_dir: str | None = None) -> str:
    """Return the end of a message: similar names, or where to look."""
    here: list[str] = []
    with suppress(ConfigError):  # `list_models` reports an invalid cache
        here = [model.name for model in list_models(models_dir)]
    tagged = [each for each in here if each.startswith((f"{name}:", f"{name}/"))]
    return _meant(tagged[:3] or get_close_matches(name, here, n=3))


def suggested_path(path: Path) -> str:
    """Return the end of a message: similar names in the folder of a path that does not exist, or where to look."""
    names: list[str] = []
    with suppress(OSError):
        names = sorted(each.name for each in path.parent.iterdir() if is_folder(each) or is_gguf_name(each.name))
    return _meant([str(path.with_name(name)) for name in get_close_matches(path.name, names, n=3)])


def _meant(names: list[str]) -> str:
    return f"; did you mean {' or '.join(names)}?" if names else "; `ferrum list` shows the local models"


# ---- Models that a path or the package itself holds: the built-in one, directories and GGUF files ----

BUILT_IN: Final = "ferrum-tiny"


def built_in() -> Path:
    """Return the directory of the built-in model."""
    # Not by importlib.resources: an editable install has several roots, and the data is next to the source.
    return Path(__file__).parents[1] / "assets" / BUILT_IN


def existing(path: Path) -> Path | None:
    """Return a directory, a GGUF file, or the file of DIRECTORY:TAG; None for any other path. Raises ModelNotFound."""
    if path.is_dir() or (path.is_file() and (is_gguf_name(path.name) or is_gguf(path))):
        return path
    folder, _, tag = str(path).rpartition(":")
    if folder and tag and not path.exists() and Path(folder).is_dir():
        files = models_below(Path(folder))
        return Path(folder) / choose(Wanted(folder, tag), files)[0] if files else None
    return None
