"""Limits on tokens next to a running engine: threads, failures, records, and installations without the library."""

from __future__ import annotations

import logging
import re
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from command_kit import Outcome, command_line
from ferrum import LLM, SamplingParams
from ferrum.client.input_processor import RequestOptions
from ferrum.client.offline_batch import stream
from ferrum.client.records.record import read_record
from ferrum.client.records.record_files import file_name
from ferrum.core.errors import RequestError, StepError
from ferrum.core.guidance import Grammar, Guidance
from ferrum.core.output_format import OutputFormat, Reading
from ferrum.core.structured_outputs import StructuredOutputs
from ferrum.engine.engine import Engine
from ferrum.guides import guide_program as grammar_tokens
from fixed_costs import SetCosts
from guided_kit import Job, generate, grammar, letter, schema_source, thought
from outcomes import essence
from tiny import directory_of, find
from tiny_with_tokenizer import spoken

LIST = grammar(schema_source({"type": "array", "items": {"enum": [1, 23]}, "minItems": 2, "maxItems": 4}))
CALL = grammar('start: "(" /[a-f]{3,5}/ ")"', letter("="), repeats=True)
WARM = SamplingParams(temperature=1.0, seed=3, max_tokens=24)


@pytest.fixture(scope="module")
def llm() -> Iterator[LLM]:
    with LLM(str(spoken("qwen3")), dtype="float32") as llm:
        yield llm


