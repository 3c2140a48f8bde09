"""An adapter in a GGUF file has the same effect on a published model as in llama.cpp."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from gguf import GGUFReader

from adapter_writers import gguf_tensors, write_gguf_adapter
from ferrum import AdapterUse, Rows, Span, SpanExtras, SpanResult, StepBatch, Want, load_executor
from ferrum.bench.quality_run import DEFAULT_TEXT
from ferrum.sources.open_model import open_model
from published_models import MODELS, PEERS
from quality_peers import LlamaCpp
from source_tree import REPOSITORY

pytestmark = pytest.mark.models

TRAINED = REPOSITORY / "tests" / "data" / "adapters" / "smollm2-orders"
TOKENS = 64


def test_the_effect_of_an_adapter_is_that_of_llama_cpp(tmp_path: Path) -> None:
    """The rows of q and k of a Llama model are permuted in GGUF files, and so are those of an adapter's B."""
    model, adapter = MODELS["smollm2"](), tmp_path / "adapter.gguf"
    fields = GGUFReader(str(model)).fields
    sizes = {
        "num_hidden_layers": int(fields["llama.block_count"].contents()),
        "num_attention_heads": int(fields["llama.attention.head_count"].contents()),
        "num_key_value_heads": int(fields["llama.attention.head_count_kv"].contents()),
    }
    alpha = float(json.loads((TRAINED / "adapter_config.json").read_text())["lora_alpha"])
    write_gguf_adapter(adapter, "llama", gguf_tensors(TRAINED, "llama", sizes), alpha)
    tokenizer = open_model(str(model)).tokenizer()
    assert tokenizer is not None
    tokens = tuple(tokenizer.encode(DEFAULT_TEXT.read_text("utf-8"))[:TOKENS])
    with LlamaCpp(str(PEERS), model) as plain, LlamaCpp(str(PEERS), model, adapter) as changed:
        theirs = changed.logits(tokens) - plain.logits(tokens)
    ours = effect(model, adapter, tokens)
    likeness = [np.corrcoef(one, other)[0, 1] for one, other in zip(ours, theirs, strict=True)]
    assert np.median(likeness) > 0.99
    np.testing.assert_allclose(np.std(ours) / np.std(theirs), 1, atol=0.02)


def effect(model: Path, adapter: Path, tokens: tuple[int, ...]) -> np.ndarray:
    """Return what an adapter adds to the logits after each token, [S, V]."""
    with load_executor(str(model), kv_capacity=4 * TOKENS) as executor:
        executor.load_adapter("it", executor.read_adapter(str(adapter))[1])
        found = []
        for name, uses in (("with", (AdapterUse("it"),)), ("without", ())):
            extras = SpanExtras(adapters=uses).or_none()
            span = Span(name, 0, tokens, Want.LOGITS, Rows.ALL, extras=extras)
            (result,) = executor.submit(StepBatch((span,))).result().results
            assert isinstance(result, SpanResult), result
            found.append(np.array(result.logits))
    return found[0] - found[1]
