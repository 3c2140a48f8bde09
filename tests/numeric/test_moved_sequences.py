"""A sequence moves between executors, kernels and devices as bytes, and continues with the bits it would have had."""

from __future__ import annotations

import pickle
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from emulated_cuda import EmulatedDriver, EmulatedImages
from ferrum.core.config import ModelConfig
from ferrum.core.errors import ContextOverflow, KvExhausted, RequestError, StaleHandle, Unsupported
from ferrum.kernels.cuda.cuda_kernels import Platform
from ferrum.runtime.load import build_executor
from ferrum.verbs.io_types import DecodeInput, KvCacheHandle, PrefillInput
from ferrum.verbs.load_executor import LocalExecutor
from golden_models import FixedCheckpoint
from native_twin import require_native

SIZE = 16
WINDOWS, LATENT, RECURRENT = "MinistralForCausalLM", "DeepseekV3ForCausalLM", "Qwen3NextForCausalLM"
FAMILIES = ("MistralForCausalLM", WINDOWS, LATENT)
TOKENS = [7 * i % 137 for i in range(128)]
PAIRS = [
    ("native", "reference"),
    pytest.param(("native", "cuda"), marks=pytest.mark.cuda),
    pytest.param(("cuda", "native"), marks=pytest.mark.cuda),
]


@pytest.fixture(autouse=True)
def emulated(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let device="cuda" be the emulated device."""
    opened = "ferrum.runtime.backend.open_platform"
    monkeypatch.setattr(opened, lambda ordinal: Platform(EmulatedDriver(ordinal), EmulatedImages()))


def opened(family: str, kernels: str = "native", weights: str = "q8_0", **options: Any) -> LocalExecutor:
    require_native()
    bounds = {"page_size": options.pop("page_size", SIZE), "max_rows": 64}
    device = "cuda" if kernels == "cuda" else "cpu"
    given = {"kv_capacity": 1024, "kv_dtype": "int8", "max_batch_size": 4, **options}
    config = ModelConfig(model=family, device=device, kernels=kernels, **given)
    return build_executor(LocalExecutor, config, checkpoint=FixedCheckpoint(family, weights), **bounds)


def filled(executor: LocalExecutor, tokens: list[int]) -> KvCacheHandle:
    return executor.prefill(PrefillInput([tokens])).kv_cache


def continued(executor: LocalExecutor, handle: KvCacheHandle, tokens: list[int]) -> tuple[list[bytes], KvCacheHandle]:
    """Return the logits after each of some tokens."""
    found = []
    for token in tokens:
        output = executor.decode(DecodeInput([[token]], handle))
        found.append(np.asarray(output.logits).tobytes())
        handle = output.kv_cache
    return found, handle


@pytest.mark.parametrize("length", [1, SIZE, 3 * SIZE + 5, 110])
@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("kinds", PAIRS)
def test_a_sequence_moves_there_and_back_with_its_bits(kinds: tuple[str, str], family: str, length: int) -> None:
    """From the longest one, pages have left the windows."""
    with opened(family, kinds[0]) as here, opened(family, kinds[1]) as there:
        first = filled(here, TOKENS[:length])
        moved = there.import_sequence(pickle.loads(pickle.dumps(here.export_sequence(first))))
        expected, first = continued(here, first, TOKENS[length : length + 6])
        found, moved = continued(there, moved, TOKENS[length : length + 6])
        assert found == expected
        back = here.import_sequence(there.export_sequence(moved))
        assert back.sequence_length == length + 6 and back.cache_id != first.cache_id
        after = TOKENS[length + 6 : length + 12]
        assert continued(here, back, after)[0] == continued(here, first, after)[0]
        for executor in (here, there):
            executor.pages.check()


def test_a_sequence_moves_to_a_device_and_back() -> None:
    test_a_sequence_moves_there_and_back_with_its_bits(("native", "cuda"), WINDOWS, 3 * SIZE + 5)


def test_shared_pages_are_read_after_their_copies_are_made() -> None:
    with opened(WINDOWS) as here, opened(WINDOWS) as there:
        first = filled(here, TOKENS[:40])
        clone = here.fork(first)
        here.pages.reserve(clone.cache_id, 41)  # the partly filled page becomes the clone's, once it is copied
        moved = there.import_sequence(here.export_sequence(clone))
        assert continued(there, moved, TOKENS[40:50])[0] == continued(here, first, TOKENS[40:50])[0]


def test_a_moved_sequence_is_an_ordinary_one() -> None:
    with opened(WINDOWS) as here, opened(WINDOWS) as there:
        moved = there.import_sequence(here.export_sequence(filled(here, TOKENS[:50])))
        assert moved.sequence_length == 50 and there.fork(moved).sequence_length == 50
        assert there.truncate_kv(moved, 48).sequence_length == 48
        there.reset()
        assert there.pages.used == 0


@pytest.mark.parametrize(
    ("options", "part"),
    [
        ({"kv_dtype": "float32"}, "kv_dtype"),
        ({"weights": "q4_0"}, "weights"),
        ({"page_size": 32}, "pages"),
        ({"family": "MistralForCausalLM"}, "model"),
    ],
)
def test_another_layout_or_model_is_refused_by_its_part(options: dict[str, Any], part: str) -> None:
    with opened(WINDOWS) as here, opened(**{"family": WINDOWS, **options}) as there:
        stored = here.export_sequence(filled(here, TOKENS[:20]))
        with pytest.raises(RequestError, match=f"has another {part}"):
            there.import_sequence(stored)
        assert there.pages.used == 0


def test_what_has_no_room_or_cannot_move_changes_nothing() -> None:
    with opened(WINDOWS) as here, opened(WINDOWS, kv_capacity=64) as small:
        first = filled(here, TOKENS[:100])
        stored = here.export_sequence(first)
        with pytest.raises(KvExhausted, match="100 tokens"):
            small.import_sequence(stored)
        assert small.pages.used == 0
        with pytest.raises(ContextOverflow):
            here.import_sequence(replace(stored, length=100_000))
        with pytest.raises(RequestError, match="must be StoredSequence"):
            here.import_sequence({"length": 3})  # type: ignore[arg-type]
        _, newest = continued(here, first, [1])
        with pytest.raises(StaleHandle):
            here.export_sequence(first)
        assert here.export_sequence(newest).nbytes > 0


def test_states_of_recurrent_layers_are_refused() -> None:
    with opened(RECURRENT) as executor, pytest.raises(Unsupported, match="recurrent layers"):
        executor.export_sequence(filled(executor, [1, 2, 3]))
