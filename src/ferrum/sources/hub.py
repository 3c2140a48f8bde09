"""From a model's name to its directory or file: the built-in model, a local one, or one of the Hugging Face hub.

Downloads, cache and credentials are the `huggingface_hub` library's, with its environment (HF_HOME, HF_ENDPOINT,
HF_HUB_OFFLINE, HF_TOKEN). It is imported at use: the built-in model does not need it.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Final

from ferrum.core.errors import CheckpointError, ConfigError, FerrumError, HubUnreachable, ModelNotFound
from ferrum.core.logging import warn_once
from ferrum.sources.gguf_choice import Wanted, choose, gguf_below, is_gguf_name, models_below, models_in
from ferrum.sources.hub_cache import MAIN, snapshot_of
from ferrum.sources.hub_files import (
    HubName,
    cached_file,
    fetch,
    files_of,
    hub_errors,
    hub_name,
    incomplete_snapshot,
    transport_error,
)
from ferrum.sources.loadable import has_model_files, refuse_unloadable
from ferrum.sources.local_models import BUILT_IN as BUILT_IN
from ferrum.sources.local_models import LocalModel, built_in, describe, existing, suggested_path, suggestion
from ferrum.sources.model_folders import find, models_directory, models_in_folder, models_of_others
from ferrum.text.model_files import DirectoryFiles
from ferrum.text.pooling import module_files

NO_WEIGHTS: Final = "has no safetensors weights, and other kinds are not read"

_WANTED: Final = ("*.json", "*.safetensors", "*.jinja", "*.txt", "tokenizer.model", "LICENSE*")
# Folders, and Mistral's consolidated file, hold the same weights for other programs.
_UNWANTED: Final = ("*/*.json", "*/*.safetensors", "*/*.txt", "consolidated*.safetensors")

_BELOW: Final = 1
"""Folders below a model's directory in which its GGUF file may be, such as one per format."""


def resolve_model(
    name: str, *, revision: str | None = None, offline: bool | None = None, models_dir: str | None = None
) -> Path:
    """Return the directory of a model, or its GGUF file; a hub model is downloaded first.

    Only a hub model's safetensors weights and the files next to them are fetched, never pickles; without such weights,
    its preferred GGUF file. If the hub cannot be reached, a complete cached download is used.

    Args:
        name: see `locate`.
        revision: branch, tag or commit of a hub model.
        offline: True only uses the cache; otherwise HF_HUB_OFFLINE decides.
        models_dir: see `locate`.

    Raises:
        ModelNotFound: unknown model or revision, or an invalid name.
        ModelGated: its owner requires accepting terms.
        HubUnreachable: the model is not cached, and the hub was unreachable or the download failed.
        CheckpointError, Unsupported: the hub's model has no safetensors weights, or its configuration cannot be loaded;
            nothing more is fetched.
        ConfigError: two revisions, or a revision of a model without any.
    """
    return fetched(locate(name, revision, models_dir=models_dir), offline=bool(offline))


def fetched(found: Path | HubName, *, offline: bool = False) -> Path:
    """Return the directory or GGUF file of what `locate` has found. Errors as `resolve_model`."""
    if isinstance(found, HubName):
        return snapshot(found, offline=offline) if found.whole else fetch(found, offline=offline)
    if found.is_file() or has_model_files(found) or any(found.glob("*.safetensors")):
        return found
    files = models_below(found, _BELOW)
    if files:
        return found / choose(Wanted(str(found)), files)[0]
    others = [] if (found / "config.json").exists() else gguf_below(found, _BELOW)
    if others:
        problem = f"{str(found)!r} holds no complete model, only {', '.join(sorted(others)[:3])}"
        raise ModelNotFound(f"{problem}; `ferrum list` shows the local models", param="model")
    return found


