"""No class is cut over files by inheritance: what one object needs of another stands in its constructor."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from pathlib import Path

from source_tree import MODULES, SOURCE, nodes


def base_names(node: ast.ClassDef) -> list[str]:
    """Return the names of a class's bases, without modules and parameters."""
    bases = [base.value if isinstance(base, ast.Subscript) else base for base in node.bases]
    return [ast.unparse(base).rpartition(".")[2] for base in bases]


def has_private_state(node: ast.ClassDef) -> bool:
    """Return whether methods of the class set private fields of their object."""
    return any(
        isinstance(each, ast.Attribute)
        and isinstance(each.ctx, ast.Store)
        and ast.unparse(each.value) == "self"
        and each.attr.startswith("_")
        for each in ast.walk(node)
    )


def created_names(node: ast.AST) -> Iterator[str]:
    """Yield the names that a node calls, hands to a builder, or passes on as the default of an argument."""
    made: list[ast.expr | None] = []
    if isinstance(node, ast.Call):  # also as one of `(x or Y)()`
        made += node.func.values if isinstance(node.func, ast.BoolOp) else [node.func]
    if isinstance(node, ast.Call) and ast.unparse(node.func).startswith("build_"):
        made += node.args
    if isinstance(node, ast.arguments):
        made += [*node.defaults, *node.kw_defaults]
    yield from (ast.unparse(each).rpartition(".")[2] for each in made if each is not None)


def cut_classes(modules: Sequence[Path], source: Path) -> Iterator[str]:
    """Yield bases with private state that nothing creates, and whose only subclass is in another file."""
    classes = [(path, node) for path in modules for node in nodes(path) if isinstance(node, ast.ClassDef)]
    created = {name for path in modules for node in nodes(path) for name in created_names(node)}
    heirs_of: dict[str, list[Path]] = {}
    for path, node in classes:
        for name in base_names(node):
            heirs_of.setdefault(name, []).append(path)
    for path, node in classes:
        heirs = heirs_of.get(node.name, [])
        if len(heirs) == 1 and heirs[0] != path and node.name not in created and has_private_state(node):
            yield f"{path.relative_to(source)}: {node.name}"


def test_no_class_is_cut_over_files() -> None:
    assert list(cut_classes(MODULES, SOURCE)) == []


def test_planted_cut_is_found(tmp_path: Path) -> None:
    (tmp_path / "base.py").write_text("class Base(ABC):\n    def __init__(self):\n        self._x = 1\n")
    (tmp_path / "heir.py").write_text("class Heir(base.Base[int]):\n    pass\n\n\nHeir()\n")
    modules = sorted(tmp_path.iterdir())
    assert list(cut_classes(modules, tmp_path)) == ["base.py: Base"]
    (tmp_path / "user.py").write_text("build_it(Base, 1)\n")
    assert list(cut_classes(sorted(tmp_path.iterdir()), tmp_path)) == []
    (tmp_path / "user.py").unlink()
    (tmp_path / "other.py").write_text("class Other(Base):\n    pass\n")
    assert list(cut_classes(sorted(tmp_path.iterdir()), tmp_path)) == []
