"""Models on the emulated CUDA device have the CPU's bits: golden hashes, with graphs and without, and engine runs."""

from __future__ import annotations

import json

import pytest

from emulated_cuda import emulated_device
from ferrum.core.errors import Unsupported
from golden_models import CASES, key, logits_hash
from golden_table import GOLDEN

GOLDEN_HASHES = json.loads(GOLDEN.read_text())["logits"]
REFUSED = ("Qwen3Next", "Lfm2", "Qwen3_5")
"""Beginnings of the names of families with recurrent layers."""

SMOKE = (("Qwen3ForCausalLM", "q8_0", "bfloat16"), ("MistralForCausalLM", "q4_k", "int8"))


def cases() -> list[tuple[str, str, str]]:
    return [case for case in CASES if not case[0].startswith(REFUSED)]


@pytest.mark.parametrize("graphs", [True, False], ids=["graphs", "launches"])
@pytest.mark.parametrize("case", SMOKE, ids=lambda case: key(*case))
def test_logits_have_the_golden_bits(case: tuple[str, str, str], graphs: bool) -> None:
    with emulated_device(graphs=graphs):
        assert logits_hash(*case) == GOLDEN_HASHES[key(*case)]


@pytest.mark.cuda
@pytest.mark.parametrize("case", cases(), ids=lambda case: key(*case))
def test_all_logits_have_the_golden_bits(case: tuple[str, str, str]) -> None:
    with emulated_device():
        assert logits_hash(*case) == GOLDEN_HASHES[key(*case)]


@pytest.mark.parametrize("family", sorted({case[0] for case in CASES if case[0].startswith(REFUSED)}))
def test_recurrent_layers_are_refused_by_the_name_of_their_operation(family: str) -> None:
    with emulated_device(), pytest.raises(Unsupported, match=r"the operation \w+"):
        logits_hash(family, "float32", "float32")
