"""Names reach the layers: whatever is attached to a matrix by its name finds the products of exactly that matrix."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from family_twin import MODELS
from ferrum.core.step import Rows, Span, StepBatch, Want
from ferrum.kernels.recorded_program import record
from ferrum.kernels.reference import ReferenceKernels
from ferrum.models.tensor_names import EMBEDDING
from ferrum.nn.linear import named_weights, weight_names
from ferrum.runtime.calibration import ProbedNetwork
from ferrum.verbs.load_executor import LocalExecutor, load_executor
from native_twin import require_native
from tiny import CASES, Case, directory_of, find, tokens_of

ALL = {case.name: case for case in (*CASES, *MODELS.values())}
"""Every tiny model of every family."""

LENGTH = 9
Seen = dict[str, list[np.ndarray]]


def run(executor: LocalExecutor, case: Case) -> np.ndarray:
    """Run one step, with logits of all rows."""
    span = Span("names", 0, tuple(tokens_of(case, LENGTH)), Want.LOGITS, Rows.ALL)
    (result,) = executor.submit(StepBatch((span,))).result().results
    logits: np.ndarray = result.logits
    return logits


def opened(directory: Path, kernels: str = "reference") -> LocalExecutor:
    return load_executor(directory, kernels=kernels, replay=False, kv_capacity=256)


def sorted_rows(inputs: list[np.ndarray]) -> np.ndarray:
    """Return the rows in one order, for heads and experts are multiplied in any."""
    rows = np.concatenate(inputs)
    return rows[np.lexsort(rows.T)]


class Spy:
    """A weight of the reference that notes what it multiplies. Its parts note to the same list."""

    def __init__(self, inner: Any, seen: list[np.ndarray]) -> None:
        self.inner, self.seen = inner, seen

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def matmul(self, x: np.ndarray) -> np.ndarray:
        self.seen.append(x.copy())
        return self.inner.matmul(x)

    def part(self, begin: int, end: int) -> Spy:
        return Spy(self.inner.part(begin, end), self.seen)


def multiplied(case: Case) -> tuple[Seen, np.ndarray]:
    """Return what each weight itself multiplies in a step, by name, and the logits."""
    with pytest.MonkeyPatch.context() as patch:
        whole = ReferenceKernels.weight
        patch.setattr(ReferenceKernels, "weight", lambda self, weight: Spy(whole(self, weight), []))
        with opened(directory_of(case)) as executor:
            for spy in executor.lm.network.weights.values():
                spy.seen.clear()  # of the warm-up
            logits = run(executor, case)
            return {name: spy.seen for name, spy in executor.lm.network.weights.items() if spy.seen}, logits


def probed(case: Case, kernels: str, names: set[str] | None = None) -> tuple[Seen, np.ndarray]:
    """Return what probes of these names, or of all, see in a step, and the logits."""
    seen: Seen = {}

    def note(multiplying: tuple[str, ...], x: np.ndarray) -> None:
        for name in multiplying:
            seen.setdefault(name, []).append(x.copy())

    with opened(directory_of(case), kernels) as executor:
        network = executor.lm.network
        executor.lm.network = ProbedNetwork(network, executor.lm.kernels.host, note, names or network.weights)
        return seen, run(executor, case)


@pytest.mark.parametrize("name", ALL)
def test_parts_and_recorded_programs_name_every_matrix(name: str) -> None:
    with opened(directory_of(ALL[name])) as executor:
        decoder = executor.lm.network
        assert {each.name: each.weight for each in named_weights(decoder)} == decoder.weights
        names = weight_names(decoder)
        assert {names[id(weight)] for op in record(decoder).ops for weight in op.weights()} == decoder.weights.keys()


@pytest.mark.parametrize("name", ALL)
def test_a_probe_sees_the_inputs_of_exactly_its_matrix(name: str) -> None:
    require_native()
    expected, logits = multiplied(ALL[name])
    for kernels in ("reference", "native"):
        seen, found = probed(ALL[name], kernels)
        np.testing.assert_array_equal(found, logits)
        assert seen.keys() == expected.keys()
        for each, inputs in expected.items():
            np.testing.assert_array_equal(sorted_rows(seen[each]), sorted_rows(inputs), err_msg=each)


@pytest.mark.parametrize("matrix", ["experts.down_proj", "shared_experts.up_proj"])
def test_other_matrices_are_not_shown(matrix: str) -> None:
    case, name = MODELS["deepseek-v2"], f"model.layers.1.mlp.{matrix}.weight"
    seen, _ = probed(case, "reference", {name})
    assert seen.keys() == {name}


def test_a_table_is_only_probed_where_it_multiplies() -> None:
    for tied in (False, True):
        case = next(each for each in CASES if each.changes.get("tie_word_embeddings", False) is tied)
        assert (EMBEDDING in probed(case, "reference")[0]) is tied


def test_an_unknown_name_is_refused() -> None:
    with pytest.raises(ValueError, match=r"holds no matrix model\.none\.weight"):
        probed(find("llama3"), "reference", {"model.none.weight"})
