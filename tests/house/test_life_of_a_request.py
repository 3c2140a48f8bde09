"""docs/life-of-a-request.md names files that exist, and few enough to read."""

from __future__ import annotations

import re

from source_tree import REPOSITORY, SOURCE

MAX_FILES = 25


def test_must_read_files_exist_and_are_few() -> None:
    text = (REPOSITORY / "docs" / "life-of-a-request.md").read_text()
    rows = re.findall(r"^\| (\d+) \| `([a-z_/]+\.py)` \|", text, re.MULTILINE)
    assert [int(number) for number, _ in rows] == list(range(1, len(rows) + 1)) and 0 < len(rows) <= MAX_FILES
    assert [name for _, name in rows if not (SOURCE / name).exists()] == []
    drawn = dict(re.findall(r"\[(\d+) ([a-z_]+)\]", text))
    assert drawn == {number: name.rpartition("/")[2].removesuffix(".py") for number, name in rows}
