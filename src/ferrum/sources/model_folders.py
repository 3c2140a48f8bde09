"""Models in folders of GGUF files and in the caches of other programs. Everything is read, nothing is written.

`PLACES` is the one list of them. A place gives each model the name that its own program uses:

    --models-dir   F.gguf, FOLDER:TAG, FOLDER/F.gguf, or FOLDER, which is a model's directory
    llama.cpp      ORG/REPO:TAG, else the file's name in the cache
    LM Studio      ORG/REPO:TAG or ORG/REPO/F.gguf
    ollama         NAME:TAG, see `blobs_of`
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from ferrum.core.config import CacheVariables
from ferrum.core.errors import ConfigError
from ferrum.core.option_fields import path_of
from ferrum.sources.gguf_choice import PREFERRED, is_whole, models_below, models_in, names_in
from ferrum.sources.gguf_file import is_model
from ferrum.sources.hub_cache import snapshots_in
from ferrum.sources.loadable import is_loadable
from ferrum.sources.readable_files import entries_of, folders_below, is_file, is_folder, text_of

# ---- Models that ollama has downloaded: a manifest per name, and blobs by their digests ----
#
#     manifests/HOST/NAMESPACE/NAME/TAG    JSON with layers: a media type and a digest each     blobs/sha256-HEX
# a layer; the one of a model is a GGUF file
#
# Layers for other programs (templates, parameters) are not read. A model with an adapter is left out: without it, its
# answers would be others.

LATEST: Final = "latest"
"""The tag that a name without one means."""

_HOST: Final = "registry.ollama.ai"
_NAMESPACE: Final = "library"
_MODEL: Final = "application/vnd.ollama.image.model"
_ADAPTER: Final = "application/vnd.ollama.image.adapter"
_PROJECTOR: Final = "application/vnd.ollama.image.projector"
_DIGEST: Final = re.compile(r"sha256[:-](?P<hex>[0-9a-fA-F]{64})")


def blobs_of(root: Path) -> Iterator[tuple[str, Path]]:
    """Yield the name of each model in ollama's folder, as ollama shows it, and the path of its GGUF file."""
    manifests = root / "manifests"
    for path in _entries(manifests, 3):
        if is_file(path):
            blob = _blob(root, text_of(path))
            if blob is not None and is_model(blob):
                yield _shown(path.relative_to(manifests).parts), blob


def _entries(folder: Path, depth: int) -> Iterator[Path]:
    """Yield the entries a number of folders down."""
    for path in entries_of(folder):
        if not depth:
            yield path
        elif is_folder(path):
            yield from _entries(path, depth - 1)


def _shown(parts: tuple[str, ...]) -> str:
    """Return a model's name without the parts that may be left out."""
    host, namespace, name, tag = parts
    at = (
        "" if (host, namespace) == (_HOST, _NAMESPACE) else f"{namespace}/" if host == _HOST else f"{host}/{namespace}/"
    )
    return f"{at}{name}:{tag}"


def _blob(root: Path, manifest: str | None) -> Path | None:
    """Return the path of the model's layer if the manifest has just one, and no adapter."""
    layers = _layers(root, manifest)
    found = layers.get(_MODEL, [])
    return found[0] if len(found) == 1 and _ADAPTER not in layers else None


def _layers(root: Path, manifest: str | None) -> dict[str, list[Path | None]]:
    """Return the paths of a manifest's layers by their media types, None for an invalid digest."""
    paths = dict[str, list[Path | None]]()
    try:
        for layer in json.loads(manifest or "null")["layers"]:
            found = _DIGEST.fullmatch(layer["digest"])
            path = None if found is None else root / "blobs" / f"sha256-{found['hex']}"
            paths.setdefault(layer["mediaType"], []).append(path)
    except (ValueError, TypeError, KeyError, RecursionError):
        return {}
    return paths


def projector_blob(model: Path) -> Path | None:
    """Return the projector of a model in ollama's folder, by the first manifest that names both; None without one."""
    root = model.parent.parent
    if model.parent.name == "blobs":
        for path in _entries(root / "manifests", 3):
            layers = _layers(root, text_of(path))
            projectors = layers.get(_PROJECTOR, [])
            if layers.get(_MODEL) == [model] and len(projectors) == 1:
                return projectors[0]
    return None


@dataclass(frozen=True, slots=True)
class FoundModel:
    """A model in a folder.

    Attributes:
        name: as it is typed.
        paths: its directory, or the parts of its file, first part first.
    """

    name: str
    paths: tuple[Path, ...]


@dataclass(frozen=True, slots=True)
class Place:
    """A kind of folder with models.

    Attributes:
        folders: where the variables of the environment, and the home directory, say that they are.
        models: the models in one of them.
    """

    folders: Callable[[CacheVariables], list[Path]]
    models: Callable[[Path], Iterable[FoundModel]]


def models_directory(given: str | None) -> Path | None:
    """Return the folder of the option `models_dir`, else that of its variable. Raises ConfigError if it is none."""
    variable = CacheVariables.from_environment().models_dir
    param, text = ("models_dir", given) if given is not None else ("FERRUM_MODELS_DIR", variable)
    if text is None:
        return None
    folder = path_of(param, text)
    if not is_folder(folder):
        raise ConfigError(f"must be a folder with models, not {text}", param=param)
    return folder


def models_of_others() -> Iterator[FoundModel]:
    """Yield the models in the caches of other programs, in the order in which names are looked up."""
    variables = CacheVariables.from_environment()
    for place in PLACES:
        with suppress(RuntimeError):  # the home directory is unknown
            for folder in place.folders(variables):
                yield from place.models(folder)


