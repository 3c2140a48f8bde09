"""Requests with structured outputs: the grammar is checked before anything is queued, once for equal constraints."""

from __future__ import annotations

import json
import sys
import threading
from typing import Any

import pytest

from engine_fakes import greedy, input_processor
from ferrum.client.input_processor import FieldNames, RequestOptions
from ferrum.core.errors import InvalidGrammar, InvalidSchema, RequestError
from ferrum.core.guidance import Grammar, Guidance, Marker, Thought
from ferrum.core.structured_outputs import StructuredOutputs
from ferrum.core.types import Pooling
from ferrum.grammar import constraint_grammars as sources
from ferrum.grammar.constraint_grammars import GrammarCache

REGEX = {"regex": "[0-9]+"}


def test_constraint_becomes_the_grammar_of_the_request() -> None:
    guidance = input_processor().process("a", greedy(structured_outputs={"json": {"type": "integer"}})).guidance
    assert guidance is not None and guidance.grammar is not None and guidance.thought is None
    (grammar,) = json.loads(guidance.grammar.source)["grammars"]
    assert grammar["json_schema"]["type"] == "integer" and guidance.grammar.triggers == ()


def test_constraint_follows_the_reasoning_that_a_request_has() -> None:
    thought = Thought(open=Marker(text="<think>"), close=Marker(text="</think>"))
    options = RequestOptions(guidance=Guidance(thought=thought))
    guidance = input_processor().process("a", greedy(structured_outputs=REGEX), options).guidance
    assert guidance is not None and guidance.thought == thought and guidance.grammar is not None
    assert input_processor().process("a", greedy(), options).guidance == options.guidance


@pytest.mark.parametrize(
    ("changes", "options", "param"),
    [
        ({"ignore_eos": True}, {}, "ignore_eos"),
        ({"min_tokens": 1}, {}, "min_tokens"),
        ({"max_tokens": 0}, {}, "max_tokens"),
        ({"max_tokens": 0}, {"names": FieldNames(max_tokens="max_output_tokens")}, "max_output_tokens"),
        ({"max_tokens": 0}, {"pooling": Pooling.LAST}, "structured_outputs"),
        ({"structured_outputs": {"regex": "("}}, {}, "structured_outputs.regex"),
        ({"structured_outputs": {"grammar": "?"}}, {}, "structured_outputs.grammar"),
        ({"structured_outputs": {"json": {"not": {"pattern": "a"}}}}, {}, "structured_outputs.json"),
        (
            {"structured_outputs": {"json": {"type": "text"}}},
            {"names": FieldNames(structured_outputs="response_format")},
            "response_format",
        ),
    ],
)
def test_contradictions_name_the_field(changes: dict[str, Any], options: dict[str, Any], param: str) -> None:
    with pytest.raises(RequestError) as caught:
        input_processor().process("a", greedy(**{"structured_outputs": REGEX, **changes}), RequestOptions(**options))
    assert caught.value.param == param


def test_other_constraints_of_tokens_compose() -> None:
    others = {
        "allowed_token_ids": [1, 2],
        "bad_words": ["b"],
        "logit_bias": {1: 2.0},
        "stop": ["c"],
        "stop_token_ids": [3],
    }
    assert input_processor().process("a", greedy(structured_outputs=REGEX, **others)).guidance is not None


def test_model_without_a_tokenizer_has_no_structured_outputs() -> None:
    with pytest.raises(RequestError, match="no tokenizer") as caught:
        input_processor(text=False).process([1], greedy(structured_outputs=REGEX))
    assert caught.value.param == "structured_outputs"


def test_missing_library_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "llguidance", None)
    with pytest.raises(RequestError, match=r"pip install 'ferrum-llm\[structured\]'") as caught:
        input_processor().process("a", greedy(structured_outputs=REGEX))
    assert caught.value.param == "structured_outputs.regex"


def test_equal_constraints_are_compiled_once_by_one_thread_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    compiled, running, together = [], threading.Semaphore(0), []
    original = sources.checked_grammar

    def counted(outputs: StructuredOutputs) -> str:
        together.append(running.acquire(blocking=False))
        running.release()
        compiled.append(outputs)
        source = original(outputs)
        running.acquire()
        return source

    monkeypatch.setattr(sources, "checked_grammar", counted)
    cache, constraints = GrammarCache(), [StructuredOutputs(regex=f"a{number % 4}") for number in range(16)]
    threads = [threading.Thread(target=cache.grammar, args=(each,)) for each in constraints]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert len(compiled) == 4 and not any(together)


def test_errors_are_kept_and_entries_are_bounded_in_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[StructuredOutputs] = []

    def compiled(outputs: StructuredOutputs) -> str:
        calls.append(outputs)
        if outputs.regex == "(":
            raise InvalidGrammar("wrong", param="regex")
        return "x" * 1000

    monkeypatch.setattr(sources, "checked_grammar", compiled)
    cache = GrammarCache(limit=20_000)
    for _ in range(2):
        with pytest.raises(InvalidGrammar, match="wrong") as caught:
            cache.grammar(StructuredOutputs(regex="("))
        assert caught.value.param == "regex"
    assert len(calls) == 1
    for number in range(10):
        cache.grammar(StructuredOutputs(regex=f"a{number}"))
    cache.grammar(StructuredOutputs(regex="a9"))
    assert len(calls) == 11
    cache.grammar(StructuredOutputs(regex="a0"))
    assert len(calls) == 12


def test_pointer_leads_to_the_innermost_schema_that_the_library_refuses() -> None:
    shared: dict[str, Any] = {"patternProperties": {"a": {}, "b": {}}}
    schema = {"properties": {"x": {"type": "string"}, "y/z": {"anyOf": [{"type": "null"}, shared]}}}
    with pytest.raises(InvalidSchema, match="not disjoint") as caught:
        input_processor().process("a", greedy(structured_outputs={"json": schema}))
    assert caught.value.message.startswith("#/properties/y~1z/anyOf/1: ") and caught.value.code == "invalid_json_schema"


def test_grammar_of_a_chat_stands_for_that_of_the_parameters() -> None:
    """A chat's grammar holds the constraint, next to tool calls and after reasoning."""
    given = Guidance(grammar=Grammar(source="start: /a/"))
    request = input_processor().process("a", greedy(structured_outputs=REGEX), RequestOptions(guidance=given))
    assert request.guidance == given
