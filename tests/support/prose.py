"""The project's prose as tests read it: documents, docstrings, comments, and messages in strings."""

from __future__ import annotations

import ast
import io
import re
import sys
import tokenize
from collections.abc import Iterator
from pathlib import Path

from source_tree import nodes_in

BANNED = (
    "told", "tells", "news", "whoever", "nobody", "somebody", "lest", "anew", "beside", "as many as may be",
    "of its own", "so many", "be it", "what it comes to", "made of", "looks on", "let go",
)  # fmt: skip
"""Oblique words and phrases; docs/glossary.md has the terms to use instead."""

PATTERN = re.compile(r"\b(" + "|".join(word.replace(" ", r"\s+") for word in BANNED) + r")\b", re.IGNORECASE)


WORDS_ONLY = re.compile(r"(?:\\[nt]|[^A-Za-z])+")
"""What separates words in any text of a file: also quotes, escapes, and the underscores of names."""


def python_prose(path: Path) -> Iterator[tuple[int, str]]:
    """Lines and texts of a module's docstrings, comments and strings that hold words; test names count as prose."""
    text = path.read_text()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT:
            yield token.start[0], token.string
    for node in nodes_in(text):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and " " in node.value:
            yield node.lineno, node.value
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test_"):
            yield node.lineno, node.name.replace("_", " ")


def native_comments(path: Path) -> Iterator[tuple[int, str]]:
    """Lines and texts of the comments in a C++ file; lines that follow each other are one text."""
    start, found = 0, []
    for number, line in enumerate(path.read_text().splitlines(), 1):
        _, mark, comment = line.partition("//")
        if mark:
            start = start or number
            found.append(comment)
        elif found:
            yield start, "\n".join(found)
            start, found = 0, []
    if found:
        yield start, "\n".join(found)


def prose_of(path: Path) -> Iterator[tuple[int, str]]:
    """Lines and texts of a file's prose."""
    if path.suffix in (".py", ".pyi"):
        yield from python_prose(path)
    elif path.suffix in (".cpp", ".hpp"):
        yield from native_comments(path)
    else:
        yield 1, path.read_text()


def banned_words(path: Path) -> Iterator[str]:
    """`path:line: word` for each banned word in a file's prose."""
    if not PATTERN.search(WORDS_ONLY.sub(" ", path.read_text())):
        return  # most files: their prose need not be found
    for line, text in prose_of(path):
        for found in PATTERN.finditer(text):
            at = line + text.count("\n", 0, found.start())
            yield f"{path}:{at}: {' '.join(found[0].split())}"


if __name__ == "__main__":
    for name in sys.argv[1:]:
        root = Path(name)
        for each in sorted(root.rglob("*")) if root.is_dir() else [root]:
            if each.suffix in (".py", ".pyi", ".cpp", ".hpp", ".md"):
                print(*banned_words(each), sep="\n", end="\n" if any(banned_words(each)) else "")
