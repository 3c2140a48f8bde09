"""From a model's name to its directory or file: the built-in model, a local one, or one of the Hugging Face hub.

Downloads, cache and credentials are the `huggingface_hub` library's, with its environment (HF_HOME, HF_ENDPOINT,
HF_HUB_OFFLINE, HF_TOKEN). It is imported at use: the built-in model does not need it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from difflib import get_close_matches
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

from ferrum.core.errors import CheckpointError, ConfigError, FerrumError, HubUnreachable, ModelGated, ModelNotFound
from ferrum.models.families import decoder_spec
from ferrum.runtime.checkpoint import has_weights, read_config
from ferrum.runtime.gguf_file import open_shards
from ferrum.runtime.hub_gguf import (
    REVISION,
    SUFFIX,
    HubFile,
    fetch,
    files_in,
    files_of,
    hub_file,
    incomplete_snapshot,
    models_in,
    tag_of,
)
from ferrum.runtime.packed import METHOD
from ferrum.runtime.parameters import refuse_quantized
from ferrum.runtime.quantized_checkpoint import METHODS
from ferrum.text.model_files import DirectoryFiles
from ferrum.text.pooling import pooling_file
from ferrum.text.text_config import text_config

if TYPE_CHECKING:
    from huggingface_hub import CachedRepoInfo

BUILT_IN: Final = "ferrum-tiny"

NO_CONFIG: Final = "has no config.json"
NO_WEIGHTS: Final = "has no safetensors weights, and other kinds are not read"

_HUB_ID: Final = re.compile(r"(?P<repo>[\w.-]+/[\w.-]+)" + REVISION, re.ASCII)
_WANTED: Final = ("*.json", "*.safetensors", "*.jinja", "*.txt", "tokenizer.model", "LICENSE*")
# Folders, and Mistral's consolidated file, hold the same weights for other programs.
_UNWANTED: Final = ("*/*.json", "*/*.safetensors", "*/*.txt", "consolidated*.safetensors")


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


def resolve_model(name: str, *, revision: str | None = None, offline: bool | None = None) -> Path:
    """Return the directory of a model, or its GGUF file; a hub model is downloaded first.

    A directory of that name takes precedence over a hub id. Only a hub model's safetensors weights and the files next
    to them are fetched, never pickles. If the hub cannot be reached, a complete cached download is used.

    Args:
        name: "ferrum-tiny", a directory, a GGUF file, `organisation/name[@revision]`, or a GGUF file of the hub (see
            `hub_gguf`).
        revision: branch, tag or commit of a hub model.
        offline: True only uses the cache; otherwise HF_HUB_OFFLINE decides.

    Raises:
        ModelNotFound: unknown model or revision, or an invalid name.
        ModelGated: its owner requires accepting terms.
        HubUnreachable: the model is not cached, and the hub was unreachable or the download failed.
        CheckpointError, Unsupported: the hub's model has no safetensors weights, or its configuration cannot be loaded;
            nothing more is fetched.
        ConfigError: two revisions, or a revision of a model without any.
    """
    found = locate(name, revision)
    if isinstance(found, HubFile):
        return fetch(found, offline=bool(offline))
    return found if isinstance(found, Path) else snapshot(*found, offline=bool(offline))


def locate(name: str, revision: str | None = None) -> Path | HubFile | tuple[str, str | None]:
    """Return a model's directory or file, its GGUF file on the hub, or its repository there and the revision.

    Errors as `resolve_model`.
    """
    if not name:
        raise ModelNotFound("must not be empty; `ferrum list` shows the local models", param="model")
    path = _built_in() if name == BUILT_IN else _path(name)
    if path.is_dir() or (path.suffix == SUFFIX and path.is_file()):
        if revision is not None:
            raise ConfigError(f"{name!r} is on this machine and has no revisions", param="revision")
        return path
    if name == BUILT_IN:
        raise ModelNotFound(f"{name} is missing from this installation: install ferrum again", param="model")
    file = None if path.exists() else hub_file(name)
    if file is not None:
        return replace(file, revision=_one_revision(name, file.revision, revision))
    found = _HUB_ID.fullmatch(name)
    if found is None or path.exists():
        reason = (
            "is neither a directory nor a .gguf file"
            if path.exists()
            else "is neither a directory nor organisation/name on the hub"
        )
        raise ModelNotFound(f"{name!r} {reason}{_suggestion(name, _sibling_folders(path))}", param="model")
    return found["repo"], _one_revision(name, found["revision"], revision)


def _one_revision(name: str, named: str | None, given: str | None) -> str | None:
    """Return the revision that the name or the caller gives. Raises ConfigError for two."""
    if named is not None and given is not None:
        raise ConfigError(f"{name!r} already names a revision", param="revision")
    return given or named


def pull(name: str, *, revision: str | None = None) -> LocalModel:
    """Download a model, so that it loads without a network. Errors as `resolve_model`."""
    return _describe(name, resolve_model(name, revision=revision))


def list_models() -> list[LocalModel]:
    """Return the built-in model and the complete models in the hub's cache, by name.

    Raises:
        ConfigError: the cache is not a directory.
    """
    from huggingface_hub import scan_cache_dir
    from huggingface_hub.errors import CacheNotFound

    models = [_describe(BUILT_IN, _built_in())] if _built_in().is_dir() else []
    try:
        repos = scan_cache_dir().repos
    except CacheNotFound:
        return models
    except ValueError as error:
        raise ConfigError(f"is not a cache of the hub: {error}", param="HF_HUB_CACHE") from error
    cached = {
        repo.repo_id: _current_snapshot(repo) for repo in repos if repo.repo_type == "model"
    } | _padded_snapshots()
    for name, path in sorted(cached.items()):
        if path is not None and _is_model(path):
            models.append(_describe(name, path))
        elif path is not None:
            models += _describe_files(name, path)
    return models


def _padded_snapshots() -> dict[str, Path]:
    """Return the cached models that the hub library rejects for white space in their reference."""
    from huggingface_hub import constants

    folders = Path(constants.HF_HUB_CACHE).glob("models--*--*")
    names = [folder.name.removeprefix("models--").replace("--", "/", 1) for folder in folders]
    return {name: path for name in names if (path := _padded_snapshot(name, None)) is not None}


def _padded_snapshot(repo: str, revision: str | None) -> Path | None:
    """Return the snapshot that a reference names, if white space surrounds the commit: the hub library keeps it."""
    from huggingface_hub import constants

    folder = Path(constants.HF_HUB_CACHE) / f"models--{repo.replace('/', '--')}"
    try:
        written = (folder / "refs" / (revision or "main")).read_text()
    except (OSError, UnicodeDecodeError):
        return None
    path = folder / "snapshots" / written.strip()
    return path if written.strip() not in ("", written) and path.is_dir() else None


def _current_snapshot(repo: CachedRepoInfo) -> Path | None:
    """Return the snapshot of the main branch, which the bare name means offline."""
    main = repo.refs.get("main")
    return None if main is None else main.snapshot_path


def _path(name: str) -> Path:
    """Return the path that a name may be. Raises ModelNotFound if the system cannot look it up."""
    try:
        name.encode()
        path = Path(name).expanduser()
        path.stat()
    except (FileNotFoundError, NotADirectoryError):
        pass
    except UnicodeEncodeError as error:
        shown = name.encode(errors="backslashreplace").decode()
        raise ModelNotFound(f"{shown!r} is not a name in UTF-8: rename the directory", param="model") from error
    except (OSError, RuntimeError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise ModelNotFound(f"{name!r} cannot be looked up: {reason}", param="model") from error
    return path


def _sibling_folders(path: Path) -> list[str]:
    """Return the folders of its parent directory, if readable."""
    with suppress(OSError):
        return [str(each) for each in path.parent.iterdir() if each.is_dir()]
    return []


def _built_in() -> Path:
    # Not by importlib.resources: an editable install has several roots, and the data is next to the source.
    return Path(__file__).parents[1] / "assets" / BUILT_IN


def _is_model(directory: Path) -> bool:
    return (directory / "config.json").is_file() and has_weights(directory)


def _describe(name: str, path: Path) -> LocalModel:
    if path.is_file():
        return _file(name, path.parent, [each.path.name for each in open_shards(path)])
    try:
        architectures = read_config(path).get("architectures")
    except CheckpointError:
        architectures = None
    family = str(architectures[0]) if isinstance(architectures, list) and architectures else ""
    return LocalModel(name, path, sum(each.stat().st_size for each in path.rglob("*") if each.is_file()), family)


def _describe_files(repo: str, directory: Path) -> list[LocalModel]:
    """Return the GGUF models of a cached repository."""
    models = models_in(files_in(directory))
    return [_file(f"{repo}:{tag_of(model)}", directory, parts) for model, parts in models.items()]


def _file(name: str, directory: Path, parts: list[str]) -> LocalModel:
    paths = [directory / part for part in parts]
    return LocalModel(name, paths[0], sum(path.stat().st_size for path in paths), "GGUF")


def _suggestion(name: str, others: Iterable[str] = ()) -> str:
    """Return the end of a message: similar names, or where to look."""
    here: list[str] = []
    with suppress(ConfigError):  # `list_models` reports an invalid cache
        here = [model.name for model in list_models()]
    close = get_close_matches(name, [*here, *others], n=3)
    return f"; did you mean {' or '.join(close)}?" if close else "; `ferrum list` shows the local models"


def snapshot(repo: str, revision: str | None, *, offline: bool) -> Path:
    """Return the hub library's snapshot. Errors as `resolve_model`."""
    try:
        return _fetch(repo, revision, offline=offline)
    except HubUnreachable:
        padded = _padded_snapshot(repo, revision)
        if padded is None:
            raise
        return _fetch(repo, padded.name, offline=True)


