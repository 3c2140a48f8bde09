"""The output format that the option `tool_format` names."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Final

from ferrum.core.errors import ConfigError, RequestError
from ferrum.core.output_format import OutputFormat
from ferrum.formats.known_formats import KNOWN

MAX_FILE: Final = 1 << 20
"""Maximum bytes of a file of an output format."""


def chosen_format(chosen: str) -> OutputFormat:
    """Return the format of a name or of a JSON file. Raises ConfigError, about `tool_format`, for anything else."""
    if chosen in KNOWN:
        return KNOWN[chosen]
    path = Path(chosen).expanduser()
    try:
        if not path.is_file():
            names = ", ".join(sorted(KNOWN))
            raise ConfigError(f"{chosen!r} is neither a file nor a format: use one of {names}", param="tool_format")
        if path.stat().st_size > MAX_FILE:
            raise ConfigError(f"{chosen} has more than {MAX_FILE} bytes: give a smaller file", param="tool_format")
        found = replace(OutputFormat.from_json(path.read_bytes()), source="file")
    except ConfigError:
        raise
    except (OSError, ValueError, RequestError) as error:
        raise ConfigError(f"cannot use {chosen}: {error}", param="tool_format") from error
    if found.calls is None and found.reasoning is None:
        raise ConfigError(f"{chosen} has neither reasoning nor calls: add one of them", param="tool_format")
    return found
