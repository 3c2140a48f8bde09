"""The language of the project: banned words, docstrings where they are due, and a ceiling on code."""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

from prose import banned_words
from source_tree import MODULES, NATIVE, REPOSITORY, SOURCE, TESTS, TOOLS

CEILINGS = {
    "": 70,  # the public names
    "core": 1_860,  # what every room shares; an option or a parameter is a line; what sampling rules read
    "contract": 1_700,  # as large as the interface of the Rust engine that it keeps, and the defaults of its traits
    "cache": 1_010,  # host integers only: rows of pages, slots of states and their snapshots
    "scheduler": 1_370,  # one plan and one commit; a policy is a class of ten lines; where states get names
    "text": 2_200,  # tokenizers, rerankers, and templates with the moves that keep every message in the prompt
    "structured": 2_600,  # every keyword of JSON Schema is enforced or refused; GBNF by characters; masks
    "formats": 3_890,  # formats of outputs: found, 31 as data, parsed, and as grammars, strict ones in every spelling
    "kernels": 2_480,  # each operation stands in declaration, reference and lowering; states of recurrent layers
    "quant": 1_080,  # formats are data; a format is a line and its readers
    "nn": 240,  # parts that families share
    "models": 3_160,  # families are data: 10 to 190 lines each, with what their GGUF files hold
    "sampling": 600,  # rules in one file, in order; those that look back in another
    "speculative": 460,  # a drafter each file
    "sources": 3_240,  # files to tensors and tokenizers: hubs, directories, GGUF, adapters
    "runtime": 3_400,  # steps: tables, passes, results, what is in flight, adapters; models by hand
    "engine": 3_760,  # clients, hosts, the loop, records, why a prefix missed, which adapters are held
    "bench": 1_390,  # what `ferrum bench` needs; other measurements are scripts in bench/
    "server": 7_770,  # seven dialects and a store; a dialect is a folder
    "cli": 1_600,  # options come from config fields, so a command is its output; settings of coding agents
}
"""Lines of a room without docstrings, blanks, comments and imports, about 3% above what it has, and why it has them.

A commit that raises one says why; first ask whether the code belongs to another room.
"""

DOCUMENTS = sorted(
    [*REPOSITORY.glob("*.md"), *(REPOSITORY / "docs").rglob("*.md"), *REPOSITORY.glob(".github/**/*.md")]
)
EXEMPT = {REPOSITORY / "tests" / "support" / "prose.py", Path(__file__)}
"""They hold the banned words themselves."""


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


def public_methods(text: str) -> Iterator[tuple[str, str, bool]]:
    """Class, name and whether it has a docstring, for each public method."""
    for outer in ast.walk(ast.parse(text)):
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


def lines_of_rooms() -> Counter[str]:
    """Return the code lines of each room; modules outside rooms count under an empty name."""
    counts: Counter[str] = Counter()
    for path in MODULES:
        room, _, rest = path.relative_to(SOURCE).as_posix().partition("/")
        counts[room if rest else ""] += code_lines(path.read_text())
    return counts


def test_rooms_keep_their_code_ceilings() -> None:
    assert code_lines('"""Text."""\nimport os\n\n# why\nx = 1\n') == 1
    counts = lines_of_rooms()
    assert {room: count for room, count in counts.items() if count > CEILINGS[room]} == {}


def test_ceilings_are_near_what_rooms_have() -> None:
    """A room that has shrunk takes its ceiling along."""
    counts = lines_of_rooms()
    assert counts.keys() == CEILINGS.keys()
    assert {room: counts[room] for room, most in CEILINGS.items() if counts[room] < 0.9 * most - 10} == {}
