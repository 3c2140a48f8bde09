"""The snapshots in a cache of the hub, as the hub's library and newer llama.cpp keep it; read without that library.

models--ORG--NAME/refs/main          the commit of a branch or tag
models--ORG--NAME/snapshots/COMMIT/  the files of a commit
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from ferrum.sources.readable_files import entries_of, files_below, is_folder, text_of

MAIN: Final = "main"
"""The branch that a name without a revision means."""

_PREFIX: Final = "models--"


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A directory of one commit of a repository.

    Attributes:
        repo: the repository's name.
        revision: the branch or tag, else the commit; None for the main branch.
        path: the directory.
    """

    repo: str
    revision: str | None
    path: Path

    @property
    def end(self) -> str:
        """The end of names that mean this snapshot."""
        return "" if self.revision is None else f"@{self.revision}"


def hub_folder() -> Path:
    """Return the folder of the hub library's cache."""
    from huggingface_hub import constants

    return Path(constants.HF_HUB_CACHE)


def snapshots_in(folder: Path) -> Iterator[Snapshot]:
    """Yield the snapshots in a cache by the repositories' names: one per branch or tag, then those without any."""
    for repository in entries_of(folder):
        if not repository.name.startswith(_PREFIX):
            continue
        repo = repository.name.removeprefix(_PREFIX).replace("--", "/", 1)
        refs = {path.relative_to(repository / "refs").as_posix(): path for path in files_below(repository / "refs")}
        named: set[str] = set()
        for ref in sorted(refs, key=lambda ref: (ref != MAIN, ref)):
            snapshot = _snapshot(repository, ref)
            if snapshot is not None and snapshot.name not in named:
                named.add(snapshot.name)
                yield Snapshot(repo, None if ref == MAIN else ref, snapshot)
        for path in entries_of(repository / "snapshots"):
            if path.name not in named and is_folder(path):
                yield Snapshot(repo, path.name, path)


def place_of(file: Path) -> Path:
    """Return the folder whose files belong together with a file: its snapshot in a cache, else its own folder."""
    for folder in file.parents:
        if folder.parent.name == "snapshots" and folder.parent.parent.name.startswith(_PREFIX):
            return folder
    return file.parent


def snapshot_of(repo: str, revision: str | None, folder: Path | None = None) -> Path | None:
    """Return the directory of a repository's revision in a cache (default: the hub library's), or None."""
    repository = (folder or hub_folder()) / f"{_PREFIX}{repo.replace('/', '--')}"
    return _snapshot(repository, revision or MAIN)


def _snapshot(repository: Path, revision: str) -> Path | None:
    """Return the directory that a reference or commit means; white space around a commit is ignored."""
    commit = (text_of(repository / "refs" / revision) or revision).strip()
    path = repository / "snapshots" / commit
    return path if commit and "/" not in commit and commit not in (".", "..") and is_folder(path) else None
