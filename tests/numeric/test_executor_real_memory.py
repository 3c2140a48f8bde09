"""The memory plan counts every array of an executor, and the process grows by its total."""

from __future__ import annotations

import gc
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from ferrum import load_executor
from ferrum.runtime.memory import return_free_memory
from ferrum.sampling.rows import Row
from ferrum.sampling.sampler import SamplerInput
from ferrum.verbs.io_types import PrefillInput
from held_arrays import owned_arrays
from native_twin import TIERS, require_native, sampler_of
from sampling_twin import best_of, request
from tiny import Case, directory_of, find


@pytest.mark.contract("2.memory_requirements")
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("name", ["qwen3-windows", "qwen3-mqa-wide-head-tied", "qwen2", "llama-dynamic"])
def test_the_plan_counts_every_array(name: str, dtype: str) -> None:
    case = find(name)
    options = {"max_sequence_length": case.context, "kv_capacity": 1000}
    with load_executor(directory_of(case), kernels="reference", dtype=dtype, **options) as executor:
        plan = executor.memory_plan
        held = sum(array.nbytes for array in owned_arrays(executor))
        assert held == plan.total - plan.libraries
        executor.prefill(PrefillInput([list(range(60))], logits="all"))
        gc.collect()
        assert sum(array.nbytes for array in owned_arrays(executor)) - held < 4096, "a step keeps almost no memory"


@pytest.mark.contract("2.memory_requirements")
@pytest.mark.parametrize("batch", [1, 7, 32])
def test_the_formula_bounds_the_plan(batch: int) -> None:
    directory = directory_of(find("qwen2"))
    with load_executor(directory, kernels="reference", kv_capacity=10_000) as executor:
        bound = executor.memory_requirements.calculate_total_memory(batch, 200, executor.info.num_layers)
        pages = sum(part.pages(200) * part.page_bytes for part in executor.memory_plan.pool) * batch
        plan = executor.memory_plan
        assert plan.total - plan.kv_pool + pages <= bound


def resident_bytes() -> int:
    status = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) << 10 for line in status if line.startswith("VmRSS"))


MEASURE = """
import json, sys
json.loads(sys.argv[3]) and __import__("numpy")
import ferrum

def resident():
    return next(int(line.split()[1]) << 10 for line in open("/proc/self/status") if line.startswith("VmRSS"))

before = resident()
options = {"kv_capacity": 16_384, "max_batch_size": 64, "max_rows": 32, **json.loads(sys.argv[2])}
sequences = options.pop("sequences", 4)
executor = ferrum.load_executor(sys.argv[1], **options)
from ferrum.cache.page_table import PageCopy
from ferrum.core.step import Rows, Span, StepBatch, Want
spans = tuple(Span(f"s{i}", 0, tuple(range(8)), Want.LOGITS, Rows.ALL) for i in range(sequences))
executor.submit(StepBatch(spans)).result()
import numpy as np
for group in executor.pages.groups:
    # The system commits a page of memory when it is first written: write them all.
    copies = [PageCopy(group.name, 0, target) for target in range(1, group.num_pages)]
    executor.lm.kernels.copy_pages(copies)
for weight in executor.lm.network.weights.values():
    # Nor does it read a page of a mapped file before it is looked at.
    for begin in range(0, weight.shape[0], 64):
        weight.rows(np.arange(begin, min(begin + 64, weight.shape[0]), dtype=np.int32))
print(json.dumps([resident() - before, executor.memory_plan.total]))
"""

SIZEABLE = Case(
    "sizeable",
    "Qwen3Config",
    {
        "hidden_size": 512,
        "intermediate_size": 1536,
        "num_hidden_layers": 4,
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
        "head_dim": 64,
        "vocab_size": 4096,
    },
)


@pytest.mark.contract("2.memory_requirements")
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="resident memory is read from /proc")
@pytest.mark.parametrize(
    ("kernels", "has_numpy", "dtype"),
    [
        ("native", True, "float32"),
        ("native", False, "bfloat16"),
        ("reference", True, "bfloat16"),
        ("reference", False, "float32"),
    ],
)
def test_the_process_grows_by_the_plan(kernels: str, has_numpy: bool, dtype: str) -> None:
    if kernels == "native":
        require_native()
    check_growth(has_numpy, kernels=kernels, dtype=dtype)


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="resident memory is read from /proc")
def test_the_plan_counts_the_scratch_memory_of_threads() -> None:
    """Enough sequences that every thread has work in the step."""
    require_native()
    check_growth(True, kernels="native", dtype="bfloat16", threads=256, max_rows=512, sequences=64)


def check_growth(has_numpy: bool, **chosen: object) -> None:
    options = json.dumps(chosen)
    command = [sys.executable, "-c", MEASURE, str(directory_of(SIZEABLE)), options, json.dumps(has_numpy)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    growth, planned = json.loads(done.stdout)
    assert planned > 90 << 20, "16 MiB must be a small part"
    assert abs(growth - planned) <= max(planned // 50, 16 << 20), f"{growth >> 20} MiB, {planned >> 20} planned"


FRESH = """
import json, sys

import ferrum

def resident():
    return next(int(line.split()[1]) << 10 for line in open("/proc/self/status") if line.startswith("VmRSS"))

before = resident()
with ferrum.load_executor("ferrum-tiny", **json.loads(sys.argv[1])) as executor:
    prompts = [ferrum.PrefillInput([1 + sequence] * 62) for sequence in range(4)]
    outputs = executor.batch_prefill(prompts)
    outputs = executor.batch_decode([ferrum.DecodeInput([1], output.kv_cache) for output in outputs])
    executor.speculative_decode(ferrum.DecodeInput([1], outputs[0].kv_cache), [])
    bound = executor.memory_requirements.calculate_total_memory(4, 64, executor.info.num_layers)
    print(json.dumps([resident() - before, bound]))
"""


@pytest.mark.contract("2.memory_requirements")
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="resident memory is read from /proc")
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"kv_capacity": 256, "max_rows": 32, "kv_dtype": "int8"},
        {"quantize": "int4"},
        {"replay": False},
        {"kernels": "reference"},
        {"kernels": "reference", "replay": False, "max_rows": 32},
    ],
    ids=json.dumps,
)
def test_the_formula_bounds_the_growth_of_a_fresh_process(options: dict[str, object]) -> None:
    if options.get("kernels") != "reference":
        require_native()
    command = [sys.executable, "-c", FRESH, json.dumps(options)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    growth, bound = json.loads(done.stdout)
    assert growth <= bound <= growth + (144 << 20), f"{growth >> 20} MiB, bounded by {bound >> 20}"


def test_the_planned_memory_of_samplers_bounds_their_growth() -> None:
    """Flat rows keep nearly every token as a candidate."""
    require_native()
    size = 1_000_000
    sampler = sampler_of(TIERS[0], threads=2)
    row = np.random.default_rng(3).random(size, np.float32)
    asked = request(temperature=1.5, top_p=0.99)
    return_free_memory()  # of earlier tests, which the sampler would take first
    before = resident_bytes()
    sampler.choose([SamplerInput(row, best_of(row), Row(asked, ())) for _ in range(16)])
    after, held = resident_bytes(), sampler.held_bytes(size)
    assert held / 2 - (8 << 20) <= after - before <= held + (8 << 20), "one of two threads may have drawn all"
