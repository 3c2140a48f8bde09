"""The errors of the hub's library as errors of ferrum."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ferrum.core.errors import HubUnreachable, ModelGated, ModelNotFound
from ferrum.sources.checkpoint import has_weights
from ferrum.sources.local_models import suggestion


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
        found = incomplete_snapshot(error)
        lacks = "" if found is None or has_weights(found) else ": it has no safetensors weights there"
        reason = f"{named!r} is not complete in the local cache{lacks}, and the hub is unreachable"
        raise HubUnreachable(f"{reason} ({error.__cause__ or 'offline'}){suggestion(repo)}", param="model") from error
    except (transport_error(), OSError) as error:
        reason = f"the download of {named!r} did not finish; run it again to resume: {error}"
        raise HubUnreachable(reason, param="model") from error


def incomplete_snapshot(error: Exception) -> Path | None:
    """Return the directory that the hub library calls incomplete; older versions of the library do not say."""
    found = getattr(error, "snapshot_path", None)
    return None if found is None else Path(found)
