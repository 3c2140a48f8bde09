"""`SamplingParams`: every field has one rule, a neutral default, a checked range and a JSON form."""

from __future__ import annotations

import ast
import math
from dataclasses import FrozenInstanceError, fields
from fractions import Fraction
from functools import cache
from typing import Any

import numpy as np
import pytest

from ferrum.core.errors import InvalidToken, RequestError
from ferrum.core.params import MAX_STOP_LENGTH, SamplingParams
from source_tree import SOURCE, nodes

RULES = {each.name: each.metadata["rule"] for each in fields(SamplingParams)}

# vLLM's names, with the defaults that its users rely on (contract section 0).
DEFAULTS: dict[str, object] = {
    "n": 1,
    "temperature": 1.0,
    "top_p": 1.0,
    "top_k": 0,
    "min_p": 0.0,
    "seed": None,
    "stop": (),
    "stop_token_ids": (),
    "bad_words": (),
    "include_stop_str_in_output": False,
    "ignore_eos": False,
    "max_tokens": 16,
    "min_tokens": 0,
    "logprobs": None,
    "logprob_token_ids": (),
    "prompt_logprobs": None,
    "presence_penalty": 0.0,
    "frequency_penalty": 0.0,
    "repetition_penalty": 1.0,
    "no_repeat_ngram_size": 0,
    "dry_multiplier": 0.0,
    "dry_base": 1.75,
    "dry_allowed_length": 2,
    "dry_penalty_last_n": -1,
    "dry_sequence_breakers": ("\n", ":", '"', "*"),
    "logit_bias": None,
    "allowed_token_ids": None,
    "skip_special_tokens": True,
    "structured_outputs": None,
}


@pytest.mark.contract("0.SamplingParams")
@pytest.mark.contract("5.no hidden defaults")
def test_every_name_of_the_contract_has_a_neutral_default() -> None:
    params = SamplingParams()
    assert {each.name: getattr(params, each.name) for each in fields(params)} == DEFAULTS


@cache
def reading_functions(room: str) -> dict[str, set[str]]:
    """For every attribute that the room reads of `params` or `sampling`: the functions that read it.

    `sampling/backend_sampler.py` passes the candidate rules' parameters to the backend. Its results are compared
    with the rules themselves, draw by draw (tests/numeric/test_native_sampler.py).
    """
    readers: dict[str, set[str]] = {}
    for path in sorted(set((SOURCE / room).glob("*.py")) - {SOURCE / "sampling" / "backend_sampler.py"}):
        for function in nodes(path):
            if not isinstance(function, ast.FunctionDef):
                continue
            for node in ast.walk(function):
                if isinstance(node, ast.Attribute) and isinstance(node.value, (ast.Name, ast.Attribute)):
                    owner = node.value.id if isinstance(node.value, ast.Name) else node.value.attr
                    if owner in ("params", "sampling"):
                        readers.setdefault(node.attr, set()).add(function.name)
    return readers


def test_every_field_is_claimed_by_one_rule_of_an_existing_room() -> None:
    """Rules have one field each, and settings that name it as their switch."""
    switches = {each.name: each.metadata["switch"] for each in fields(SamplingParams)}
    assert sorted(RULES[name] for name, switch in switches.items() if switch is None) == sorted(set(RULES.values()))
    assert all(RULES[name] == RULES[switch] for name, switch in switches.items() if switch is not None)
    for name, rule in RULES.items():
        room, _, duty = rule.partition(".")
        assert (SOURCE / room).is_dir() and duty.isidentifier(), name


@pytest.mark.contract("5.parameters are applied")
@pytest.mark.parametrize("name", [name for name, rule in RULES.items() if rule.startswith("sampling.")])
def test_a_sampling_field_is_read_by_its_own_rule_alone(name: str) -> None:
    assert reading_functions("sampling").get(name) == {RULES[name].removeprefix("sampling.")}


@pytest.mark.parametrize("each", fields(SamplingParams), ids=lambda each: each.name)
def test_every_field_has_a_help_text(each: Any) -> None:
    assert each.metadata["help"].endswith(".")


