"""The language of the project: banned words, docstrings where they are due, and a ceiling on code."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

from prose import banned_words
from source_tree import MODULES, NATIVE, REPOSITORY, SOURCE, TESTS, TOOLS, nodes, nodes_in

CEILING = 51_000
"""Lines of `src/` without docstrings, blanks, comments and imports. It only goes down: what a change adds, it saves
elsewhere, or a whole capability says here why it needs more. The last 1,000: Gemma 4's images, projectors of three more
families, ranks that torchrun starts.
"""

DOCUMENTS = sorted(
    [*REPOSITORY.glob("*.md"), *(REPOSITORY / "docs").rglob("*.md"), *REPOSITORY.glob(".github/**/*.md")]
)
EXEMPT = {REPOSITORY / "tests" / "support" / "prose.py", Path(__file__)}
"""They hold the banned words themselves."""


def code_lines(text: str) -> int:
    """Count lines that are neither blank, comment, import nor docstring."""
    skipped: set[int] = set()
    for node in nodes_in(text):
        is_text = (
            isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
        )
        if isinstance(node, ast.Import | ast.ImportFrom) or is_text:
            assert isinstance(node, ast.stmt)
            skipped |= set(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    lines = enumerate(text.splitlines(), 1)
    return sum(
        1 for number, line in lines if number not in skipped and line.strip() and not line.strip().startswith("#")
    )


def public_methods(text: str) -> Iterator[tuple[str, str, bool]]:
    """Class, name and whether it has a docstring, for each public method."""
    for outer in nodes_in(text):
        for node in outer.body if isinstance(outer, ast.ClassDef) and not outer.name.startswith("_") else ():
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and not node.name.startswith("_"):
                yield outer.name, node.name, ast.get_docstring(node) is not None or bool(outer.bases)


def undocumented_methods(texts: Iterable[str]) -> list[str]:
    """Public methods without a docstring, unless they may implement or override a method that has one."""
    methods = [method for text in texts for method in public_methods(text)]
    documented = {name for _, name, has_docstring in methods if has_docstring}
    return [f"{owner}.{name}" for owner, name, has_docstring in methods if not has_docstring and name not in documented]


def test_prose_has_no_banned_words() -> None:
    files = [*MODULES, SOURCE / "__init__.pyi", *TESTS, *TOOLS, *NATIVE, *DOCUMENTS]
    assert [found for path in files if path not in EXEMPT for found in banned_words(path)] == []


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("docstring.py", '"""What users are told."""\n'),
        ("comment.py", "x = 1  # nobody waits\n"),
        ("message.py", 'raise ValueError("as many as\\nmay be")\n'),
        ("name.py", "def test_news_are_read(): ...\n"),
        ("note.md", "Some text.\n\nIt is made\nof parts.\n"),
        ("code.cpp", "int x;\n// beside the loop\n"),
    ],
)
def test_planted_word_is_found(name: str, text: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text(text)
    assert len(list(banned_words(tmp_path / name))) == 1


def test_plain_words_pass(tmp_path: Path) -> None:
    (tmp_path / "plain.py").write_text('"""Newsletter settings; besides, retold stories count."""\ntold = 1\n')
    assert list(banned_words(tmp_path / "plain.py")) == []


def test_public_methods_have_docstrings_unless_they_may_override() -> None:
    assert undocumented_methods(path.read_text() for path in MODULES) == []
    bare = "class A:\n    def f(self): ...\n"
    assert undocumented_methods([bare]) == ["A.f"]
    assert undocumented_methods([bare, 'class B(Protocol):\n    def f(self):\n        """Return 1."""\n']) == []


def test_names_of_tests_have_at_most_75_characters() -> None:
    """A longer one must be parsed like a sentence."""
    functions = (node for path in TESTS for node in nodes(path) if isinstance(node, ast.FunctionDef))
    assert [node.name for node in functions if node.name.startswith("test_") and len(node.name) > 75] == []


def test_code_keeps_its_ceiling() -> None:
    assert code_lines('"""Text."""\nimport os\n\n# why\nx = 1\n') == 1
    lines = sum(code_lines(path.read_text()) for path in MODULES)
    assert 0.97 * CEILING < lines <= CEILING, lines  # code that shrinks takes its ceiling along