def find(name: str, models: Iterable[FoundModel]) -> Path | None:
    """Return the path of the model that a name means, or None.

    It is the one of this name; else the one of this name in letters of another case; else, if the name lacks the tag,
    the one with the tag `latest`, the preferred one, or the only one.
    """
    models = list(models)
    exact = [model for model in models if model.name == name] or [
        model for model in models if model.name.lower() == name.lower()
    ]
    if exact:
        return exact[0].paths[0]
    tagged = {model.name.rpartition(":")[2].upper(): model for model in models if model.name.rpartition(":")[0] == name}
    for tag in (LATEST.upper(), *PREFERRED):
        if tag in tagged:
            return tagged[tag].paths[0]
    of_name = [model for model in models if model.name.startswith((f"{name}:", f"{name}/"))]
    return of_name[0].paths[0] if len(of_name) == 1 else None


def models_in_folder(root: Path) -> Iterator[FoundModel]:
    """Yield the models of a folder: GGUF files, and directories of other models."""
    for folder in folders_below(root):
        if folder != root and is_loadable(folder):
            yield FoundModel(folder.relative_to(root).as_posix(), (folder,))
    yield from gguf_models_in_folder(root)


def gguf_models_in_folder(root: Path) -> Iterator[FoundModel]:
    """Yield the GGUF models of a folder: files, and folders with files."""
    by_folder: dict[str, list[str]] = {}
    for file in models_below(root):
        by_folder.setdefault(file.rpartition("/")[0], []).append(file)
    for folder, files in by_folder.items():
        if folder:
            names = names_in(folder, [file.removeprefix(f"{folder}/") for file in files])
            for name, parts in names.items():
                yield FoundModel(name, tuple(root / folder / part for part in parts))
        else:
            for parts in models_in(files).values():
                yield FoundModel(parts[0], tuple(root / part for part in parts))


def hub_models(root: Path) -> Iterator[FoundModel]:
    """Yield the models in a cache of the hub: directories and GGUF files, of every revision that is there."""
    for snapshot in snapshots_in(root):
        if is_loadable(snapshot.path):
            yield FoundModel(snapshot.repo + snapshot.end, (snapshot.path,))
        for name, parts in names_in(snapshot.repo, models_below(snapshot.path)).items():
            yield FoundModel(name + snapshot.end, tuple(snapshot.path / part for part in parts))


def llama_cpp_models(root: Path) -> Iterator[FoundModel]:
    """Yield the models that llama.cpp has downloaded: a cache of the hub, or flat files `ORG_REPO_FILE`.

    Files `manifest=ORG=REPO=TAG.json` say where the name of the organisation ends.
    """
    yield from hub_models(root)
    repos: dict[str, dict[str, Path]] = {}
    entries = [path for path in entries_of(root) if is_file(path)]
    manifests = [words for path in entries if len(words := path.name.split("=")) == 4 and words[0] == "manifest"]
    prefixes = {f"{org}_{repo}_": f"{org}/{repo}" for _, org, repo, _ in manifests}
    for path in entries:
        prefix = max((each for each in prefixes if path.name.startswith(each)), key=len, default="")
        repos.setdefault(prefix, {})[path.name.removeprefix(prefix)] = path
    for prefix, files in repos.items():
        names = names_in(prefixes[prefix], files) if prefix else {one[0]: one for one in models_in(files).values()}
        for name, parts in names.items():
            if is_whole(parts) and is_model(files[parts[0]]):
                yield FoundModel(name, tuple(files[part] for part in parts))


def _llama_cpp_folders(variables: CacheVariables) -> list[Path]:
    if variables.llama_cache:
        return [Path(variables.llama_cache)]
    if sys.platform == "darwin":
        return [Path.home() / "Library" / "Caches" / "llama.cpp"]
    return [Path(variables.xdg_cache_home or Path.home() / ".cache") / "llama.cpp"]


def _lm_studio_folders(variables: CacheVariables) -> list[Path]:  # noqa: ARG001 - it has files instead
    """Return LM Studio's folders of models: those of its settings, else those that its versions use."""
    pointer = (text_of(Path.home() / ".lmstudio-home-pointer") or "").strip()
    homes = [Path(pointer)] if pointer else []
    homes += [Path.home() / ".lmstudio", Path.home() / ".cache" / "lm-studio"]
    folders = []
    for home in homes:
        chosen = _field(home / "settings.json", "downloadsFolder")
        folders.append(Path(chosen) if isinstance(chosen, str) and chosen else home / "models")
    return list(dict.fromkeys(folders))


def _field(path: Path, name: str) -> Any:
    """Return a field of the object in a JSON file, or None."""
    try:
        value = json.loads(text_of(path) or "null")
    except (ValueError, RecursionError):
        return None
    return value.get(name) if isinstance(value, dict) else None


def _ollama_folders(variables: CacheVariables) -> list[Path]:
    if variables.ollama_models:
        return [Path(variables.ollama_models)]
    return [Path.home() / ".ollama" / "models", Path("/usr/share/ollama/.ollama/models")]


def ollama_models(root: Path) -> Iterator[FoundModel]:
    """Yield the models of ollama."""
    for name, blob in blobs_of(root):
        yield FoundModel(name, (blob,))


PLACES: Final = (
    Place(_llama_cpp_folders, llama_cpp_models),
    Place(_lm_studio_folders, gguf_models_in_folder),
    Place(_ollama_folders, ollama_models),
)
"""The caches of other programs, in the order in which names are looked up."""