def locate(
    name: str, revision: str | None = None, *, models_dir: str | None = None, elsewhere: bool = True
) -> Path | HubName:
    """Return the directory or file that a name means, or the name on the hub.

    The first of these counts: the built-in model, an existing path, a model in `models_dir`, one in the hub's cache,
    one in the cache of another program, and one on the hub.

    Args:
        name: "ferrum-tiny", a directory, a GGUF file, DIRECTORY:TAG, a name as `ferrum list` shows it, or a name on the
            hub (see `hub_files`).
        revision: branch, tag or commit of a hub model.
        models_dir: folder of models; None takes FERRUM_MODELS_DIR.
        elsewhere: also look into `models_dir` and the caches of other programs.

    Errors as `resolve_model`.
    """
    if not name:
        raise ModelNotFound("must not be empty; `ferrum list` shows the local models", param="model")
    if models_dir is not None:
        models_directory(models_dir)  # refused even if the name is found elsewhere
    path = built_in() if name == BUILT_IN else _path(name)
    here = existing(path)
    if here is None and name == BUILT_IN:
        raise ModelNotFound(f"{name} is missing from this installation: install ferrum again", param="model")
    if elsewhere and not path.exists():
        here = here or _in_models_directory(name, models_dir)
    if here is not None:
        if revision is not None:
            raise ConfigError(f"{name!r} is on this machine and has no revisions", param="revision")
        return here
    remote = None if path.exists() else hub_name(name)
    if remote is not None:
        remote = replace(remote, revision=_one_revision(name, remote.revision, revision))
        if _is_cached(remote):
            return remote
    if elsewhere and not path.exists() and (remote is None or remote.revision is None):
        other = find(name, models_of_others())
        if other is not None:
            return other
    if remote is None or "/" not in remote.repo or _is_path(name, path):
        raise _not_found(name, path, models_dir)
    return remote


def _in_models_directory(name: str, models_dir: str | None) -> Path | None:
    folder = models_directory(models_dir)
    if folder is None:
        return None
    inside = not Path(name).is_absolute() and ".." not in Path(name).parts
    return find(name, models_in_folder(folder)) or (existing(folder / name) if inside else None)


def _is_cached(wanted: HubName) -> bool:
    """Whether the hub's cache has the model of a name."""
    folder = snapshot_of(wanted.repo, wanted.revision)
    if folder is None:
        return False
    if wanted.whole:
        return has_model_files(folder) or bool(models_below(folder))
    with suppress(ModelNotFound):  # several files, which `fetch` names
        return cached_file(wanted) is not None
    return True


def _is_path(name: str, path: Path) -> bool:
    """Whether a name that no path has was meant as one."""
    return name.startswith(("/", ".", "~")) or (is_gguf_name(name) and path.parent.is_dir())


def _not_found(name: str, path: Path, models_dir: str | None) -> ModelNotFound:
    """Return the error of a name that means nothing."""
    if path.exists():
        return ModelNotFound(f"{name!r} is neither a directory nor a GGUF file{suggested_path(path)}", param="model")
    if _is_path(name, path):
        return ModelNotFound(f"there is no such file or directory: {name}{suggested_path(path)}", param="model")
    reason = f"{name!r} is neither a directory nor organisation/name on the hub"
    return ModelNotFound(f"{reason}{suggestion(name, models_dir)}", param="model")


def _one_revision(name: str, named: str | None, given: str | None) -> str | None:
    """Return the revision that the name or the caller gives. Raises ConfigError for two."""
    if named is not None and given is not None:
        raise ConfigError(f"{name!r} already names a revision", param="revision")
    return given or named


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


def snapshot(wanted: HubName, *, offline: bool) -> Path:
    """Return the directory of a repository, or its preferred GGUF file if it has no safetensors weights.

    Errors as `resolve_model`.
    """
    try:
        return _fetch(wanted, offline=offline)
    except HubUnreachable:
        folder = snapshot_of(wanted.repo, wanted.revision)
        if folder is not None:  # the hub library keeps white space in references
            with suppress(HubUnreachable):
                return _fetch(replace(wanted, revision=folder.name), offline=True)
        file = cached_file(wanted)
        if file is None:
            raise
        return file