def _fetch(repo: str, revision: str | None, *, offline: bool) -> Path:
    from huggingface_hub import constants, snapshot_download
    from huggingface_hub.errors import LocalEntryNotFoundError

    with hub_errors(repo, revision) as named:
        fetch = partial(snapshot_download, repo, revision=revision, local_files_only=offline)
        if not _has_sound_config(repo, revision):  # before the weights, which may take a hundred GB
            configured = Path(fetch(allow_patterns=["config.json"]))
            if not (configured / "config.json").is_file() and (file := _only_gguf(repo, revision, offline=offline)):
                return file
            _refuse(configured, named)
        try:
            path = Path(fetch(allow_patterns=list(_WANTED), ignore_patterns=list(_UNWANTED)))
        except LocalEntryNotFoundError as error:
            path = _usable_snapshot(error)
        if (pooling := pooling_file(DirectoryFiles(path))) is not None:  # the only file in a folder that is read
            path = Path(fetch(allow_patterns=[pooling]))
    if not any(path.glob("*.safetensors")):
        if offline or constants.HF_HUB_OFFLINE:
            reason = f"{named!r} is not complete in the local cache: it has no safetensors weights there"
            raise HubUnreachable(f"{reason}; run `ferrum pull {named}` with a connection", param="model")
        raise CheckpointError(f"{named!r} {NO_WEIGHTS}")
    return path


