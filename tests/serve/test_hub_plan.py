"""Plans of models on the hub, from the headers of their files."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save

from fake_hub import FakeHub, FakeRepo, hub_of
from ferrum.cli.main import execute
from ferrum.core.config import ModelConfig
from ferrum.core.errors import CheckpointError, FerrumError, HubUnreachable, ModelGated, ModelNotFound
from ferrum.models.decoder import parameter_shapes
from ferrum.models.families import decoder_spec
from ferrum.runtime.load import plan_model
from ferrum.runtime.packing import pack_directory
from ferrum.sources.hub import BUILT_IN, resolve_model
from ferrum.sources.random_checkpoint import RandomCheckpoint
from quantized_kit import gptq
from quantized_kit import save as save_all

SHAPE = {
    **json.loads((resolve_model(BUILT_IN) / "config.json").read_text()),
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "vocab_size": 512,
}
CONFIG = json.dumps(SHAPE).encode()
TENSORS = {name: np.zeros(shape, np.float16) for name, shape in parameter_shapes(decoder_spec(SHAPE)).items()}
NAMES = sorted(TENSORS)
SHARDS = {"model-1.safetensors": NAMES[::2], "model-2.safetensors": NAMES[1::2]}
INDEX = json.dumps({"weight_map": {name: file for file, names in SHARDS.items() for name in names}}).encode()


ENTRY = {"dtype": "F16", "shape": [1], "data_offsets": [0, 2]}


def headed(header: object) -> bytes:
    """Return a weight file with the header."""
    text = json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + bytes(2)


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeHub]:
    whole = save(TENSORS)
    sharded = {file: save({name: TENSORS[name] for name in names}) for file, names in SHARDS.items()}
    pack_directory(RandomCheckpoint("random", SHAPE), tmp_path / "packed", "q4_0")
    repos = {
        "maker/whole": FakeRepo({"config.json": CONFIG, "model.safetensors": whole}),
        "maker/sharded": FakeRepo({"config.json": CONFIG, "model.safetensors.index.json": INDEX, **sharded}),
        "maker/packed": FakeRepo({path.name: path.read_bytes() for path in (tmp_path / "packed").iterdir()}),
        "maker/gated": FakeRepo({"config.json": CONFIG, "model.safetensors": whole}, gated=True),
        "maker/pickles": FakeRepo({"config.json": CONFIG, "pytorch_model.bin": b"a pickle"}),
        "maker/blank": FakeRepo({"model.safetensors": whole}),
        "maker/broken": FakeRepo({"config.json": CONFIG, "model.safetensors": b"\xff" * 100}),
        "maker/odd": FakeRepo({"config.json": CONFIG, "model.safetensors": headed({"x": {**ENTRY, "shape": None}})}),
        "maker/list": FakeRepo({"config.json": CONFIG, "model.safetensors": headed([ENTRY])}),
        "maker/shard": FakeRepo({"config.json": CONFIG, "model.safetensors.index.json": INDEX}),
        "maker/config": FakeRepo({"config.json": b"{", "model.safetensors": whole}),
        "maker/other": FakeRepo({"config.json": CONFIG, "model.safetensors": save({"x": np.zeros(3, np.float32)})}),
    }
    with hub_of(repos, tmp_path, monkeypatch) as hub:
        yield hub


def test_settings_next_to_config_json_are_read(hub: FakeHub, tmp_path: Path) -> None:
    """A plan of a quantised model needs its scales, so the model is downloaded."""
    pack, settings = gptq(group=64)
    rng = np.random.default_rng(0)
    tensors: dict[str, np.ndarray] = {}
    for name, values in TENSORS.items():
        parts = pack(values.astype(np.float32) + 0.01, rng)[0] if name.endswith("_proj.weight") else {"weight": values}
        tensors |= {f"{name.removesuffix('.weight')}.{part}": array for part, array in parts.items()}
    save_all(tensors, tmp_path / "model.safetensors")
    side = {key: value for key, value in settings.items() if key != "quant_method"}
    hub.repos["maker/gptq"] = FakeRepo(
        {
            "config.json": CONFIG,
            "model.safetensors": (tmp_path / "model.safetensors").read_bytes(),
            "quantize_config.json": json.dumps(side).encode(),
        }
    )
    assert "q4_0" in plan_model(ModelConfig(model="maker/gptq", kv_capacity=256)).traits.weights


@pytest.mark.parametrize("options", [{}, {"quantize": "int8"}])
@pytest.mark.parametrize("name", ["maker/whole", "maker/sharded", "maker/whole@v1.0"])
def test_plan_equals_that_of_the_download_without_downloading(
    hub: FakeHub, tmp_path: Path, name: str, options: dict[str, str]
) -> None:
    config = ModelConfig(model=name, kv_capacity=1000, **options)  # type: ignore[arg-type]
    before = plan_model(config)
    asked = [request for request in hub.seen("GET") if ".safetensors" in request and "index" not in request]
    assert asked and all(request.endswith("bytes=0-100000") for request in asked), "headers, whatever comes after them"
    assert not [path for path in (tmp_path / "cache").rglob("*") if path.is_file()]
    resolve_model(name)
    count = len(hub.requests)
    assert plan_model(config) == before
    assert len(hub.requests) == count, "what is here is not asked for"


def test_packed_model_is_fetched_for_its_plan(hub: FakeHub) -> None:
    plan = plan_model(ModelConfig(model="maker/packed", kv_capacity=1000))
    assert plan.traits.weights == "q4_0 of bfloat16" and hub.requests


@pytest.mark.parametrize(
    ("name", "kind", "told"),
    [
        ("maker/none", ModelNotFound, "not on the hub"),
        ("maker/whole@v9", ModelNotFound, "no revision"),
        ("maker/gated", ModelGated, "gated"),
        ("maker/pickles", CheckpointError, "no safetensors weights"),
        ("maker/blank", CheckpointError, "no config.json"),
        ("maker/broken", CheckpointError, "'maker/broken' holds no valid safetensors file"),
        ("maker/odd", CheckpointError, "no valid safetensors file"),
        ("maker/list", CheckpointError, "no valid safetensors file"),
        ("maker/shard", CheckpointError, "'maker/shard' lacks model-1.safetensors, which"),
        ("maker/config", CheckpointError, "maker/config/config.json: is not valid JSON"),
        ("maker/other", CheckpointError, "is missing"),
    ],
)
def test_plan_fails_like_loading(
    hub: FakeHub, name: str, kind: type[FerrumError], told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(kind, match=told):
        plan_model(ModelConfig(model=name))
    assert execute(["plan", name]) == 2
    assert told in capsys.readouterr().err


def test_damaged_cached_file_is_not_replaced_by_the_hub(hub: FakeHub) -> None:
    path = resolve_model("maker/whole") / "model.safetensors"
    path.resolve().write_bytes(path.read_bytes()[:-1000])
    with pytest.raises(CheckpointError, match="not a valid safetensors file"):
        plan_model(ModelConfig(model="maker/whole"))


def test_draft_model_on_the_hub_is_planned(hub: FakeHub, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["plan", "maker/whole", "--kv-capacity", "1000", "--speculative"]
    assert execute([*arguments, "maker/sharded"]) == 0
    assert "draft model" in capsys.readouterr().out
    assert not [path for path in (tmp_path / "cache").rglob("*") if path.is_file()]
    assert execute([*arguments, "maker/none"]) == 2
    assert "--speculative" in capsys.readouterr().err


def test_unreachable_hub_is_reported_by_the_plan(hub: FakeHub) -> None:
    hub.status = 503
    with pytest.raises(HubUnreachable):
        plan_model(ModelConfig(model="maker/whole"))
