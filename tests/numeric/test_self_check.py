"""The self-check: every tier gives the known answers, and one that does not is named and avoided."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from command_kit import Outcome
from ferrum.core.errors import Unsupported
from ferrum.kernels.cpu.native_kernels import NativeKernels
from ferrum.kernels.numerics import NUMERICS_ID
from ferrum.kernels.op_spec import OpSpec, as_tuple, declared
from ferrum.kernels.operations import Operations
from ferrum.kernels.reference import ReferenceKernels
from ferrum.runtime import backend
from ferrum.runtime.backend import choose_kernels, machine_kernels
from ferrum.runtime.known_answers import hash_of
from ferrum.runtime.self_check import TABLE, self_check
from native_twin import TIERS, require_native


@pytest.fixture
def plant(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., None]]:
    """Make an operation of some tiers wrong by one bit of one number."""

    def wrong(name: str, *tiers: str) -> None:
        class Wrong(NativeKernels):
            def compute(self, spec: OpSpec, arguments: tuple[Any, ...]) -> Any:
                made = super().compute(spec, arguments)
                if spec.name == name and self.tier in tiers:
                    as_tuple(made)[-1].view(np.uint8).reshape(-1)[0] ^= 1
                return made

        monkeypatch.setattr(backend, "NativeKernels", Wrong)
        backend.wrong_answers.cache_clear()

    yield wrong
    backend.wrong_answers.cache_clear()


def test_the_table_is_of_this_arithmetic() -> None:
    table = json.loads(TABLE.read_text())
    found = self_check(ReferenceKernels())
    assert (found.wrong, found.checked) == ((), len(table["answers"]))
    assert table["numerics_id"] == NUMERICS_ID


@pytest.mark.parametrize("tier", TIERS)
def test_every_tier_gives_the_known_answers(tier: str) -> None:
    assert self_check(NativeKernels(tier, 1)).wrong == ()


OPERATIONS = {
    "linear": "products of",
    "gated_linear": "products of",
    "embed": "products of",
    "head": "products of",
    "norm": "norms",
    "add_norm": "norms",
    "add": "sums and centred norms",
    "multiply": "sums and centred norms",
    "head_linear": "attention over latent vectors",
    "latent_store": "attention over latent vectors",
    "experts": "experts by",
    **dict.fromkeys(("embed_positions", "rotate", "attend_all"), "attention among all rows"),
    "rope_store": "rotation",
    "attention": "attention over",
    "add_given": "places and added rows",
    "gather": "selection of rows",
    "join": "selection of rows",
    "gather_hidden": "selection of rows",
    "best": "selection of rows",
    "finite": "selection of rows",
    **dict.fromkeys(("short_conv", "delta_rule", "gated_norm"), "states"),
    **dict.fromkeys(("activate", "gate", "scale_logits", "adapt", "adapt_embedding"), "adapters"),
}


@pytest.mark.parametrize("name", declared(Operations))
def test_one_wrong_bit_of_any_operation_is_noticed(name: str, plant: Callable[..., None]) -> None:
    require_native()
    plant(name, TIERS[-1])
    assert any(each.startswith(OPERATIONS[name]) for each in backend.wrong_answers(TIERS[-1]))


def test_a_wrong_tier_is_avoided_and_its_operation_logged(
    plant: Callable[..., None], caplog: pytest.LogCaptureFixture
) -> None:
    require_native()
    plant("norm", TIERS[0])
    if len(TIERS) > 1:
        chosen = choose_kernels("cpu", "auto", threads=1)
        assert chosen.kernels.tier == TIERS[1] and f"{TIERS[0]} is not used" in chosen.notes[0]
        assert f"instruction tier {TIERS[0]} is not used" in caplog.text and "norms" in caplog.text
    with pytest.raises(Unsupported, match="norms"):
        choose_kernels("cpu", "auto", TIERS[0])
    assert choose_kernels("cpu", "auto", TIERS[-1]).notes == () or len(TIERS) == 1


def test_the_reference_serves_if_every_tier_is_wrong(plant: Callable[..., None]) -> None:
    require_native()
    plant("attention", *TIERS)
    chosen = choose_kernels("cpu", "auto")
    assert chosen.kernels.name == "reference" and all(tier in chosen.notes[0] for tier in TIERS)
    with pytest.raises(Unsupported, match="attention over"):
        choose_kernels("cpu", "native")


def test_the_command_shows_each_tier_and_exits_with_one_for_a_difference(
    ferrum: Callable[..., Outcome], plant: Callable[..., None]
) -> None:
    code, out, _ = ferrum("selfcheck")
    lines = out.splitlines()[1:]
    assert code == 0 and [line.split("  ")[0] for line in lines] == [each.description for each in machine_kernels()]
    assert all(line.endswith("same bits") for line in lines)
    if TIERS:
        plant("best", TIERS[0])
        code, out, _ = ferrum("selfcheck")
        assert code == 1 and "differs: selection of rows" in out.splitlines()[1]
        assert out.splitlines()[2].endswith("same bits")


def test_any_nan_counts_as_any_other() -> None:
    first, second = (np.array([1, bits], np.uint32).view(np.float32) for bits in (0x7FC00000, 0xFFC00001))
    assert hash_of([first]) == hash_of([second]) != hash_of([first[:1]])
    assert hash_of([np.float32([0.0])]) != hash_of([np.float32([-0.0])])
