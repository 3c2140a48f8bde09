"""Files of the hub: names, the download of the GGUF file that a name means, and errors. The cache is the hub library's.

    ORG/REPO:TAG, ORG/REPO/FOLDER/F.gguf, ORG/REPO    as `gguf_choice` has them

Each may end in @REVISION.
"""

from __future__ import annotations

import glob
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NoReturn

from ferrum.core.errors import HubUnreachable, ModelGated, ModelNotFound
from ferrum.sources.checkpoint import has_weights
from ferrum.sources.gguf_choice import (
    Wanted,
    choose,
    gguf_below,
    is_whole,
    matches,
    models_below,
    names_in,
    projector_for,
)
from ferrum.sources.hub_cache import MAIN, snapshot_of
from ferrum.sources.local_models import suggestion

REVISION: Final = r"(@(?P<revision>(?!.*\.\.)[\w.-][\w./-]*))?"
"""Pattern of the end of a name, which may be a revision."""

_WHOLE: Final = re.compile(r"(?P<repo>[\w.-]+(/[\w.-]+)?)" + REVISION, re.ASCII)
_FILE: Final = re.compile(
    r"(?P<repo>(?a:[\w-][\w.-]*/[\w-][\w.-]*))(:(?P<tag>(?a:[\w.-]+))|/(?P<file>[^\x00-\x1f\\]+\.(?i:gguf)))" + REVISION
)


@dataclass(frozen=True, slots=True)
class HubName:
    """A name on the hub.

    Attributes:
        repo: the repository.
        tag, file: of a GGUF file, see `Wanted`; without them the name means the repository's model.
        revision: branch, tag or commit of the repository.
        projector: whether the file of its tower for images is fetched with a GGUF file.
    """

    repo: str
    tag: str | None = None
    file: str | None = None
    revision: str | None = None
    projector: bool = False

    @property
    def whole(self) -> bool:
        """Whether the name means a repository rather than a file of it."""
        return self.tag is None and self.file is None

    @property
    def text(self) -> str:
        """The name as it is typed."""
        file = f":{self.tag}" if self.tag is not None else f"/{self.file}" if self.file is not None else ""
        return self.repo + file + ("" if self.revision is None else f"@{self.revision}")

    @property
    def in_place(self) -> Wanted:
        """The GGUF file of the repository that the name means."""
        return Wanted(self.repo, self.tag, self.file)

    def choose(self, files: list[str]) -> list[str]:
        """Return the parts of the file among those of the repository. Errors as `gguf_choice.choose`."""
        return choose(self.in_place, files)


def hub_name(name: str) -> HubName | None:
    """Return what a name means on the hub, or None for names of other forms."""
    found = _FILE.fullmatch(name)
    if found is not None and not {"", ".", ".."} & set((found["file"] or "x").split("/")):
        return HubName(found["repo"], found["tag"], found["file"], found["revision"])
    found = _WHOLE.fullmatch(name)
    return None if found is None else HubName(found["repo"], revision=found["revision"])


def fetch(wanted: HubName, *, offline: bool) -> Path:
    """Return the path of a GGUF model's first part, downloaded unless it is cached.

    If the hub cannot be reached, or refuses, the cached file is used.

    Raises: as `resolve_model`.
    """
    from huggingface_hub import constants, snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, RevisionNotFoundError

    if offline or constants.HF_HUB_OFFLINE:
        return cached_file(wanted) or _refuse(wanted, "offline")
    with hub_errors(wanted.repo, wanted.revision) as named:
        try:
            files = files_of(wanted)
            parts = wanted.choose(files)
        except RevisionNotFoundError:
            raise
        except (transport_error(), OSError) as error:
            path = cached_file(wanted)
            if path is None and not isinstance(error, HfHubHTTPError):
                _refuse(wanted, str(error))
            if path is None:
                raise
            return path
        projector = projector_for(parts[0], files) if wanted.projector else None
        patterns = [glob.escape(part) for part in (*parts, *([] if projector is None else [projector]))]
        folder = Path(snapshot_download(wanted.repo, revision=wanted.revision, allow_patterns=patterns))
    missing = [part for part in parts if not (folder / part).is_file()]
    if missing:
        reason = f"{named!r} lacks {missing[0]} in the cache: run `ferrum pull` with a connection"
        raise HubUnreachable(reason, param="model")
    return folder / parts[0]


def cached_file(wanted: HubName) -> Path | None:
    """Return the first part of a complete file in the cache, or None.

    Raises:
        ModelNotFound: several cached files have the name.
    """
    folder = snapshot_of(wanted.repo, wanted.revision)
    if folder is None:
        return None
    files = models_below(folder) if wanted.file is None else gguf_below(folder)
    parts = wanted.choose(files) if matches(wanted.in_place, files) else []
    return folder / parts[0] if parts and is_whole(parts) else None


def files_of(wanted: HubName) -> list[str]:
    """Return the files of a repository on the hub. Raises the library's errors."""
    from huggingface_hub import HfApi

    # Unlike `list_repo_files`, this fails at once if there is no connection.
    info = HfApi().model_info(wanted.repo, revision=wanted.revision or MAIN)
    return [file.rfilename for file in info.siblings or ()]


def _refuse(wanted: HubName, reason: str) -> NoReturn:
    """Raise the error of a file that is not cached."""
    folder = snapshot_of(wanted.repo, wanted.revision)
    there = ", ".join(names_in(wanted.repo, models_below(folder))) if folder is not None else ""
    has = f", which has {there}" if there else ""
    problem = f"{wanted.text!r} is not in the local cache{has}, and the hub is unreachable ({reason})"
    raise HubUnreachable(f"{problem}; run `ferrum pull {wanted.text}` with a connection", param="model")


# ---- The errors of the hub's library as errors of ferrum ----


def transport_error() -> type[Exception]:
    """Return the root error of the hub library's HTTP client, which depends on its version."""
    from huggingface_hub.errors import HfHubHTTPError

    return HfHubHTTPError.__bases__[0]


@contextmanager
def hub_errors(repo: str, revision: str | None) -> Iterator[str]:
    """Raise the hub library's errors as ours; yields the model's name for messages. Raises as `resolve_model`."""
    from huggingface_hub.errors import (
        GatedRepoError,
        HFValidationError,
        LocalEntryNotFoundError,
        RepositoryNotFoundError,
        RevisionNotFoundError,
    )

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
        raise ModelNotFound(reason + suggestion(repo), param="model") from error
    except RevisionNotFoundError as error:
        raise ModelNotFound(f"{repo!r} has no revision {revision!r}", param="revision") from error
    except LocalEntryNotFoundError as error:
        folder = incomplete_snapshot(error)
        lacks = "" if folder is None or has_weights(folder) else ": it has no safetensors weights there"
        reason = f"{named!r} is not complete in the local cache{lacks}, and the hub is unreachable"
        raise HubUnreachable(f"{reason} ({error.__cause__ or 'offline'}){suggestion(repo)}", param="model") from error
    except (transport_error(), OSError) as error:
        reason = f"the download of {named!r} did not finish; run it again to resume: {error}"
        raise HubUnreachable(reason, param="model") from error


def incomplete_snapshot(error: Exception) -> Path | None:
    """Return the directory that the hub library calls incomplete; older versions of the library do not say."""
    found = getattr(error, "snapshot_path", None)
    return None if found is None else Path(found)
