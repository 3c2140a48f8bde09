"""The chat templates of published models in `tests/data/templates`."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from ferrum.text.chat_template import ChatTemplate
from source_tree import REPOSITORY

FOLDER: Final = REPOSITORY / "tests" / "data" / "templates"
SPECIAL: Final = {"bos_token": "<BOS>", "eos_token": "<EOS>"}

TEMPLATES: Final[Mapping[str, ChatTemplate]] = MappingProxyType(
    {
        path.stem: ChatTemplate(path.read_text("utf-8"), SPECIAL, origin=path.name)
        for path in sorted(FOLDER.glob("*.jinja"))
    }
)
"""By the name of the file; each compiles once."""
