"""Rerank and score routes: log-odds of a reranker's two tokens, cosines of an embedding model."""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from engine_fakes import FakeRecipe
from ferrum.client.async_engine import AsyncEngine
from serve_kit import Served, chat_parts, error_of, serving
from tiny_with_tokenizer import spoken

QUERY = "red fish"
DOCUMENTS = ["a red fish", "", "trees", "a red fish", "{query} and more " * 3]
TRUE, FALSE = 91, 80
TEMPLATE = (
    "{{ bos_token }}{% for m in messages if m.role == 'system' %}{{ m.content }}: {% endfor %}"
    "{{ (messages | selectattr('role', 'eq', 'query') | first).content }} ? "
    "{{ (messages | selectattr('role', 'eq', 'document') | first).content }}"
    "{% if add_generation_prompt %} = {% endif %}"
)


def reranker(directory: Path, **score: Any) -> Path:
    """Return a tiny random model with the files that `sentence-transformers` saves for a `CrossEncoder` of it."""
    shutil.copytree(spoken("qwen3"), directory)
    config = json.loads((directory / "tokenizer_config.json").read_text())
    (directory / "tokenizer_config.json").write_text(json.dumps({**config, "chat_template": TEMPLATE}))
    (directory / "chat_template.jinja").unlink(missing_ok=True)
    types = {"": "base.modules.transformer.Transformer", "1_LogitScore": "cross_encoder.modules.logit_score.LogitScore"}
    modules = [{"path": path, "type": f"sentence_transformers.{kind}"} for path, kind in types.items()]
    (directory / "modules.json").write_text(json.dumps(modules))
    (directory / "1_LogitScore").mkdir()
    tokens = {"true_token_id": TRUE, "false_token_id": FALSE, **score}
    (directory / "1_LogitScore" / "config.json").write_text(json.dumps(tokens))
    prompts = {"prompts": {"web": "find"}, "default_prompt_name": "web"}
    (directory / "config_sentence_transformers.json").write_text(json.dumps(prompts))
    kwargs = {"processing_kwargs": {"chat_template": {"add_generation_prompt": True}}}
    (directory / "sentence_bert_config.json").write_text(json.dumps(kwargs))
    return directory


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return reranker(tmp_path_factory.mktemp("rerank") / "model")


@pytest.fixture(scope="module")
def ranking(checkpoint: Path) -> Iterator[Served]:
    with serving(lambda: AsyncEngine(str(checkpoint))) as served:
        yield served


@pytest.fixture(scope="module")
def embedding() -> Iterator[Served]:
    with serving(replace(chat_parts(FakeRecipe(fails=False)), embeds=True)) as served:
        yield served


def odds(checkpoint: Path, query: str, document: str, instruction: str = "find") -> float:
    """Return the difference of both tokens' logits by `transformers`."""
    tokenizer = AutoTokenizer.from_pretrained(checkpoint)
    chat = [("system", instruction), ("query", query), ("document", document)]
    messages = [{"role": role, "content": text} for role, text in chat]
    text = tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
    model = AutoModelForCausalLM.from_pretrained(checkpoint, dtype=torch.float32)
    with torch.no_grad():
        logits = model(torch.tensor([tokenizer(text, add_special_tokens=False).input_ids])).logits[0, -1]
    return float(logits[TRUE] - logits[FALSE])


def scores(server: Served, **body: Any) -> list[float]:
    response = server.post("/v1/score", **body)
    assert response.status_code == 200, response.text
    assert [(each["index"], each["object"]) for each in response.json()["data"]] == [
        (index, "score") for index in range(len(response.json()["data"]))
    ]
    return [each["score"] for each in response.json()["data"]]


def test_scores_are_the_probability_of_the_true_token(ranking: Served, checkpoint: Path) -> None:
    found = scores(ranking, text_1=QUERY, text_2=DOCUMENTS)
    expected = [1 / (1 + math.exp(-odds(checkpoint, QUERY, each))) for each in DOCUMENTS]
    np.testing.assert_allclose(found, expected, rtol=1e-5)
    assert found[0] == found[3]
    [other] = scores(ranking, queries=QUERY, documents="trees", instruction="find a")
    np.testing.assert_allclose(other, 1 / (1 + math.exp(-odds(checkpoint, QUERY, "trees", "find a"))), rtol=1e-5)


def test_scores_are_the_same_bits_in_any_batch(ranking: Served) -> None:
    together = scores(ranking, text_1=QUERY, text_2=DOCUMENTS)
    assert together == [scores(ranking, text_1=[QUERY], text_2=[{"text": each}])[0] for each in DOCUMENTS]
    assert together == scores(ranking, data_1=[QUERY] * len(DOCUMENTS), data_2=DOCUMENTS)


