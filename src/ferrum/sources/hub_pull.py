"""Downloads of hub models, so that they load without a network."""

from __future__ import annotations

from contextlib import suppress

from ferrum.core.errors import HubUnreachable
from ferrum.core.logging import warn_once
from ferrum.sources.hub import fetched, locate
from ferrum.sources.hub_cache import MAIN
from ferrum.sources.hub_errors import transport_error
from ferrum.sources.hub_gguf import HubName
from ferrum.sources.local_models import LocalModel, describe


def pull(name: str, *, revision: str | None = None) -> LocalModel:
    """Download a model, so that it loads without a network; log a warning if the hub cannot be reached.

    Errors as `resolve_model`.
    """
    found = locate(name, revision, elsewhere=False)
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
