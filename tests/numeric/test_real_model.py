"""A real model, in the formats of its GGUF file and in others: answers, spans, quality and memory."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from contextlib import nullcontext
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ferrum import LLM, SamplingParams, load_executor
from ferrum.bench.quality import Quality
from ferrum.bench.quality_run import DEFAULT_TEXT, SPAN, config_of, reference_of, side_by_side
from ferrum.core.step import Rows, Span, StepBatch, Want
from ferrum.sources.open_model import open_model
from ferrum.text.tokenizer import Tokenizer
from ferrum.verbs.load_executor import LocalExecutor
from real_model import FILE, PACKAGE, real_model
from source_tree import REPOSITORY

TEXTS = (
    "The capital of France is Paris.",
    "  def f(x):\n\treturn x ** 2\r\n",
    "Grüße aus Köln; żółć, Ελλάδα, Привет, 你好, こんにちは 👩‍🚀",
    "<|im_start|>user\n1234567890 <|im_end|>",
)

FORMATS: dict[str, dict[str, Any]] = {
    "q4_1": {},
    "q8_0": {"quantize": "q8_0"},
    "q4_k_m": {"quantize": "q4_k_m"},  # of rows of 576: q5_0 and q8_0
    "bfloat16": {"dtype": "bfloat16"},
}
LENGTH = 48


@cache
def tokenizer() -> Tokenizer:
    found = open_model(str(real_model())).tokenizer()
    assert found is not None
    return found


def test_the_model_answers_a_question() -> None:
    with LLM(real_model(), kv_capacity=256, max_batch_size=1) as llm:
        params = SamplingParams(temperature=0.0, max_tokens=32)
        (output,) = llm.chat([{"role": "user", "content": "Name the capital of France."}], params, use_tqdm=False)
        assert output.outputs[0].text == "The capital of France is Paris."
        assert output.outputs[0].finish_reason == "stop"


@pytest.mark.parametrize("text", TEXTS)
def test_tokens_of_a_text_decode_to_it(text: str) -> None:
    ids = tokenizer().encode(text)
    assert tokenizer().decode(ids, skip_special_tokens=False) == text


def test_the_turns_of_a_chat_are_single_tokens() -> None:
    ids = tokenizer().encode("<|im_start|>user\nhi<|im_end|>", add_special_tokens=False)
    assert (ids[0], ids[-1]) == (1, 2) and tokenizer().special_ids >= {1, 2}


def logits(executor: LocalExecutor, tokens: list[int], cuts: list[int]) -> np.ndarray:
    """Return the logits after all tokens, [tokens, V], of spans that end at these positions."""
    rows = []
    for begin, end in zip([0, *cuts], [*cuts, len(tokens)], strict=True):
        span = Span("s", begin, tuple(tokens[begin:end]), Want.LOGITS, Rows.ALL)
        (result,) = executor.submit(StepBatch((span,))).result().results
        rows.append(np.array(result.logits))
    executor.release_cache("s")
    return np.concatenate(rows)


@pytest.mark.parametrize("format", FORMATS)
def test_logits_do_not_depend_on_spans_or_threads(format: str) -> None:
    """In the best tier that the machine has."""
    draw = random.Random(format)
    tokens = tokenizer().encode(DEFAULT_TEXT.read_text()[:1000])[:LENGTH]
    whole = None
    for threads, counts in ((1, (0,)), (2, (1, 9))):
        options = {"threads": threads, "kv_capacity": 256, "max_batch_size": 1, **FORMATS[format]}
        with load_executor(real_model(), **options) as executor:
            whole = logits(executor, tokens, []) if whole is None else whole
            for count in counts:
                cuts = sorted(draw.sample(range(1, LENGTH), count))
                np.testing.assert_array_equal(logits(executor, tokens, cuts), whole, err_msg=f"{threads} {cuts}")


@cache
def qualities() -> dict[str, Quality]:
    """Return the quality of the published file and of q8_0, each against float32 with the file's numbers."""
    name, text = str(real_model()), DEFAULT_TEXT.read_text()
    text = tokenizer().decode(tokenizer().encode(text)[: SPAN + 1])
    judged = [config_of(name, {}), config_of(name, {"quantize": "q8_0"})]
    with side_by_side(text, reference_of(name, {}), judged, lambda name: nullcontext(None)) as trial:
        report = trial.run("prose", None, lambda count: None)  # type: ignore[arg-type]
    return dict(zip(("file", "q8_0"), (row.quality for row in report.rows), strict=True))


@pytest.mark.parametrize(("format", "bound"), [("file", 0.006), ("q8_0", 0.008)])
def test_rounding_of_inputs_costs_little(format: str, bound: float) -> None:
    quality = qualities()[format]
    assert 0 < quality.divergence < bound
    assert quality.same_choice > 0.9


MEASURE = """
import json, sys
import numpy
def status(name):
    return next(int(line.split()[1]) << 10 for line in open("/proc/self/status") if line.startswith(name))
before = status("VmRSS")
import ferrum
with ferrum.load_executor(sys.argv[1], kernels=sys.argv[2], kv_capacity=256, max_batch_size=1, max_rows=32) as executor:
    plan = executor.memory_plan
    print(json.dumps([status("VmHWM") - before, plan.total - plan.weights]))
"""


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="peak memory is read from /proc")
@pytest.mark.parametrize("kernels", ["auto", "reference"])
def test_loading_takes_the_file_once(kernels: str) -> None:
    command = [sys.executable, "-c", MEASURE, str(real_model()), kernels]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    peak, others = json.loads(done.stdout)
    size = real_model().stat().st_size
    assert peak <= 1.15 * size + others, f"{peak >> 20} MiB, {others >> 20} without weights"


def test_make_installs_this_model() -> None:
    makefile = (REPOSITORY / "Makefile").read_text()
    assert f"{PACKAGE}==" in makefile and FILE in makefile