def test_engines_thread_neither_compiles_nor_masks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every use of the library is by one of two threads, and never by the one that runs steps."""
    import llguidance

    calls: dict[str, set[str]] = {}
    stepping: set[str] = set()

    class Watched:
        def __init__(self, make: Any, *args: Any, **options: Any) -> None:
            self._note(make.__name__)
            self._inner = make(*args, **options)

        @staticmethod
        def _note(name: str) -> None:
            calls.setdefault(name, set()).add(threading.current_thread().name)

        def __getattr__(self, name: str) -> Any:
            self._note(name)
            return getattr(self._inner, name)

        def deep_copy(self) -> Any:
            self._note("deep_copy")
            copy = object.__new__(Watched)
            copy._inner = self._inner.deep_copy()
            return copy

    step = Engine.step

    def noted(self: Engine, *args: Any) -> bool:
        stepping.add(threading.current_thread().name)
        return step(self, *args)

    monkeypatch.setattr(Engine, "step", noted)
    make = llguidance.LLMatcher
    monkeypatch.setattr(llguidance, "LLMatcher", lambda *args, **options: Watched(make, *args, **options))
    with LLM(str(spoken("qwen3")), speculative="ngram") as llm:
        generate(llm, [Job("list", WARM, LIST), Job("calls", WARM, CALL), Job("list", WARM, LIST)])
    assert {"LLMatcher", "deep_copy", "compute_bitmask", "consume_token", "compute_ff_tokens"} <= calls.keys()
    assert calls["LLMatcher"] == {"ferrum-grammars_0"} and calls["compute_bitmask"] == {"ferrum-masks_0"}
    used = set().union(*calls.values())
    assert used == {"ferrum-grammars_0", "ferrum-masks_0"} and stepping == {"ferrum-engine"}


def test_grammar_that_fails_ends_its_choice_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(grammar_tokens.LIMITS, "max_items_in_row", 9)
    failing = grammar('start: e\ne: e e | "a"')
    jobs = [Job("other", WARM), Job("list", WARM, LIST)]
    with LLM(str(spoken("qwen3")), dtype="float32") as llm:
        alone = [generate(llm, [job])[0] for job in jobs]
        first, failed, second = generate(llm, [jobs[0], Job("fails", WARM.but(min_tokens=20), failing), jobs[1]])
        (choice,) = failed.outputs
        assert choice.finish_reason == "error" and isinstance(choice.error, StepError)
        assert "grammar failed" in str(choice.error) and choice.text.startswith("aa")
        assert essence([first, second]) == essence(alone)
        assert essence(generate(llm, [jobs[1]])) == essence(alone[1:])


def test_grammar_that_does_not_compile_is_refused_with_the_reason(llm: LLM) -> None:
    (output,) = generate(llm, [Job("x", WARM, grammar("start: nothing"))])
    (choice,) = output.outputs
    assert isinstance(choice.error, RequestError) and "unknown name" in str(choice.error)


def test_model_without_a_tokenizer_refuses_limits() -> None:
    with LLM(str(directory_of(find("qwen3")))) as llm, pytest.raises(RequestError, match="no tokenizer"):
        llm.client.input_processor.process([1, 2], WARM, RequestOptions(guidance=LIST))


def test_installation_without_the_library_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "llguidance", None)
    with LLM(str(spoken("qwen3"))) as llm:
        (refused, other) = generate(llm, [Job("x", WARM, LIST), Job("x", WARM)])
        assert "pip install 'ferrum-llm[structured]'" in str(refused.outputs[0].error)
        assert other.outputs[0].error is None


def test_tokens_that_a_grammar_forces_are_drafts_with_any_option(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    monkeypatch.setattr("ferrum.engine.recipe.StepCosts", SetCosts)
    text = "which the model has no choice about, " * 3
    with LLM(str(spoken("qwen3"))) as llm:
        (output,) = generate(llm, [Job("x", WARM.but(max_tokens=200), grammar(f'start: ("a" | "b") "{text}"'))])
    assert output.outputs[0].text[1:] == text
    found = re.search(r"(\d+) of (\d+) draft tokens were accepted", caplog.text)
    assert found is not None and found[1] == found[2] and int(found[1]) > len(text) / 2


@pytest.mark.parametrize("budget", [0, 1, 5])
@pytest.mark.parametrize("speculative", [None, "ngram"])
def test_budget_closes_the_thought_at_its_token(budget: int, speculative: str | None) -> None:
    """The prompt repeats itself, so that drafts run across the budget."""
    guidance = Guidance(thought=thought(budget, end=">"), grammar=Grammar(source='start: "done"'))
    with LLM(str(spoken("qwen3")), speculative=speculative) as llm:
        params = SamplingParams(temperature=0.0, max_tokens=20, logit_bias={2: 60.0})
        (output,) = generate(llm, [Job("a      " * 8, params, guidance)])
    assert output.outputs[0].text == " " * budget + ">done"


def test_record_of_a_limited_request_is_replayed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    ferrum: Callable[..., Outcome] = command_line(capsys)
    reading = Reading(format=OutputFormat(name="plain", source="file"))
    guidance = Guidance(thought=thought(4), grammar=LIST.grammar)
    with LLM(str(spoken("qwen3")), record_dir=str(tmp_path), dtype="float32") as llm:
        request = llm.client.input_processor.process("think", WARM, RequestOptions(guidance=guidance, reading=reading))
        delta = list(stream(llm.client.router, llm.client.tokenizer, request))[-1]
    assert delta.finish_reason is not None
    path = tmp_path / file_name("", request.request_id)
    record = read_record(path)
    assert (record.request.guidance, record.request.reading) == (guidance, reading)
    code, out, err = ferrum("replay", str(path))
    assert (code, err) == (0, "") and "same bits" in out


def test_structured_outputs_of_the_sampling_parameters_are_enforced(llm: LLM) -> None:
    """The library's own door, in one batch with a request that has no limits."""
    limits = [{"choice": ["yes", "no"]}, {"regex": "[a-f]{4}"}, {"json": {"type": "boolean"}}, None]
    params = [WARM.but(structured_outputs=each and StructuredOutputs.from_dict(each)) for each in limits]
    first, second, third, free = (each.outputs[0] for each in llm.generate(["x"] * 4, params, use_tqdm=False))
    assert first.text in ("yes", "no") and re.fullmatch("[a-f]{4}", second.text) and third.text in ("true", "false")
    assert {first.finish_reason, second.finish_reason, third.finish_reason} == {"stop"} and free.error is None
