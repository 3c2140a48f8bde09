"""Pooling read from the files of an embedding model."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from ferrum.core.errors import CheckpointError, Unsupported
from ferrum.core.types import Pooling
from ferrum.text.model_files import DirectoryFiles
from ferrum.text.pooling import load_pooling, module_files

FLAGS = ("cls_token", "mean_tokens", "max_tokens", "mean_sqrt_len_tokens", "weightedmean_tokens", "lasttoken")


def flags(*on: str) -> dict[str, Any]:
    """A pooling configuration in the common form."""
    return {"word_embedding_dimension": 8, **{f"pooling_mode_{name}": name in on for name in FLAGS}}


def modules(*kinds: str) -> list[dict[str, Any]]:
    return [{"idx": i, "path": f"{i}_{kind}" if i else "", "type": f"library.{kind}"} for i, kind in enumerate(kinds)]


def written(directory: Path, config: Any, *kinds: str) -> Path:
    (directory / "modules.json").write_text(json.dumps(modules(*(kinds or ("Transformer", "Pooling", "Normalize")))))
    (directory / "1_Pooling").mkdir()
    (directory / "1_Pooling" / "config.json").write_text(json.dumps(config))
    return directory


@pytest.mark.parametrize(
    ("config", "pooling"),
    [
        (flags("lasttoken"), Pooling.LAST),
        (flags("mean_tokens"), Pooling.MEAN),
        (flags("mean_sqrt_len_tokens"), Pooling.MEAN),
        ({"pooling_mode": "lasttoken", "include_prompt": True}, Pooling.LAST),
        ({"pooling_mode": ["mean"]}, Pooling.MEAN),
    ],
)
def test_pooling_is_read_from_the_files(tmp_path: Path, config: dict[str, Any], pooling: Pooling) -> None:
    assert load_pooling(DirectoryFiles(written(tmp_path, config))) is pooling
    assert module_files(DirectoryFiles(tmp_path)) == ["1_Pooling/config.json"]


def test_model_without_pooling_files_uses_the_mean(tmp_path: Path) -> None:
    assert load_pooling(DirectoryFiles(tmp_path)) is Pooling.MEAN and not module_files(DirectoryFiles(tmp_path))
    (tmp_path / "modules.json").write_text(json.dumps(modules("Transformer")))
    assert load_pooling(DirectoryFiles(tmp_path)) is Pooling.MEAN and not module_files(DirectoryFiles(tmp_path))


@pytest.mark.parametrize(
    ("config", "kinds", "names"),
    [
        (flags("cls_token"), (), "1_Pooling/config.json: pooling by cls_token "),
        (flags("mean_tokens", "max_tokens"), (), "pooling by mean_tokens and max_tokens "),
        (flags(), (), "pooling by nothing "),
        ({"pooling_mode": "weightedmean"}, (), "pooling by weightedmean "),
        (flags("mean_tokens"), ("Transformer", "Pooling", "Dense"), r"modules.json: library.Dense "),
    ],
)
def test_unimplemented_pooling_is_named(
    tmp_path: Path, config: dict[str, Any], kinds: tuple[str, ...], names: str
) -> None:
    with pytest.raises(Unsupported, match=f"{names}.*--pooling"):
        load_pooling(DirectoryFiles(written(tmp_path, config, *kinds)))


def test_missing_pooling_file_is_reported(tmp_path: Path) -> None:
    (written(tmp_path, flags("lasttoken")) / "1_Pooling" / "config.json").unlink()
    with pytest.raises(CheckpointError, match=r"1_Pooling/config\.json.*modules\.json"):
        load_pooling(DirectoryFiles(tmp_path))


@pytest.mark.parametrize(
    "text",
    [
        *("{", "{}", "[1]", '[{"type": 7}]', '[{"type": "Pooling"}]'),
        *(f'[{{"type": "Pooling", "path": "{path}"}}]' for path in ("", "..", "../other", "/etc", "a/b")),
    ],
)
def test_damaged_module_list_is_rejected(tmp_path: Path, text: str) -> None:
    (tmp_path / "modules.json").write_text(text)
    for read in (load_pooling, module_files):
        with pytest.raises(CheckpointError, match=r"modules\.json"):
            read(DirectoryFiles(tmp_path))
