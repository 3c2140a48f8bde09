"""The process grows by the plan after `import ferrum`, in every format, quantised on load or packed."""

from __future__ import annotations

import json
import subprocess
import sys
from itertools import product
from pathlib import Path

import pytest
from safetensors.numpy import save_file

from ferrum.bench.shapes import shape_config
from ferrum.core.config import QUANTIZATIONS
from ferrum.runtime.packing import pack_directory
from ferrum.sources.random_checkpoint import RandomCheckpoint
from native_twin import require_native

MEASURE = """
import json, sys
import ferrum

def resident():
    return next(int(line.split()[1]) << 10 for line in open("/proc/self/status") if line.startswith("VmRSS"))

before = resident()
executor = ferrum.load_executor(sys.argv[1], kv_capacity=8192, max_rows=32, **json.loads(sys.argv[2]))
from ferrum.cache.page_table import PageCopy
from ferrum.core.step import Rows, Span, StepBatch, Want
executor.submit(StepBatch((Span("s", 0, tuple(range(32)), Want.LOGITS, Rows.ALL),))).result()
for pages in executor.pages.groups:  # memory counts once it was written to
    executor.lm.kernels.copy_pages([PageCopy(pages.name, 0, target) for target in range(1, pages.num_pages)])
print(json.dumps([resident() - before, executor.memory_plan.total]))
"""

SHAPES = {
    "wide": {"hidden_size": 1024, "intermediate_size": 3072, "num_hidden_layers": 6, "vocab_size": 48_000},
    "deep": {"hidden_size": 768, "intermediate_size": 2048, "num_hidden_layers": 14, "vocab_size": 8_000},
}
SCHEMES = ("q8_0", "q6_k", "q4_k_m", "q4_0")
FORMATS = ({"dtype": "bfloat16"}, *({"quantize": scheme} for scheme in SCHEMES))
CONFIGURATIONS = [
    *((name, {**options, "kv_dtype": "bfloat16"}, False) for name, options in product(SHAPES, FORMATS)),
    *((name, {"quantize": scheme}, True) for name, scheme in product(SHAPES, SCHEMES)),
]


def check(name: str, options: dict[str, object], packed: bool, target: Path) -> None:
    """Assert that the growth of a process that loads this is within 2% or 16 MiB of the plan."""
    require_native()
    shape = {**shape_config("qwen3-0.6b"), **SHAPES[name], "max_position_embeddings": 4096}
    store = RandomCheckpoint("random", shape)
    if packed:
        pack_directory(store, target, str(options["quantize"]))
    else:
        target.mkdir()
        save_file({name: store.read(name) for name in store.tensors}, target / "model.safetensors")
        (target / "config.json").write_text(json.dumps(shape))
    command = [sys.executable, "-c", MEASURE, str(target), json.dumps(options)]
    growth, planned = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    assert abs(growth - planned) <= max(planned // 50, 16 << 20), f"{growth >> 20} MiB, {planned >> 20} planned"


def test_configurations_have_every_scheme():
    assert {None, *SCHEMES, "int8", "int4"} == set(QUANTIZATIONS) and len(CONFIGURATIONS) == 18


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="resident memory is read from /proc")
@pytest.mark.parametrize("index", [1, 17])
def test_quantised_and_packed_models_take_the_planned_memory(index, tmp_path):
    check(*CONFIGURATIONS[index], tmp_path / "packed")


@pytest.mark.soak
@pytest.mark.parametrize("index", range(18))
def test_every_configuration_takes_the_planned_memory(index, tmp_path):
    check(*CONFIGURATIONS[index], tmp_path / "packed")
