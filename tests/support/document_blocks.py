"""Code blocks and links of Markdown files, as tests read them."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

_FENCE = re.compile(r"^```([a-z]*)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
_EXEMPT = re.compile(r"<!-- no-test: (.+) -->\n$")
_LINK = re.compile(r"!?\[[^\]]*\]\(([^)\s]+)\)")
_HEADING = re.compile(r"^#+ (.+)$", re.MULTILINE)


@dataclass(frozen=True)
class Block:
    """A fenced block: its language, text, and the reason it is not run (empty: it is run)."""

    path: Path
    language: str
    text: str
    exempt: str

    @property
    def commands(self) -> list[str]:
        """Commands of a console block, without comments; continued lines are joined."""
        lines = re.sub(r"\\\n\s*", "", self.text).splitlines()
        return [re.sub(r"\s{2,}#.*", "", line[2:]).strip() for line in lines if line.startswith("$ ")]


def blocks(path: Path) -> list[Block]:
    """Return all fenced blocks of a file, in order."""
    text = path.read_text()
    found = []
    for match in _FENCE.finditer(text):
        mark = _EXEMPT.search(text[: match.start()])
        found.append(Block(path, match[1], match[2], mark[1] if mark else ""))
    return found


def without_blocks(path: Path) -> str:
    """Return a file's text without fenced blocks."""
    return _FENCE.sub("", path.read_text())


def links(path: Path) -> list[str]:
    """Return the targets of all links and images outside blocks and code spans."""
    return _LINK.findall(re.sub(r"`[^`\n]*`", "``", without_blocks(path)))


def anchors(path: Path) -> set[str]:
    """Return the anchors of a file's headings, as GitHub and MkDocs make them for plain headings."""
    found = set()
    for heading in _HEADING.findall(without_blocks(path)):
        plain = re.sub(r"[^\w\s-]", "", heading.replace("`", "")).strip().lower()
        found.add(re.sub(r"[\s]+", "-", plain))
    return found
