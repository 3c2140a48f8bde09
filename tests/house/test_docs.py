"""Documents: links and anchors lead somewhere, named files exist, and the map matches the tree."""

from __future__ import annotations

import re
from pathlib import Path

import module_map
from document_blocks import anchors, blocks, links, without_blocks
from source_tree import MODULES, REPOSITORY, ROOMS, SOURCE, WITHOUT_ARRAYS

DOCS = REPOSITORY / "docs"
DOCUMENTS = sorted([*REPOSITORY.glob("*.md"), *DOCS.rglob("*.md"), *REPOSITORY.glob(".github/**/*.md")])


def broken_links(path: Path) -> list[str]:
    """Return targets that name no file or no heading of it."""
    broken = []
    for target in links(path):
        if target.startswith(("http://", "https://")):
            continue
        file, _, anchor = target.partition("#")
        aim = (path.parent / file).resolve() if file else path
        if not aim.exists() or (anchor and anchor not in anchors(aim)):
            broken.append(f"{path.relative_to(REPOSITORY)}: {target}")
    return broken


def test_links_and_anchors_exist() -> None:
    assert [each for path in DOCUMENTS for each in broken_links(path)] == []


def test_planted_broken_links_are_found(tmp_path: Path) -> None:
    (tmp_path / "a.md").write_text("# One heading\n[x](#one-heading) [y](#two) [z](missing.md) `[w](code.md)`\n")
    found = [target for target in links(tmp_path / "a.md") if target != "#one-heading"]
    assert found == ["#two", "missing.md"] and anchors(tmp_path / "a.md") == {"one-heading"}


def test_documents_of_the_site_link_only_within_it() -> None:
    """MkDocs builds docs/ alone, so a link out of it would break there."""
    out = [
        f"{path.name}: {target}"
        for path in DOCS.rglob("*.md")
        for target in links(path)
        if not target.startswith(("http", "#")) and not (path.parent / target).resolve().is_relative_to(DOCS)
    ]
    assert out == []


def test_named_files_exist() -> None:
    """Code spans that begin with a folder of the repository name files that exist, or patterns that match."""
    span = re.compile(r"`((?:src|tests|bench|docs|examples|native|training)/[\w./*-]+)`")
    missing = [
        f"{path.name}: {name}"
        for path in DOCUMENTS
        for name in span.findall(without_blocks(path))
        if not any(REPOSITORY.glob(name.rstrip("/")))
    ]
    assert missing == []


def test_named_modules_exist() -> None:
    """Code spans such as `core/step.py` or `cpu/lowering.py` name a module of the package or of the native library."""
    span = re.compile(r"`((?:[\w*]+/)+[\w*]+\.(?:py|[ch]pp))(?:`|:)")
    roots = [SOURCE, SOURCE / "kernels", REPOSITORY, REPOSITORY / "native"]
    missing = [
        f"{path.name}: {name}"
        for path in DOCUMENTS
        if path.name != "CHANGELOG.md"
        for name in span.findall(without_blocks(path))
        if not any(any(root.glob(name)) for root in roots)
    ]
    assert missing == []


def test_question_table_names_definitions_that_exist() -> None:
    """In docs/index.md, names after `path.py`: are defined or used in that file."""
    rows = re.findall(r"`(src/ferrum/[\w/]+\.py)`: ((?:`\w+`(?:, )?)+)", (DOCS / "index.md").read_text())
    assert len(rows) >= 4
    for path, names in rows:
        for name in re.findall(r"`(\w+)`", names):
            assert re.search(rf"\b{name}\b", (REPOSITORY / path).read_text()), f"{path} does not define {name}"


def test_maps_of_modules_are_those_of_their_docstrings() -> None:
    text = module_map.DOCUMENT.read_text()
    assert module_map.with_map(text) == text, "run python tests/support/module_map.py"
    assert module_map.support_index() == module_map.INDEX.read_text(), "run python tests/support/module_map.py"


def test_architecture_describes_every_room_in_order() -> None:
    """A row for each room, with the star of rooms without arrays and three files that exist in the room."""
    rows = re.findall(r"^\| `(\w+)/`( \*)? \| [^|]+ \| (.+) \|$", (DOCS / "architecture.md").read_text(), re.MULTILINE)
    assert [(room, bool(star)) for room, star, _ in rows] == [
        *((room, room in WITHOUT_ARRAYS) for room in ROOMS),
        ("native", False),
    ]
    for room, _, files in rows:
        folder, names = REPOSITORY / "native" if room == "native" else SOURCE / room, re.findall(r"`([\w.]+)`", files)
        assert len(names) == 3, room
        assert [name for name in names if not any(folder.rglob(name if "." in name else f"{name}.py"))] == [], room


def test_every_module_says_what_it_has() -> None:
    modules = [*MODULES, *module_map.SUPPORT.rglob("*.py")]
    assert [path for path in modules if not module_map.first_line(path)] == []


def test_glossary_defines_each_term_once() -> None:
    terms = re.findall(r"^\| ([a-z][^|]+) \|", (DOCS / "glossary.md").read_text(), re.MULTILINE)[1:]
    assert len(terms) >= 40 and len(set(terms)) == len(terms)


def test_blocks_without_a_test_say_why() -> None:
    exempt = [block for path in DOCUMENTS for block in blocks(path) if block.exempt]
    assert exempt and all(len(block.exempt.split()) >= 4 for block in exempt)
