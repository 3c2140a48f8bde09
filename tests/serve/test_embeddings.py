"""Embeddings: pooling independent of prompt chunks, and the shapes of the OpenAI API."""

from __future__ import annotations

import base64
import json
import shutil
import struct
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import openai
import pytest

from engine_fakes import POISON, FakeRecipe
from fakes import FakeModel
from ferrum import PrefillInput, load_executor
from ferrum.client.async_engine import AsyncEngine
from ferrum.core.errors import Unsupported
from ferrum.server.tasks.embeddings import MAX_QUEUED
from ferrum.sources.hub import BUILT_IN, resolve_model
from serve_kit import Served, chat_parts, error_of, serving, wait_for

IDS = [int(i) for i in np.random.default_rng(0).integers(1, 4000, 150)]


@pytest.fixture(scope="module")
def hidden() -> Any:
    """f32 [150, H]: the final hidden states of IDS, from the executor."""
    with load_executor(BUILT_IN) as executor:
        states = executor.prefill(PrefillInput(np.array([IDS]), return_hidden_states=True)).hidden_states
    return np.asarray(states).reshape(len(IDS), -1)


@pytest.fixture(scope="module", params=[512, 40])
def real(request: pytest.FixtureRequest) -> Iterator[Served]:
    """Servers that compute the prompt in one step and in four."""
    with serving(lambda: AsyncEngine(BUILT_IN, max_tokens_per_step=request.param)) as served:
        yield served


def vectors(server: Served, **body: Any) -> list[list[float]]:
    response = server.post("/v1/embeddings", **{"model": server.service.model().name, **body})
    assert response.status_code == 200, response.text
    return [each["embedding"] for each in response.json()["data"]]


def unit(vector: Any) -> Any:
    return vector / np.linalg.norm(vector)


def test_mean_pooling_does_not_depend_on_prompt_chunks(real: Served, hidden: Any) -> None:
    [vector] = vectors(real, input=IDS)
    total = np.zeros_like(hidden[0])
    for row in hidden:
        total += row
    exact = (total / np.float32(len(IDS))).astype(np.float64)
    np.testing.assert_allclose(vector, unit(exact), rtol=1e-12)


def test_last_token_pooling(hidden: Any) -> None:
    with serving(lambda: AsyncEngine(BUILT_IN, max_tokens_per_step=64), pooling="last") as server:
        [vector] = vectors(server, input=[IDS])
        np.testing.assert_allclose(vector, unit(hidden[-1].astype(np.float64)), rtol=1e-12)


def test_pooling_comes_from_the_checkpoint_unless_chosen(tmp_path: Path, hidden: Any) -> None:
    model = shutil.copytree(resolve_model(BUILT_IN), tmp_path / "model")
    types = {"": "Transformer", "1_Pooling": "Pooling"}
    (model / "modules.json").write_text(json.dumps([{"path": path, "type": types[path]} for path in types]))
    (model / "1_Pooling").mkdir()
    (model / "1_Pooling" / "config.json").write_text('{"pooling_mode_lasttoken": true}')
    with serving(lambda: AsyncEngine(str(model))) as server:
        [vector] = vectors(server, input=[IDS])
        np.testing.assert_allclose(vector, unit(hidden[-1].astype(np.float64)), rtol=1e-12)
    with serving(lambda: AsyncEngine(str(model)), pooling="mean") as server:
        assert vectors(server, input=[IDS]) != [vector]
    (model / "1_Pooling" / "config.json").write_text('{"pooling_mode_cls_token": true}')
    with pytest.raises(Unsupported, match="pooling by cls_token"), serving(lambda: AsyncEngine(str(model))):
        pass


