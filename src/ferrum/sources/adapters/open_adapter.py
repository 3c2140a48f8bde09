"""From an adapter's name to its `AdapterFile`: a PEFT directory, a GGUF file, or either in a repository of the hub."""

from __future__ import annotations

from pathlib import Path

from ferrum.core.errors import CheckpointError, HubUnreachable, ModelNotFound
from ferrum.sources.adapters.adapter_file import AdapterFile
from ferrum.sources.adapters.gguf_adapter import read_gguf_adapter
from ferrum.sources.adapters.peft_adapter import CONFIG, TENSORS, read_peft
from ferrum.sources.hub_cache import snapshot_of
from ferrum.sources.hub_files import HubName, fetch, hub_errors, hub_name
from ferrum.sources.read_model import ReadModel


def open_adapter(name: str, model: ReadModel) -> AdapterFile:
    """Return an adapter for a model. It may run while steps are computed; large arrays stay in mapped files.

    Args:
        name: a PEFT directory, a GGUF file, or on the hub ORG/REPO or ORG/REPO/FILE.gguf, with @REVISION at the end.
        model: as its files describe it (`read_spec`).

    Raises:
        ModelNotFound: there is no such adapter; its subclasses as of `resolve_model`.
        CheckpointError: a file is damaged, or does not fit the model; the error names the tensor or the field.
        Unsupported: a tensor or a field of the configuration cannot be applied; the error names it.
    """
    path = locate_adapter(name)
    adapter = read_peft(path, model) if path.is_dir() else read_gguf_adapter(path, model)
    if max(adapter.invocation, default=0) >= model.spec.vocab_size:
        problem = f"the invocation token {max(adapter.invocation)} is none of {model.spec.vocab_size} tokens"
        raise CheckpointError(f"{path}: {problem}: was the adapter made for another model?")
    return adapter


def locate_adapter(name: str) -> Path:
    """Return the directory or the file of an adapter; one of the hub is downloaded first. Errors as `open_adapter`."""
    try:
        path = Path(name).expanduser()
        if name and path.exists():
            return path
    except (OSError, RuntimeError, ValueError) as error:
        raise ModelNotFound(f"{name!r} cannot be looked up: {error}", param="adapter") from error
    remote = None if name.startswith(("/", ".", "~")) else hub_name(name)
    if remote is None or "/" not in remote.repo:
        step = "give a PEFT directory, a GGUF file, or ORG/REPO on the hub"
        raise ModelNotFound(f"there is no such directory or file: {name}; {step}", param="adapter")
    try:
        return _snapshot(remote) if remote.whole else fetch(remote, offline=False)
    except ModelNotFound as error:
        raise error.about("adapter") from error


def _snapshot(wanted: HubName) -> Path:
    """Return the directory of a PEFT adapter on the hub; if the hub cannot be reached, the cached one."""
    from huggingface_hub import snapshot_download

    files = [CONFIG, TENSORS]
    try:
        with hub_errors(wanted.repo, wanted.revision):
            return Path(snapshot_download(wanted.repo, revision=wanted.revision, allow_patterns=files))
    except HubUnreachable:
        snapshot = snapshot_of(wanted.repo, wanted.revision)
        if snapshot is None or not all((snapshot / file).is_file() for file in files):
            raise
        return snapshot