@pytest.mark.parametrize("path", ["/rerank", "/v1/rerank", "/v2/rerank", "/reranking", "/v1/reranking"])
def test_documents_are_ranked(ranking: Served, path: str) -> None:
    found = scores(ranking, text_1=QUERY, text_2=DOCUMENTS)
    reply = ranking.post(path, query=QUERY, documents=[{"text": DOCUMENTS[0]}, *DOCUMENTS[1:]], top_n=3).json()
    best = sorted(range(len(found)), key=lambda index: -found[index])[:3]
    assert reply["results"] == [
        {"index": index, "relevance_score": found[index], "document": {"text": DOCUMENTS[index]}} for index in best
    ]
    assert reply["id"].startswith("rerank-") and reply["object"] == "list" and reply["model"] == "model"
    assert reply["usage"]["prompt_tokens"] == reply["usage"]["total_tokens"] > len(DOCUMENTS)
    short = ranking.post(path, query=QUERY, documents=DOCUMENTS, return_documents=False).json()["results"]
    assert len(short) == len(DOCUMENTS) and all(each.keys() == {"index", "relevance_score"} for each in short)


def test_a_saved_identity_gives_log_odds(tmp_path: Path) -> None:
    model = reranker(tmp_path / "model")
    config = json.loads((model / "config.json").read_text())
    config["sentence_transformers"] = {"activation_fn": "torch.nn.modules.linear.Identity"}
    (model / "config.json").write_text(json.dumps(config))
    with serving(lambda: AsyncEngine(str(model))) as served:
        found = scores(served, text_1=QUERY, text_2=DOCUMENTS[:2])
    np.testing.assert_allclose(found, [odds(model, QUERY, each) for each in DOCUMENTS[:2]], rtol=1e-4, atol=1e-6)


def test_embedding_models_score_by_cosine(embedding: Served) -> None:
    texts = ["ab", "ba", "abc", "ab"]
    data = embedding.post("/v1/embeddings", input=texts).json()["data"]
    vectors = np.array([each["embedding"] for each in data])
    embedding.requests.clear()
    found = scores(embedding, text_1="ab", text_2=texts)
    np.testing.assert_allclose(found, vectors @ vectors[0], rtol=1e-12)
    assert found[0] == found[3] == pytest.approx(1.0)
    ranked = embedding.post("/rerank", query="ab", documents=texts).json()["results"]
    assert [each["index"] for each in ranked][:2] == [0, 3]


def test_other_models_say_what_to_serve(server: Served) -> None:
    refused = error_of(server.post("/rerank", query="a", documents=["b"]), 400)
    assert refused["code"] == "unsupported_parameter" and refused["param"] == "model"
    assert "--pooling" in refused["message"] and "--reranker" in refused["message"]
    with serving(pooling="last") as served:
        assert served.post("/rerank", query="a", documents=["b"]).status_code == 200


def test_faults_of_bodies_name_the_field(embedding: Served) -> None:
    for path, body, field in (
        ("/rerank", {"query": "a", "documents": []}, "documents"),
        ("/rerank", {"query": "a", "documents": [{"txt": "b"}]}, "documents[0].text"),
        ("/rerank", {"query": "a", "documents": ["b"], "top_n": -1}, "top_n"),
        ("/rerank", {"query": "a", "documents": ["b"], "rank_fields": ["text"]}, "rank_fields"),
        ("/rerank", {"query": "a", "documents": ["b"], "instruction": "c"}, "instruction"),
        ("/rerank", {"query": "a", "documents": ["b", "c" * 100_000]}, "documents[1]"),
        ("/score", {"text_1": "a"}, "text_2"),
        ("/score", {"text_2": "a"}, "text_1"),
        ("/score", {"text_1": "a", "queries": "a", "text_2": "b"}, "queries"),
        ("/score", {"text_1": ["a", "b"], "text_2": ["a", "b", "c"]}, "text_2"),
        ("/score", {"text_1": "a", "text_2": "b", "softmax": True}, "softmax"),
    ):
        assert error_of(embedding.post(path, **body), 400)["param"] == field, body
    reply = embedding.post("/rerank", query="a", documents=["b"], max_tokens_per_doc=5, mood="x")
    assert reply.headers["x-ferrum-ignored"] == "max_tokens_per_doc, mood"


@pytest.mark.parametrize("path", ["/classify", "/v1/classify", "/pooling", "/v1/pooling"])
def test_classes_and_pooling_are_named_as_missing(server: Served, path: str) -> None:
    missing = error_of(server.post(path, input="a"), 404)
    assert f"{path} is not served; use POST /v1/" in missing["message"]
