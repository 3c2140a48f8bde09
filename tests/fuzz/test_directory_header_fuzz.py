"""Damaged configurations and weight headers of published models are read, or refused by name."""

from __future__ import annotations

import importlib
import json
import re
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import pytest

from ferrum.core.config import ModelConfig
from ferrum.core.errors import FerrumError
from ferrum.runtime.load import plan_model

PUBLISHED = Path(__file__).parents[1] / "data" / "published"
VALUES = (
    0,
    1,
    3,
    -1,
    1 << 31,
    1 << 63,
    0.0,
    -1.5,
    1e400,
    None,
    True,
    False,
    "",
    "x",
    [],
    [1],
    {},
    {"x": 1},
    [None] * 3,
)
NAMED = re.compile(
    r"architecture|quantised checkpoint|config\.json|tensors?\b|safetensors|at byte|header|architectures|rope"
)
SEEDS = 40
MOST_TENSORS = 450
"""Of the models that are damaged: larger ones take seconds each."""

Directory = tuple[dict[str, Any], dict[str, Any]]
"""The fields of config.json, and the header of the weights."""


@pytest.fixture(scope="module")
def published(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Directories with the headers of published models."""
    if not list(PUBLISHED.glob("*.json")):
        pytest.skip("there is no census of published models")
    census = importlib.import_module("census")
    folder = tmp_path_factory.mktemp("published")
    models = [model for model in census.models() if len(model.tensors()) < MOST_TENSORS][::3]
    return [census.write_headers(model, folder / str(number)) for number, model in enumerate(models)]


def change_field(random: Random, directory: Directory) -> None:
    """Change, drop or add a field of the configuration, at any depth."""
    fields = directory[0]
    inner = [value for value in fields.values() if isinstance(value, dict) and value]
    target = random.choice([fields, fields, *inner])
    name = random.choice(sorted(target))
    if random.random() < 0.2:
        del target[name]
    else:
        target[random.choice((name, name, name, "unknown_field"))] = random.choice(VALUES)


def change_tensor(random: Random, directory: Directory) -> None:
    """Change, drop or rename a tensor of the weights' header."""
    header = directory[1]
    name = random.choice(sorted(header))
    record = header[name]
    size = record["shape"][-1] if record["shape"] else 1
    ways: tuple[Callable[[], object], ...] = (
        lambda: header.pop(name),
        lambda: header.update({random.choice(("", "x", name + ".x")): header.pop(name)}),
        lambda: record.update(dtype=random.choice(("F32", "F16", "I8", "F8_E4M3", "X", "", None, 7))),
        lambda: record.update(
            shape=random.choice((record["shape"][::-1], [*record["shape"], 1], [], [-1], [size], None))
        ),
        lambda: record.update(data_offsets=random.choice(([0, 0], [8, 4], [0, 1 << 62], [-8, 8], [1], "x", None))),
        lambda: record.pop(random.choice(sorted(record))),
        lambda: header.update({name: random.choice(VALUES)}),
    )
    random.choice(ways)()


def damaged(seed: int, source: Path, target: Path) -> None:
    """Write a directory with one change."""
    random = Random(seed)
    with (source / "model.safetensors").open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        directory: Directory = json.loads((source / "config.json").read_text()), json.loads(file.read(length))
    random.choice((change_field, change_field, change_tensor))(random, directory)
    text = json.dumps(directory[1]).encode()
    lie = random.random() < 0.05
    size = (source / "model.safetensors").stat().st_size - length + len(text)
    target.mkdir()
    (target / "config.json").write_text(json.dumps(directory[0]))
    with (target / "model.safetensors").open("wb") as file:
        file.write((random.choice((0, 1, 1 << 40, 1 << 63)) if lie else len(text)).to_bytes(8, "little") + text)
        file.truncate(random.randrange(size) if random.random() < 0.05 else size)


def survey(seeds: range, bases: list[Path], folder: Path) -> list[str]:
    """Damage directories by the seeds and return what is wrong."""
    wrong = []
    for seed in seeds:
        base, target = bases[seed % len(bases)], folder / str(seed)
        damaged(seed, base, target)
        try:
            plan_model(ModelConfig(model=str(target), kv_capacity=64))
        except FerrumError as error:
            if not NAMED.search(str(error).replace(str(target), "")):
                wrong.append(f"names nothing: seed {seed}: {error}")
        except Exception as error:  # noqa: BLE001 - the test says which
            wrong.append(f"internal error: seed {seed}, directory {seed % len(bases)}: {error!r}")
        for path in target.iterdir():
            path.unlink()
    return wrong


@pytest.mark.parametrize("part", range(2))
def test_damaged_directories_are_read_or_refused_by_name(part: int, published: list[Path], tmp_path: Path) -> None:
    assert survey(range(part * SEEDS, (part + 1) * SEEDS), published, tmp_path) == []


@pytest.mark.soak
@pytest.mark.parametrize("part", range(4))
def test_many_damaged_directories_are_read_or_refused(part: int, published: list[Path], tmp_path: Path) -> None:
    assert survey(range(1000 * (part + 1), 1000 * (part + 1) + 500), published, tmp_path) == []
