"""Models that a path or the package itself holds: the built-in one, directories and GGUF files."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from ferrum.sources.gguf_choice import Wanted, choose, is_gguf_name, models_below
from ferrum.sources.gguf_header import is_gguf

BUILT_IN: Final = "ferrum-tiny"


def built_in() -> Path:
    """Return the directory of the built-in model."""
    # Not by importlib.resources: an editable install has several roots, and the data is next to the source.
    return Path(__file__).parents[1] / "assets" / BUILT_IN


def existing(path: Path) -> Path | None:
    """Return a directory, a GGUF file, or the file of DIRECTORY:TAG; None for any other path. Raises ModelNotFound."""
    if path.is_dir() or (path.is_file() and (is_gguf_name(path.name) or is_gguf(path))):
        return path
    folder, _, tag = str(path).rpartition(":")
    if folder and tag and not path.exists() and Path(folder).is_dir():
        files = models_below(Path(folder))
        return Path(folder) / choose(Wanted(folder, tag), files)[0] if files else None
    return None
