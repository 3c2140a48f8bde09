"""A reader of patches as Codex's `apply_patch` tool takes them, line by line and independent of its grammar.

`tests/data/codex` has the grammar, with its source and licence.
"""

from __future__ import annotations

ADD, DELETE, UPDATE, MOVE = ("*** Add File: ", "*** Delete File: ", "*** Update File: ", "*** Move to: ")


def is_patch(text: str) -> bool:
    """Return whether a text is a patch that the tool accepts."""
    lines = text.removesuffix("\n").split("\n")
    if lines[:1] != ["*** Begin Patch"] or lines[-1:] != ["*** End Patch"]:
        return False
    hunks = lines[1:-1]
    while hunks:
        rest = _after_hunk(hunks)
        if rest is None:
            return False
        hunks = rest
    return len(lines) > 2


def _after_hunk(lines: list[str]) -> list[str] | None:
    """Return the lines after the first hunk, or None if it is malformed."""
    head, *rest = lines
    if _names(head, DELETE):
        return rest
    if _names(head, ADD):
        added = _while(rest, ("+",))
        return rest[added:] if added else None
    if not _names(head, UPDATE):
        return None
    if rest and _names(rest[0], MOVE):
        rest = rest[1:]
    changed = _while(rest, ("+", "-", " ", "@@"))
    rest = rest[changed:]
    return rest[1:] if changed and rest[:1] == ["*** End of File"] else rest


def _names(line: str, what: str) -> bool:
    return line.startswith(what) and len(line) > len(what)


def _while(lines: list[str], marks: tuple[str, ...]) -> int:
    return next((place for place, line in enumerate(lines) if not line.startswith(marks)), len(lines))
