"""Export a checkpoint as the model folder that ferrum ships and `transformers` loads, with bfloat16 weights."""

from __future__ import annotations

import argparse
import json
import shutil
import sysconfig
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer

from data import END_ID, END_OF_TEXT
from evaluate import SAMPLING
from model import ModelConfig, Qwen3
from train import LONG

ASSETS = Path(__file__).parent.parent / "src" / "ferrum" / "assets" / "ferrum-tiny"
CONFIG = ModelConfig(max_position=LONG)
END_IDS = {"bos_token_id": END_ID, "eos_token_id": END_ID, "pad_token_id": END_ID}


def huggingface_config(config: ModelConfig) -> dict[str, Any]:
    """Return config.json with every field."""
    return {
        "architectures": ["Qwen3ForCausalLM"],
        "model_type": "qwen3",
        "vocab_size": config.vocab_size,
        "hidden_size": config.hidden_size,
        "intermediate_size": config.intermediate_size,
        "num_hidden_layers": config.num_layers,
        "num_attention_heads": config.num_heads,
        "num_key_value_heads": config.num_kv_heads,
        "head_dim": config.head_dim,
        "hidden_act": "silu",
        "rms_norm_eps": config.rms_norm_eps,
        "rope_theta": config.rope_theta,
        "rope_scaling": None,
        "max_position_embeddings": config.max_position,
        "attention_bias": False,
        "attention_dropout": 0.0,
        "use_sliding_window": False,
        "sliding_window": None,
        "max_window_layers": config.num_layers,
        "initializer_range": 0.02,
        "tie_word_embeddings": True,
        "use_cache": True,
        **END_IDS,
        "torch_dtype": "bfloat16",
    }


def write_json(path: Path, value: object) -> None:
    path.write_text(json.dumps(value, indent=2) + "\n")


def export(run: Path, folder: Path) -> None:
    """Write weights, configuration, tokenizer and the licence of the training data to `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    state = torch.load(run / "checkpoint.pt")["model"]
    weights = {name: tensor.bfloat16().contiguous() for name, tensor in state.items()}
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "model.safetensors").chmod(0o644)
    shutil.copyfile(run / "tokenizer.json", folder / "tokenizer.json")
    write_json(folder / "config.json", huggingface_config(CONFIG))
    write_json(folder / "generation_config.json", {**END_IDS, "do_sample": True, **SAMPLING})
    tokenizer_config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": END_OF_TEXT,
        "eos_token": END_OF_TEXT,
        "pad_token": END_OF_TEXT,
        "add_bos_token": False,
        "clean_up_tokenization_spaces": False,
        "model_max_length": CONFIG.max_position,
    }
    write_json(folder / "tokenizer_config.json", tokenizer_config)
    shutil.copyfile(Path(sysconfig.get_paths()["stdlib"]) / "LICENSE.txt", folder / "LICENSE.python")


def load_exported(folder: Path) -> tuple[Qwen3, Tokenizer]:
    """Load the exported model, with its rounded weights in float32, and its tokenizer."""
    model = Qwen3(CONFIG)
    model.load_state_dict({name: tensor.float() for name, tensor in load_file(folder / "model.safetensors").items()})
    return model, Tokenizer.from_file(str(folder / "tokenizer.json"))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--run", type=Path, default=Path(__file__).parent / "runs" / "tiny")
    parser.add_argument("--folder", type=Path, default=ASSETS)
    args = parser.parse_args()
    export(args.run, args.folder)


if __name__ == "__main__":
    main()