def _only_gguf(repo: str, revision: str | None, *, offline: bool) -> Path | None:
    """Return the preferred GGUF file of a repository without a configuration; None if it has no GGUF file."""
    wanted = HubFile(repo, revision=revision)
    return fetch(wanted, offline=offline) if models_in(files_of(wanted, offline=offline)) else None


def _has_sound_config(repo: str, revision: str | None) -> bool:
    """Whether the cache holds the configuration of a model that would load; the hub is not asked."""
    from huggingface_hub import try_to_load_from_cache

    cached = try_to_load_from_cache(repo, "config.json", revision=revision)
    if isinstance(cached, str):
        with suppress(FerrumError):
            _refuse(Path(cached).parent, repo)
            return True
    return False


def _refuse(directory: Path, named: str) -> None:
    """Raise the errors of loading a model with this configuration."""
    if not (directory / "config.json").is_file():
        raise CheckpointError(f"{named!r} {NO_CONFIG}")
    config = read_config(directory)
    decoder_spec(config)
    refuse_quantized(text_config(config), None, METHOD, *METHODS)


def _usable_snapshot(error: Exception) -> Path:
    """Return a directory that the hub library calls incomplete if only unused files are missing.

    Another program may have fetched it without its licence, for example. Raises the error if more is missing.
    """
    path = incomplete_snapshot(error)
    if path is None or not _is_model(path):
        raise error
    if any((path / name).is_file() for name in ("tokenizer.json", "tokenizer.model")):
        return path
    raise error


@contextmanager
def hub_errors(repo: str, revision: str | None) -> Iterator[str]:
    """Raise the hub library's errors as ours; yields the model's name for messages. Raises as `resolve_model`."""
    from huggingface_hub.errors import (
        GatedRepoError,
        HfHubHTTPError,
        HFValidationError,
        LocalEntryNotFoundError,
        RepositoryNotFoundError,
        RevisionNotFoundError,
    )

    # The root error of the library's HTTP client, which depends on its version.
    transport: type[Exception] = HfHubHTTPError.__bases__[0]
    named = repo if revision is None else f"{repo}@{revision}"
    try:
        yield named
    except HFValidationError as error:
        raise ModelNotFound(f"{repo!r} is not a valid hub id: {error}", param="model") from error
    except GatedRepoError as error:
        raise ModelGated(
            f"{repo!r} is gated: accept its terms on its hub page, then log in (`hf auth login`, or HF_TOKEN)",
            param="model",
        ) from error
    except RepositoryNotFoundError as error:
        reason = f"{repo!r} is not on the hub, or private: log in to an account that may read it"
        raise ModelNotFound(reason + _suggestion(repo), param="model") from error
    except RevisionNotFoundError as error:
        raise ModelNotFound(f"{repo!r} has no revision {revision!r}", param="revision") from error
    except LocalEntryNotFoundError as error:
        found = incomplete_snapshot(error)
        lacks = "" if found is None or has_weights(found) else ": it has no safetensors weights there"
        reason = f"{named!r} is not complete in the local cache{lacks}, and the hub is unreachable"
        raise HubUnreachable(f"{reason} ({error.__cause__ or 'offline'}){_suggestion(repo)}", param="model") from error
    except (transport, OSError) as error:
        reason = f"the download of {named!r} did not finish; run it again to resume: {error}"
        raise HubUnreachable(reason, param="model") from error
