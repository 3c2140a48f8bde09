"""The language of the project: banned words, docstrings where they are due, and a ceiling on code."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from prose import banned_words
from source_tree import MODULES, NATIVE, REPOSITORY, SOURCE, TESTS, TOOLS

MAX_CODE_LINES = 16_500
"""Lines of the package without docstrings, blanks, comments and imports. A commit that raises it says why."""

DOCUMENTS = sorted(
    [*REPOSITORY.glob("*.md"), *(REPOSITORY / "docs").rglob("*.md"), *REPOSITORY.glob(".github/**/*.md")]
)
WORD_LIST = REPOSITORY / "tests" / "support" / "prose.py"


def code_lines(text: str) -> int:
    """Count lines that are neither blank, comment, import nor docstring."""
    skipped: set[int] = set()
    for node in ast.walk(ast.parse(text)):
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


def undocumented_methods(text: str) -> list[str]:
    """Public methods without a docstring in classes without a base, whose methods cannot be overrides."""
    return [
        f"{outer.name}.{node.name}"
        for outer in ast.walk(ast.parse(text))
        if isinstance(outer, ast.ClassDef) and not outer.bases and not outer.name.startswith("_")
        for node in outer.body
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and not node.name.startswith("_")
        and ast.get_docstring(node) is None
    ]


def test_prose_has_no_banned_words() -> None:
    files = [*MODULES, SOURCE / "__init__.pyi", *TESTS, *TOOLS, *NATIVE, *DOCUMENTS]
    assert [found for path in files if path != WORD_LIST for found in banned_words(path)] == []


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
    missing = {
        str(path.relative_to(SOURCE)): found for path in MODULES if (found := undocumented_methods(path.read_text()))
    }
    assert missing == {}
    assert undocumented_methods("class A:\n    def f(self): ...\n") == ["A.f"]


def test_package_keeps_its_code_ceiling() -> None:
    assert code_lines('"""Text."""\nimport os\n\n# why\nx = 1\n') == 1
    assert sum(code_lines(path.read_text()) for path in MODULES) <= MAX_CODE_LINES
