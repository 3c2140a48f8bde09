"""Generation defaults of a checkpoint."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from ferrum.core.errors import CheckpointError, RequestError
from ferrum.core.params import SamplingParams, over_recommended
from ferrum.text.generation_config import GenerationConfig, load_generation_config
from ferrum.text.model_files import DirectoryFiles


def write(directory: Path, name: str = "generation_config.json", **entries: Any) -> None:
    (directory / name).write_text(json.dumps(entries), encoding="utf-8")


def test_missing_file_recommends_nothing(tmp_path: Path) -> None:
    assert load_generation_config(DirectoryFiles(tmp_path)) == GenerationConfig()


def test_recommendations_are_fields_of_sampling_params(tmp_path: Path) -> None:
    # The entries of Qwen3's file.
    write(
        tmp_path,
        bos_token_id=151643,
        do_sample=True,
        eos_token_id=[151645, 151643],
        pad_token_id=151643,
        temperature=0.6,
        top_k=20,
        top_p=0.95,
        transformers_version="4.51.0",
    )
    config = load_generation_config(DirectoryFiles(tmp_path))
    assert config.eos_token_ids == (151645, 151643)
    assert (config.bos_token_id, config.pad_token_id, config.ignored) == (151643, 151643, ())
    params = SamplingParams(**config.sampling)
    assert (params.temperature, params.top_k, params.top_p) == (0.6, 20, 0.95)


def test_do_sample_false_sets_temperature_zero(tmp_path: Path) -> None:
    write(tmp_path, do_sample=False, temperature=0.7, max_new_tokens=32, repetition_penalty=1.1, min_p=None)
    assert load_generation_config(DirectoryFiles(tmp_path)).sampling == {
        "temperature": 0,
        "max_tokens": 32,
        "repetition_penalty": 1.1,
    }


@pytest.mark.contract("5.ends come from generation_config.json")
@pytest.mark.parametrize(("value", "ids"), [(2, (2,)), ([3, 2, 3], (3, 2)), (None, ()), (-1, ()), ([], ())])
def test_eos_token_id_is_a_number_or_a_list(tmp_path: Path, value: Any, ids: tuple[int, ...]) -> None:
    write(tmp_path, eos_token_id=value)
    assert load_generation_config(DirectoryFiles(tmp_path)).eos_token_ids == ids


def test_token_ids_fall_back_to_the_model_configuration(tmp_path: Path) -> None:
    write(tmp_path, eos_token_id=5)
    write(tmp_path, "config.json", eos_token_id=[6], bos_token_id=7, temperature=0.5)
    config = load_generation_config(DirectoryFiles(tmp_path))
    assert (config.eos_token_ids, config.bos_token_id, dict(config.sampling)) == ((5,), 7, {})
    (tmp_path / "generation_config.json").unlink()
    assert load_generation_config(DirectoryFiles(tmp_path)).eos_token_ids == (6,)


def test_entries_without_effect_are_named(tmp_path: Path) -> None:
    write(tmp_path, num_beams=4, diversity_penalty=3, typical_p=None, transformers_version="5", top_p=0.9)
    assert load_generation_config(DirectoryFiles(tmp_path)).ignored == ("num_beams", "diversity_penalty")


def test_entries_that_transformers_always_writes_are_not_reported(tmp_path: Path) -> None:
    """These are the entries that release 5 saves for any model."""
    write(tmp_path, _from_model_config=True, output_attentions=False, output_hidden_states=False, use_cache=True)
    assert load_generation_config(DirectoryFiles(tmp_path)).ignored == ()


@pytest.mark.parametrize(
    "entry",
    [
        {"temperature": -1},
        {"temperature": "hot"},
        {"top_p": 0},
        {"top_k": 1.5},
        {"max_new_tokens": -1},
        {"do_sample": "no"},
        {"eos_token_id": "</s>"},
        {"eos_token_id": [True]},
        {"pad_token_id": -2},
        {"bos_token_id": 1.0},
    ],
)
def test_invalid_entry_is_named_with_its_file(tmp_path: Path, entry: dict[str, Any]) -> None:
    write(tmp_path, **entry)
    name = next(iter(entry)).replace("max_new_tokens", "max_tokens")
    with pytest.raises(CheckpointError, match=rf"generation_config\.json: {name}"):
        load_generation_config(DirectoryFiles(tmp_path))


def test_min_new_tokens_alone_is_valid(tmp_path: Path) -> None:
    write(tmp_path, min_new_tokens=100)
    assert load_generation_config(DirectoryFiles(tmp_path)).sampling == {"min_tokens": 100}


def test_recommended_min_tokens_is_lowered_to_max_tokens_but_a_given_one_is_not() -> None:
    recommended = {"min_tokens": 100}
    for given in ({}, {"max_tokens": 3}, {"max_tokens": 0}, {"max_tokens": 200}, {"max_tokens": None}):
        params = over_recommended(recommended, given)
        assert params.min_tokens == (100 if params.max_tokens is None else min(100, params.max_tokens))
    with pytest.raises(RequestError) as caught:
        over_recommended({"max_tokens": 5}, {"min_tokens": 6})
    assert caught.value.param == "min_tokens"


@pytest.mark.parametrize("name", ["generation_config.json", "config.json"])
def test_damaged_files_are_named(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text("{")
    with pytest.raises(CheckpointError, match=name):
        load_generation_config(DirectoryFiles(tmp_path))