def _fetch(wanted: HubName, *, offline: bool) -> Path:
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import LocalEntryNotFoundError

    repo, revision = wanted.repo, wanted.revision
    with hub_errors(repo, revision) as named:
        fetch = partial(snapshot_download, repo, revision=revision, local_files_only=offline)
        if not _has_sound_config(repo, revision):  # before the weights, which may take a hundred GB
            configured = Path(fetch(allow_patterns=["config.json"]))
            if not (configured / "config.json").is_file() and (file := preferred_gguf(wanted, offline=offline)):
                return file
            try:
                refuse_unloadable(configured, named)
            except FerrumError:
                with suppress(HubUnreachable):
                    if (file := preferred_gguf(wanted, offline=offline)) is not None:
                        return file
                raise
        try:
            path = Path(fetch(allow_patterns=list(_WANTED), ignore_patterns=list(_UNWANTED)))
        except LocalEntryNotFoundError as error:
            path = _usable_snapshot(error)
        if wanted_modules := module_files(DirectoryFiles(path)):  # the only files in folders that are read
            path = Path(fetch(allow_patterns=wanted_modules))
    if any(path.glob("*.safetensors")):
        return path
    if (file := preferred_gguf(wanted, offline=offline)) is not None:
        return file
    raise CheckpointError(f"{named!r} {NO_WEIGHTS}")


def preferred_gguf(wanted: HubName, *, offline: bool) -> Path | None:
    """Return the preferred GGUF file of a repository; None if it has safetensors weights, or no GGUF file.

    If the hub cannot be reached, it is the cached one.

    Errors as `resolve_model`.
    """
    from huggingface_hub import constants

    files = None
    if not offline and not constants.HF_HUB_OFFLINE:
        with suppress(transport_error(), OSError):
            files = files_of(wanted)
    if files is None:
        path = cached_file(wanted)
        if path is None:
            reason = f"{wanted.text!r} is not complete in the local cache: it has no safetensors weights there"
            raise HubUnreachable(f"{reason}; run `ferrum pull {wanted.text}` with a connection", param="model")
        return path
    has_others = any(file.endswith(".safetensors") and "/" not in file for file in files)
    return None if has_others or not models_in(files) else fetch(wanted, offline=False)


def _has_sound_config(repo: str, revision: str | None) -> bool:
    """Whether the cache holds the configuration of a model that would load; the hub is not asked."""
    from huggingface_hub import try_to_load_from_cache

    cached = try_to_load_from_cache(repo, "config.json", revision=revision)
    if isinstance(cached, str):
        with suppress(FerrumError):
            refuse_unloadable(Path(cached).parent, repo)
            return True
    return False


def _usable_snapshot(error: Exception) -> Path:
    """Return a directory that the hub library calls incomplete if only unused files are missing.

    Another program may have fetched it without its licence, for example. Raises the error if more is missing.
    """
    path = incomplete_snapshot(error)
    if path is None or not has_model_files(path):
        raise error
    if any((path / name).is_file() for name in ("tokenizer.json", "tokenizer.model")):
        return path
    raise error


# ---- Downloads of hub models, so that they load without a network ----


def pull(name: str, *, revision: str | None = None) -> LocalModel:
    """Download a model, so that it loads without a network; log a warning if the hub cannot be reached.

    Errors as `resolve_model`.
    """
    found = locate(name, revision, elsewhere=False)
    if isinstance(found, HubName):
        found = replace(found, projector=True)
    if isinstance(found, HubName) and (problem := _unreachable(found)) is not None:
        try:
            path = fetched(found, offline=True)
        except HubUnreachable:
            path = fetched(found)  # its error has the reason
        warn_once(
            f"the hub cannot be reached ({problem}): nothing was downloaded, and the copy in the cache may be old"
        )
    else:
        path = fetched(found)
    return describe(name, path)


def _unreachable(name: HubName) -> str | None:
    """Return why the hub gives no answer about a model; None if it does, also if it refuses."""
    from huggingface_hub import HfApi, constants
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError

    if constants.HF_HUB_OFFLINE:
        return "HF_HUB_OFFLINE is set"
    with suppress(HFValidationError):
        try:
            HfApi().repo_info(name.repo, revision=name.revision or MAIN)
        except HfHubHTTPError as error:
            return str(error) if error.response.status_code >= 500 else None
        except (transport_error(), OSError) as error:
            return str(error)
    return None
