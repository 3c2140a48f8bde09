"""Models that ollama has downloaded: a manifest per name, and blobs by their digests.

    manifests/HOST/NAMESPACE/NAME/TAG    JSON with layers: a media type and a digest each
    blobs/sha256-HEX                     a layer; the one of a model is a GGUF file

Layers for other programs (templates, parameters, projectors) are not read. A model with an adapter is left out: without
it, its answers would be others.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from ferrum.sources.gguf_header import is_model
from ferrum.sources.readable_files import entries_of, is_file, is_folder, text_of

LATEST: Final = "latest"
"""The tag that a name without one means."""

_HOST: Final = "registry.ollama.ai"
_NAMESPACE: Final = "library"
_MODEL: Final = "application/vnd.ollama.image.model"
_ADAPTER: Final = "application/vnd.ollama.image.adapter"
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
    try:
        layers: Any = json.loads(manifest or "null")["layers"]
        kinds = {layer["mediaType"]: _DIGEST.fullmatch(layer["digest"]) for layer in layers}
        count = sum(layer["mediaType"] == _MODEL for layer in layers)
    except (ValueError, TypeError, KeyError, RecursionError):
        return None
    found = kinds.get(_MODEL)
    if found is None or count != 1 or _ADAPTER in kinds:
        return None
    return root / "blobs" / f"sha256-{found['hex']}"
