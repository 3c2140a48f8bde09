"""Formats of outputs that were written by hand, and the texts by which a chat template shows that it has one.

Each entry of `known_formats.json` has the fields that `--tool-format FILE` reads, and `signs`: a template that has all
`texts` of a sign, and none of the `absent` ones, writes this format. The first entry that fits counts. How formats are
found is in `find`; nothing here reads a template.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Final

from ferrum.core.json_record import JsonRecord
from ferrum.core.output_format import OutputFormat


@dataclass(frozen=True, slots=True, kw_only=True)
class _Sign(JsonRecord):
    texts: tuple[str, ...]
    absent: tuple[str, ...] = ()

    def fits(self, source: str) -> bool:
        return all(text in source for text in self.texts) and not any(text in source for text in self.absent)


_TABLE: Final = json.loads(Path(__file__).with_suffix(".json").read_text("utf-8"))
_SIGNS: Final = {name: [_Sign.from_dict(each) for each in entry.pop("signs")] for name, entry in _TABLE.items()}

KNOWN: Final[Mapping[str, OutputFormat]] = MappingProxyType(
    {name: OutputFormat.from_dict({"name": name, "source": "known", **entry}) for name, entry in _TABLE.items()}
)
"""The formats by the names that users type."""


def known_by_template(source: str) -> OutputFormat | None:
    """Return the format whose distinctive texts a chat template has, or None."""
    return next((KNOWN[name] for name, signs in _SIGNS.items() if any(each.fits(source) for each in signs)), None)