@pytest.mark.parametrize(
    ("name", "low", "high"),
    [("temperature", 0, 2), ("min_p", 0, 1), ("presence_penalty", -2, 2), ("frequency_penalty", -2, 2), ("n", 1, 128)],
)
def test_ranges_include_their_ends(name: str, low: int, high: int) -> None:
    for value in (low, high):
        assert getattr(SamplingParams(**{name: value}), name) == value
    step = 1 if name == "n" else 1e-9
    for value in (low - step, high + step):
        with pytest.raises(RequestError) as caught:
            SamplingParams(**{name: value})
        assert caught.value.param == name


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("n", 0),
        ("n", True),
        ("n", 1.0),
        ("n", "1"),
        ("temperature", "hot"),
        ("temperature", None),
        ("temperature", math.nan),
        ("temperature", math.inf),
        ("temperature", 10**400),
        ("temperature", False),
        ("temperature", 1j),
        ("top_p", 0.0),
        ("top_p", 1.1),
        ("top_k", -2),
        ("top_k", 1.5),
        ("seed", 2**63),
        ("seed", -(2**63) - 1),
        ("seed", 0.5),
        ("stop", ""),
        ("stop", ["a", ""]),
        ("stop", [1]),
        ("stop", 5),
        ("stop", b"a"),
        ("stop", ["a" * k for k in range(1, 66)]),
        ("stop", ["b", "a" * (MAX_STOP_LENGTH + 1)]),
        ("bad_words", [str(number) for number in range(4097)]),
        ("bad_words", ["a", " \ufeff"]),
        ("bad_words", ["\x1f"]),
        ("stop_token_ids", [-1]),
        ("stop_token_ids", [True]),
        ("stop_token_ids", "12"),
        ("bad_words", [""]),
        ("bad_words", ["  "]),
        ("stop_token_ids", np.array(5)),
        ("include_stop_str_in_output", 1),
        ("ignore_eos", None),
        ("max_tokens", -1),
        ("min_tokens", -1),
        ("logprobs", -2),
        ("logprobs", True),
        ("prompt_logprobs", -2),
        ("repetition_penalty", 0.0),
        ("repetition_penalty", -1.0),
        ("no_repeat_ngram_size", -1),
        ("dry_multiplier", -0.1),
        ("dry_multiplier", 100.1),
        ("dry_base", 0.9),
        ("dry_allowed_length", 0),
        ("dry_penalty_last_n", -2),
        ("dry_sequence_breakers", [""]),
        ("dry_sequence_breakers", ["a" * 41]),
        ("dry_sequence_breakers", [str(number) for number in range(65)]),
        ("logit_bias", {1: 101}),
        ("logit_bias", {1: math.nan}),
        ("logit_bias", {-1: 1}),
        ("logit_bias", {"a": 1}),
        ("logit_bias", {"²": 1}),
        ("logit_bias", {1: 1, "1": 2}),
        ("logit_bias", [(1, 1)]),
        ("allowed_token_ids", []),
        ("allowed_token_ids", [0.5]),
        ("skip_special_tokens", "no"),
    ],
)
def test_a_bad_value_is_refused_by_field(name: str, value: object) -> None:
    with pytest.raises(RequestError) as caught:
        SamplingParams(**{name: value})  # type: ignore[arg-type]
    assert caught.value.param == name and caught.value.message


def test_min_tokens_above_max_tokens_is_a_contradiction() -> None:
    with pytest.raises(RequestError) as caught:
        SamplingParams(min_tokens=5, max_tokens=4)
    assert caught.value.param == "min_tokens"
    assert SamplingParams(min_tokens=4, max_tokens=4).min_tokens == 4
    assert SamplingParams(min_tokens=5, max_tokens=None).max_tokens is None


def test_values_are_normalised() -> None:
    params = SamplingParams(stop="x", temperature=1, stop_token_ids=[3, 3, 1], logit_bias={"7": 1}, bad_words=None)  # type: ignore[arg-type,dict-item]
    assert params.stop == ("x",) and params.stop_token_ids == (3, 1) and params.bad_words == ()
    assert SamplingParams(stop_token_ids=np.array([3, 1])).stop_token_ids == (3, 1)  # type: ignore[arg-type]
    assert params.logit_bias == {7: 1.0} and type(params.temperature) is float
    assert SamplingParams(temperature=Fraction(1, 2)).temperature == 0.5  # type: ignore[arg-type]


def test_a_changed_copy_checks_the_changed_fields_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    params = SamplingParams(max_tokens=5, min_tokens=3, stop="a", logit_bias={7: 1})
    other = SamplingParams(max_tokens=4, min_tokens=4, stop="a", logit_bias={7: 1})
    for name, value in (("logprobs", True), ("temperature", 3), ("min_tokens", 6), ("max_tokens", 2)):
        with pytest.raises(RequestError) as caught:
            params.but(**{name: value})
        assert caught.value.param == ("min_tokens" if name == "max_tokens" else name)
    monkeypatch.setattr(SamplingParams, "__post_init__", None)
    assert params.but(max_tokens=np.int64(4), min_tokens=4) == other != params
    assert (params.max_tokens, params.min_tokens) == (5, 3)


def test_containers_of_the_caller_are_copied() -> None:
    bias, stop = {1: 2.0}, ["a"]
    params = SamplingParams(logit_bias=bias, stop=stop)
    bias[1], stop[0] = 3.0, "b"
    assert params.logit_bias == {1: 2.0} and params.stop == ("a",)
    with pytest.raises(FrozenInstanceError):
        params.n = 2  # type: ignore[misc]


def test_equal_parameters_hash_alike() -> None:
    some = [SamplingParams(seed=1, logit_bias=bias) for bias in ({1: 2, 3: 4}, {3: 4.0, 1: 2.0}, {1: 2}, {}, None)]
    assert some[0] == some[1] and len(set(some)) == 4
    assert hash(SamplingParams(stop=["a"])) == hash(SamplingParams(stop="a"))


def test_greedy_is_temperature_zero() -> None:
    assert SamplingParams(temperature=0).greedy
    assert not SamplingParams(temperature=0.01).greedy


@pytest.mark.parametrize("name", ["stop_token_ids", "allowed_token_ids", "logit_bias"])
def test_ids_beyond_the_vocabulary_are_refused(name: str) -> None:
    params = SamplingParams(**{name: {9: 1.0} if name == "logit_bias" else [9]})
    params.check_vocabulary(10)
    with pytest.raises(InvalidToken) as caught:
        params.check_vocabulary(9)
    assert caught.value.param == name and "9" in caught.value.message


def test_an_unknown_name_is_refused_by_name() -> None:
    with pytest.raises(RequestError) as caught:
        SamplingParams.from_dict({"top_q": 1})
    assert caught.value.param == "top_q"


@pytest.mark.parametrize("values", [None, 5, [], ["n"], "n", SamplingParams()])
def test_parameters_are_read_from_a_mapping_only(values: object) -> None:
    with pytest.raises(RequestError) as caught:
        SamplingParams.from_dict(values)  # type: ignore[arg-type]
    assert caught.value.param == "SamplingParams"
