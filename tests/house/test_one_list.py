"""What is added in one place is in every other place that needs it; a failure names the place that lacks it."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Any

from ferrum.contract.model_info import ModelInfo
from ferrum.core import kv_shape, state_shape
from ferrum.core.json_record import JsonRecord
from ferrum.core.kv_shape import KvShape
from ferrum.core.params import SamplingParams
from ferrum.core.state_shape import StateShape
from ferrum.kernels.cpu.lowering import Lowering
from ferrum.kernels.op_spec import OpSpec, declared
from ferrum.kernels.operations import Operations
from ferrum.kernels.reference import ReferenceKernels
from ferrum.kernels.services import Draw
from ferrum.models.builder import Builder
from ferrum.models.decoder import Decoder, Inventory
from ferrum.quant import schemes
from ferrum.quant.block_format import BLOCK_FORMATS, BlockFormat
from ferrum.quant.block_quantizers import QUANTIZERS
from ferrum.quant.gguf_blocks import GGUF_TYPES
from ferrum.runtime.pool_sizes import PoolSizes
from ferrum.sampling import rules
from one_lists import (
    checked_operations,
    format_faults,
    lacking,
    native_formats,
    native_tables,
    native_types,
    operation_faults,
    rule_faults,
    stored_kind_faults,
)
from source_tree import REPOSITORY, SOURCE

NATIVE = REPOSITORY / "native" / "src"
LINES = native_formats((NATIVE / "weight_formats.hpp").read_text())
TABLES = native_tables((NATIVE / "block_format.hpp").read_text())
TYPES = native_types((NATIVE / "block_types.cpp").read_text())
OPERATIONS = declared(Operations)
BACKENDS = {"kernels/reference": (ReferenceKernels, False), "kernels/cpu/lowering.py": (Lowering, True)}
ANSWERS = set().union(*(checked_operations(path.read_text()) for path in (SOURCE / "runtime").glob("known_*.py")))
CHECKS = {"runtime/known_answers.py": ANSWERS}
PARAMETERS = {each.name: each.metadata["rule"] for each in fields(SamplingParams)}
RULES = {rule.__name__ for rule in (*rules.LOGIT_RULES, *rules.CANDIDATE_RULES)}
OTHER_WAYS = {"draw", "sample", "given_tokens", "grammar"}
"""The draw and its report are no edits of logits; a grammar's mask comes with the span."""
STORES = {
    "contract/model_info.py": ModelInfo,
    "models/builder.py": Builder,
    "models/decoder.py, Decoder": Decoder,
    "models/decoder.py, Inventory": Inventory,
    "runtime/pool_sizes.py": PoolSizes,
}
"""Records of what the layers of a model store."""
KEY = {"logits", "seed", "position", "choice"}
"""Fields of `Draw` that are no rules."""


def faults_of_formats(formats: Any = BLOCK_FORMATS, native: Any = LINES, types: Any = TYPES) -> list[str]:
    return format_faults(formats, native, TABLES, GGUF_TYPES, types)


def faults_of_rules(parameters: dict[str, str], applied: set[str], native: set[str]) -> list[str]:
    taken = {name: rule for name, rule in parameters.items() if rule.partition(".")[2] not in OTHER_WAYS}
    return rule_faults(taken, applied - OTHER_WAYS, native - KEY)


def test_formats_are_the_same_in_python_and_in_the_library() -> None:
    assert (len(LINES), len(TYPES)) == (38, 33) and faults_of_formats() == []


def test_a_format_forgotten_elsewhere_is_named_with_the_place() -> None:
    planted = {**BLOCK_FORMATS, "q3_x": BlockFormat("q3_x", 4)}
    missing = {place for fault in faults_of_formats(planted) for place in [fault.rpartition(" ")[2]]}
    assert missing == {"native/src/weight_formats.hpp", "native/src/block_types.cpp", "quant/gguf_blocks.py"}
    (fault,) = faults_of_formats(native={**LINES, "q3_x": LINES["q4_0"]})
    assert fault == "q3_x is in native/src/weight_formats.hpp but not in quant/block_format.py"
    (fault,) = faults_of_formats({**BLOCK_FORMATS, "q4_0": replace(BLOCK_FORMATS["q4_0"], offset=7)})
    assert (
        fault == "q4_0 differs: native/src/weight_formats.hpp needs 32, 32, 4, 7, nullptr, false, Scales::whole, false"
    )
    (fault,) = faults_of_formats(types={**TYPES, "Q3_X": ("q4_0", 18)})
    assert fault == "Q3_X in native/src/block_types.cpp differs from quant/gguf_blocks.py"


def test_formats_that_schemes_choose_have_an_error_and_a_quantiser() -> None:
    chosen = {name for ladder in schemes._LADDERS for name in ladder}
    assert chosen == set(schemes._ERRORS)
    assert list(lacking("quant/schemes.py", chosen, "quant/block_quantizers.py", QUANTIZERS)) == []


def test_every_operation_is_in_each_backend_and_checked() -> None:
    assert operation_faults(OPERATIONS, BACKENDS, CHECKS) == []


def test_an_operation_forgotten_elsewhere_is_named_with_the_place() -> None:
    def halve(self: Any, x: Any) -> Any:
        """Return half of x."""

    faults = operation_faults({**OPERATIONS, "halve": OpSpec(halve)}, BACKENDS, CHECKS)
    assert [fault.rpartition(" ")[2] for fault in faults] == [*sorted(BACKENDS), *CHECKS]
    assert all(fault.startswith("halve is in kernels/operations.py but not in ") for fault in faults)


def test_an_attribute_forgotten_in_a_backend_is_named_with_the_place() -> None:
    def gather(self: Any, x: Any, factor: float = 1.0) -> Any:
        """Return chosen rows times a factor."""

    faults = operation_faults({"gather": OpSpec(gather)}, BACKENDS, CHECKS)
    assert [fault.split(" ")[2] for fault in faults] == sorted(BACKENDS)


def test_every_parameter_of_the_sampler_has_a_rule_and_every_rule_a_parameter() -> None:
    assert faults_of_rules(PARAMETERS, RULES, set(Draw._fields)) == []


def test_a_rule_forgotten_elsewhere_is_named_with_the_place() -> None:
    native = set(Draw._fields)
    (fault,) = faults_of_rules({**PARAMETERS, "top_a": "sampling.top_a"}, RULES, native)
    assert fault == "top_a is in core/params.py but not in sampling/rules.py"
    (fault,) = faults_of_rules(PARAMETERS, RULES | {"top_a"}, native)
    assert fault == "top_a is in sampling/rules.py but not in core/params.py"
    (fault,) = faults_of_rules(PARAMETERS, RULES, native | {"top_a"})
    assert fault == "top_a is in kernels/services.py but not in sampling/rules.py"


def test_everything_that_layers_store_is_in_each_list_of_it() -> None:
    kinds = {each for module in (kv_shape, state_shape) for each in vars(module).values() if is_shape(each)}
    assert kinds == {KvShape, StateShape} and len(list((SOURCE / "core").glob("*_shape.py"))) == 2
    assert stored_kind_faults(kinds, STORES) == []


def test_a_stored_kind_forgotten_elsewhere_is_named_with_the_place() -> None:
    @dataclass(frozen=True)
    class RingShape(JsonRecord):
        """A planted kind."""

    faults = stored_kind_faults({KvShape, StateShape, RingShape}, STORES)
    assert faults == sorted(f"RingShape is in core but not in {place}" for place in STORES)


def is_shape(value: Any) -> bool:
    return isinstance(value, type) and issubclass(value, JsonRecord) and value is not JsonRecord
