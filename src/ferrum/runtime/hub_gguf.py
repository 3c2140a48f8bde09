"""GGUF files of the hub: which file of a repository a name means, and its download. The cache is the hub library's.

    ORG/REPO:TAG             the file with this tag in its name, such as Q4_K_M
    ORG/REPO/FOLDER/F.gguf   this file
    ORG/REPO                 if it has no safetensors weights: Q4_K_M, else Q8_0, else its only file

Each may end in @REVISION.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from ferrum.core.errors import HubUnreachable, ModelNotFound

SUFFIX: Final = ".gguf"
"""Ending of GGUF files."""

PREFERRED: Final = ("Q4_K_M", "Q8_0")
"""The order of preference that llama.cpp's users know."""

REVISION: Final = r"(@(?P<revision>(?!.*\.\.)[\w.-][\w./-]*))?"
"""Pattern of the end of a name, which may be a revision."""

_NAME: Final = re.compile(
    r"(?P<repo>[\w-][\w.-]*/[\w-][\w.-]*)(:(?P<tag>[\w.-]+)|/(?P<file>[\w./-]+\.gguf))" + REVISION, re.ASCII
)
_PART: Final = re.compile(r"-(\d{5})-of-\d{5}(?=\.gguf$)")
_OTHER: Final = re.compile(r"(^|/)(mmproj|imatrix)|\.imatrix", re.IGNORECASE)
"""Files that belong to a model and are none."""


@dataclass(frozen=True, slots=True)
class HubFile:
    """A GGUF file of the hub.

    Attributes:
        tag: in the file's name; None with `file`, or for the preferred one.
        file: its path in the repository.
        revision: branch, tag or commit of the repository.
    """

    repo: str
    tag: str | None = None
    file: str | None = None
    revision: str | None = None


def hub_file(name: str) -> HubFile | None:
    """Return the file that a name means, or None for names of other forms."""
    found = _NAME.fullmatch(name)
    if found is None or (found["file"] and ".." in found["file"].split("/")):
        return None
    return HubFile(found["repo"], found["tag"], found["file"], found["revision"])


def models_in(files: Iterable[str]) -> dict[str, list[str]]:
    """Return the parts of each model among the files of a repository, by the model's path without part numbers."""
    models: dict[str, list[str]] = {}
    for file in sorted(files):
        if file.endswith(SUFFIX) and not _OTHER.search(file):
            models.setdefault(_PART.sub("", file), []).append(file)
    return models


def tag_of(model: str) -> str:
    """Return the tag in a model's path: what follows the last dash or dot before the ending."""
    return re.split(r"[-.]", model.removesuffix(SUFFIX).rpartition("/")[2])[-1]


def choose(wanted: HubFile, files: Iterable[str]) -> list[str]:
    """Return the parts of the wanted model, first part first.

    Raises ModelNotFound, which names the models that there are.
    """
    models = models_in(files)
    found = [parts for model, parts in models.items() if _means(wanted, model, parts)]
    if wanted.tag is None and wanted.file is None:
        by_tag = {tag_of(model).upper(): parts for model, parts in models.items()}
        found = [by_tag[tag] for tag in PREFERRED if tag in by_tag][:1]
        found = found or (list(models.values()) if len(models) == 1 else [])
    if len(found) == 1:
        return found[0]
    there = ", ".join(f"{wanted.repo}:{tag_of(model)}" for model in models) or "none"
    reason = f"{wanted.repo!r} has {len(found)} GGUF files for {wanted.file or wanted.tag or 'no tag'!r}"
    raise ModelNotFound(f"{reason}; choose one: {there}", param="model")


def _means(wanted: HubFile, model: str, parts: list[str]) -> bool:
    if wanted.file is not None:
        return wanted.file in (model, *parts)
    endings = (f"{mark}{wanted.tag}{SUFFIX}".upper() for mark in "-.")
    return wanted.tag is not None and model.upper().endswith(tuple(endings))


def fetch(wanted: HubFile, *, offline: bool) -> Path:
    """Return the path of the model's first part, downloaded unless it is cached.

    Raises: as `resolve_model`.
    """
    from huggingface_hub import constants, snapshot_download

    from ferrum.runtime.hub import hub_errors

    offline = offline or constants.HF_HUB_OFFLINE
    with hub_errors(wanted.repo, wanted.revision) as named:
        parts = choose(wanted, files_of(wanted, offline=offline))
        if offline:
            folder = _cached(wanted)
        else:
            folder = Path(snapshot_download(wanted.repo, revision=wanted.revision, allow_patterns=parts))
    missing = [part for part in parts if not (folder / part).is_file()]
    if missing:
        reason = f"{named!r} lacks {missing[0]} in the cache: run `ferrum pull` with a connection"
        raise HubUnreachable(reason, param="model")
    return folder / parts[0]


def files_of(wanted: HubFile, *, offline: bool) -> list[str]:
    """Return the files of a repository on the hub; offline, the cached ones. Raises the library's errors."""
    from huggingface_hub import HfApi

    if not offline:
        return list(HfApi().list_repo_files(wanted.repo, revision=wanted.revision))
    return files_in(_cached(wanted))


def files_in(directory: Path) -> list[str]:
    """Return the paths of the GGUF files in a directory and its folders."""
    return [path.relative_to(directory).as_posix() for path in directory.rglob(f"*{SUFFIX}")]


def _cached(wanted: HubFile) -> Path:
    """Return the cached snapshot, of which some files may never have been fetched. Raises the library's error."""
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import LocalEntryNotFoundError

    try:
        return Path(snapshot_download(wanted.repo, revision=wanted.revision, local_files_only=True))
    except LocalEntryNotFoundError as error:
        found = incomplete_snapshot(error)
        if found is None:
            raise
        return found


def incomplete_snapshot(error: Exception) -> Path | None:
    """Return the directory that the hub library calls incomplete; older versions of the library do not say."""
    found = getattr(error, "snapshot_path", None)
    return None if found is None else Path(found)