def test_official_sdk_reads_floats_and_base64(server: Served) -> None:
    client = server.openai()
    plain = client.embeddings.create(model="fake", input=["ab", "cd", "ab"], encoding_format="float")
    packed = client.embeddings.create(model="fake", input=["ab", "cd", "ab"])  # the SDK asks for base64
    assert [each.index for each in plain.data] == [0, 1, 2] and plain.usage.prompt_tokens == 6
    assert plain.data[0].embedding == plain.data[2].embedding != plain.data[1].embedding
    for one, other in zip(plain.data, packed.data, strict=True):
        assert one.embedding == pytest.approx(other.embedding, rel=1e-6)
    [text] = vectors(server, input="ab", encoding_format="base64")
    assert isinstance(text, str)
    assert struct.unpack("<3f", base64.b64decode(text)) == pytest.approx(plain.data[0].embedding, rel=1e-6)


def test_preemption_and_batching_change_no_vector() -> None:
    tight = FakeRecipe(num_pages=12, page_size=4, max_tokens_per_step=8)
    inputs = [[1 + i] * (5 + 3 * i) for i in range(10)]
    with serving(chat_parts(tight)) as server:
        together = vectors(server, input=inputs)
        assert together == [vectors(server, input=each)[0] for each in inputs]
    model = FakeModel()
    states = [model.hidden(model.visible(inputs[3], at)) for at in range(len(inputs[3]))]
    assert together[3] == pytest.approx(unit(np.mean(states, axis=0)))


def test_more_inputs_than_queue_slots_are_served() -> None:
    with serving(chat_parts(max_requests=3)) as server:
        assert len(vectors(server, input=["a"] * 50)) == 50
        server.wait_idle()


def test_request_keeps_its_queue_slots_until_its_last_input() -> None:
    recipe = FakeRecipe(seconds_per_step=0.005)
    with serving(chat_parts(recipe, max_requests=4)) as server, ThreadPoolExecutor(1) as pool:
        asked = pool.submit(vectors, server, input=["ab"] * 200)
        wait_for(lambda: server.service.num_live == 1)
        others = []
        while not asked.done():
            others.append(server.complete(max_tokens=100, ignore_eos=True))
        assert len(asked.result()) == 200
        for each in others[:-1]:
            assert error_of(each, 429)["code"] == "queue_full"
        wait_for(lambda: server.complete(prompt=["a"] * 4, max_tokens=1).status_code == 200)


def test_waiting_inputs_are_served_while_the_server_drains() -> None:
    with serving(chat_parts(FakeRecipe(seconds_per_step=0.05))) as server, ThreadPoolExecutor(1) as pool:
        asked = pool.submit(vectors, server, input=["ab"] * (2 * MAX_QUEUED + 1))
        wait_for(lambda: server.service.num_live == 1)
        server.service.drain()
        assert len(asked.result()) == 2 * MAX_QUEUED + 1


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"input": []}, "input"),
        ({"input": ""}, "input"),
        ({"input": ["a", ""]}, "input[1]"),
        ({"input": [[1], [500]]}, "input[1]"),
        ({"input": ["a"] * 2049}, "input"),
        ({"input": {"a": 1}}, "input"),
        ({"input": "a", "dimensions": 0}, "dimensions"),
        ({"input": "a", "dimensions": 2}, "dimensions"),
        ({"input": "a", "encoding_format": "hex"}, "encoding_format"),
        ({"input": "a", "truncate": "MIDDLE"}, "truncate"),
        ({"input": "a", "truncate_prompt_tokens": 0}, "truncate_prompt_tokens"),
        ({"input": "a" * 10_000, "truncate": "NONE"}, "input"),
        ({"input": "a" * 10_000, "truncate": False}, "input"),
    ],
)
def test_invalid_fields_are_refused_by_name(server: Served, body: dict[str, Any], param: str) -> None:
    assert error_of(server.post("/v1/embeddings", model="fake", **body), 400)["param"] == param


def test_dimensions_of_the_model_are_accepted_and_user_has_no_effect(server: Served) -> None:
    assert vectors(server, input="a", dimensions=3, user="u") == vectors(server, input="a")


def test_one_failed_input_fails_the_request(server: Served) -> None:
    assert error_of(server.post("/v1/embeddings", model="fake", input=[[1], [POISON]]), 500)
    with pytest.raises(openai.NotFoundError):
        server.openai().embeddings.create(model="other", input="a")
    server.wait_idle()
