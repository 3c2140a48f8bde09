"""The documents of the executor: the reference equals the source, and every public name is in a page."""

from __future__ import annotations

import re
from dataclasses import fields
from importlib import import_module
from pathlib import Path

import pytest

import ferrum
from contract_kit import INFO, make_fake
from executor_reference import BEGIN, CLASSES, DOCUMENT, ELSEWHERE, ENUMS, RECORDS, described, with_reference
from ferrum import ConfigError, ExecutorConfig, ModelExecutorFactory

DOCS = Path(__file__).parents[2] / "docs"
TEXT = DOCUMENT.read_text()
DOCUMENTED = [name for names in RECORDS.values() for name in names.split()]


def test_the_reference_equals_the_source() -> None:
    assert with_reference(TEXT) == TEXT, "run python tests/support/executor_reference.py"


@pytest.mark.parametrize("name", DOCUMENTED)
def test_every_field_has_a_meaning(name: str) -> None:
    record = getattr(ferrum, name)
    assert {item.name for item in fields(record)} <= set(described(record))


def test_every_name_of_the_executor_is_in_its_document() -> None:
    names = [name for name, home in ferrum._HOMES.items() if not home.startswith(ELSEWHERE)]
    assert [name for name in names if not re.search(rf"\b{name}\b", TEXT)] == []
    assert {*ENUMS.split(), *DOCUMENTED, *CLASSES} <= set(ferrum.__all__)


def test_every_public_name_is_in_the_api_page_with_its_home() -> None:
    paths = re.findall(r"^::: (\S+)$", (DOCS / "api.md").read_text(), re.MULTILINE)
    assert sorted(paths) == sorted(f"{home}.{name}" for name, home in ferrum._HOMES.items())
    for path in paths:
        home, _, name = path.rpartition(".")
        assert getattr(ferrum, name) is getattr(import_module(home), name)


def test_documents_import_public_names_from_the_package() -> None:
    """A program of a document needs no module below `ferrum` for a name that the package has."""
    deep = re.compile(r"^from ferrum\.[\w.]+ import (.+)$", re.MULTILINE)
    for path in DOCS.rglob("*.md"):
        names = [name.strip("() ") for names in deep.findall(path.read_text()) for name in names.split(",")]
        assert set(names) & set(ferrum.__all__) == set(), path


def test_documented_options_are_taken_and_others_refused() -> None:
    part = TEXT.partition(BEGIN)[2].partition("### Options in executor_options")[2].partition("### Switches")[0]
    rows = dict(re.findall(r"^\| `(\w+)` \| `(.+?)` \|", part, re.MULTILINE))
    values = {"None": None, "1": 1, "64": 64, "512": 512}
    options = {name: values.get(value, value.strip("'")) for name, value in rows.items()}
    factory = ModelExecutorFactory(lambda *_, **__: make_fake().executor)
    factory.validate_config(ExecutorConfig(model_info=INFO, executor_options=options))
    with pytest.raises(ConfigError) as caught:
        factory.validate_config(ExecutorConfig(model_info=INFO, executor_options={"group": 32}))
    assert len(options) == 11 and all(f"{name}" in str(caught.value) for name in options)
