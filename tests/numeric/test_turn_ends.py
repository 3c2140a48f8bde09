"""A chat ends its turn at the real special tokens of every family, in a directory and in a GGUF file."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gguf import GGUFWriter
from safetensors.numpy import save_file
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from ferrum import LLM, SamplingParams

DATA = Path(__file__).parents[1] / "data"
ROWS: list[dict[str, Any]] = json.loads((DATA / "turn_ends.json").read_text())
LETTERS = [*"abcdefgh", "gh"]
TEMPLATE = "{% for m in messages %}{{ m.content }}{% endfor %}"
LONG = SamplingParams(temperature=0.0, max_tokens=12)
SIZES = {
    "vocab_size": 32,
    "hidden_size": 64,
    "intermediate_size": 32,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "max_position_embeddings": 64,
    "rms_norm_eps": 1e-6,
}


def chain(follows: list[int]) -> dict[str, np.ndarray]:
    """Return the parameters of a Llama that follows each token by the one of this list, whatever came before."""
    hidden, inner, vocabulary = SIZES["hidden_size"], SIZES["intermediate_size"], SIZES["vocab_size"]
    embedding = np.zeros((vocabulary, hidden), np.float32)
    embedding[np.arange(vocabulary), np.arange(vocabulary)] = 1
    head = np.zeros_like(embedding)
    head[follows, np.arange(len(follows))] = 1
    layer = {
        **{f"self_attn.{part}_proj": (hidden // (1 if part in "qo" else 2), hidden) for part in "qkvo"},
        "mlp.gate_proj": (inner, hidden),
        "mlp.up_proj": (inner, hidden),
        "mlp.down_proj": (hidden, inner),
    }
    norms = ("model.layers.0.input_layernorm", "model.layers.0.post_attention_layernorm", "model.norm")
    return {
        "model.embed_tokens.weight": embedding,
        "lm_head.weight": head,
        **{f"{name}.weight": np.ones(hidden, np.float32) for name in norms},
        **{f"model.layers.0.{name}.weight": np.zeros(shape, np.float32) for name, shape in layer.items()},
    }


def vocabulary_of(row: dict[str, Any]) -> list[str]:
    special = dict.fromkeys([*row["directory"], *row["file"].values(), *row["other"], row["turn"]])
    return [*LETTERS, *special]


def model_of(row: dict[str, Any]) -> dict[str, np.ndarray]:
    """Return a model that says "b", tokens that end no turn, "c", the one that ends it, and then runs on."""
    tokens = vocabulary_of(row)
    said = ["a", "b", *row["other"], "c", row["turn"], "d", "e", "f"]
    follows = [tokens.index("g")] * len(tokens)
    for text, after in pairwise(said):
        follows[tokens.index(text)] = tokens.index(after)
    return chain(follows)


def write_directory(row: dict[str, Any], target: Path) -> Path:
    target.mkdir()
    tokens = vocabulary_of(row)
    tokenizer = Tokenizer(models.BPE({text: index for index, text in enumerate(tokens)}, [("g", "h")]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(text, special=True, normalized=False) for text in tokens[len(LETTERS) :]])
    tokenizer.save(str(target / "tokenizer.json"))
    config = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", **SIZES}
    files = {
        "config.json": config,
        "tokenizer_config.json": {"chat_template": TEMPLATE},
        "generation_config.json": {"eos_token_id": [tokens.index(text) for text in row["directory"]]},
    }
    for name, content in files.items():
        (target / name).write_text(json.dumps(content))
    save_file(model_of(row), target / "model.safetensors")
    return target


def write_file(row: dict[str, Any], target: Path) -> Path:
    writer, tokens = GGUFWriter(target, "llama"), vocabulary_of(row)
    writer.add_block_count(SIZES["num_hidden_layers"])
    writer.add_context_length(SIZES["max_position_embeddings"])
    writer.add_embedding_length(SIZES["hidden_size"])
    writer.add_feed_forward_length(SIZES["intermediate_size"])
    writer.add_head_count(SIZES["num_attention_heads"])
    writer.add_head_count_kv(SIZES["num_key_value_heads"])
    writer.add_layer_norm_rms_eps(SIZES["rms_norm_eps"])
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(tokens)
    writer.add_token_types([1] * len(LETTERS) + [3] * (len(tokens) - len(LETTERS)))
    writer.add_token_merges(["g h"])
    writer.add_chat_template(TEMPLATE)
    for key, text in row["file"].items():
        writer.add_uint32(f"tokenizer.ggml.{key}_token_id", tokens.index(text))
    names = {
        "model.embed_tokens": "token_embd",
        "model.norm": "output_norm",
        "lm_head": "output",
        "model.layers.0.input_layernorm": "blk.0.attn_norm",
        "model.layers.0.post_attention_layernorm": "blk.0.ffn_norm",
        **{f"model.layers.0.self_attn.{part}_proj": f"blk.0.attn_{part}" for part in "qkv"},
        "model.layers.0.self_attn.o_proj": "blk.0.attn_output",
        **{f"model.layers.0.mlp.{part}_proj": f"blk.0.ffn_{part}" for part in ("gate", "up", "down")},
    }
    for name, numbers in model_of(row).items():
        writer.add_tensor(f"{names[name.removesuffix('.weight')]}.weight", numbers)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return target


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row["family"])
@pytest.mark.parametrize(("name", "door"), [("directory", write_directory), ("model.gguf", write_file)])
def test_an_answer_ends_where_its_family_ends_a_turn(row: dict[str, Any], name: str, door: Any, tmp_path: Path) -> None:
    tokens = vocabulary_of(row)
    with LLM(door(row, tmp_path / name), kernels="reference") as llm:
        (reply,) = llm.chat([{"role": "user", "content": "a"}], LONG)
    (output,) = reply.outputs
    said = [text for index in output.token_ids if (text := tokens[index]) != row["turn"]]
    assert said == ["b", *row["other"], "c"]
    assert (output.finish_reason, output.text) == ("stop", "bc")
