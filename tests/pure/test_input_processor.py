"""`InputProcessor`: fields of the request, and errors with field names."""

from __future__ import annotations

import pickle

import numpy as np
import pytest

from engine_fakes import CONTEXT, EOS, VOCABULARY, LetterTokenizer, greedy, input_processor
from ferrum.client.adapter_registry import NamedAdapter
from ferrum.client.input_processor import FieldNames, RequestOptions, bad_word_tokens
from ferrum.core.errors import ContextOverflow, InvalidToken, RequestError, Unsupported
from ferrum.core.lora_option import AdapterFacts
from ferrum.core.params import SamplingParams
from ferrum.core.types import Adapter


def test_text_is_tokenized_and_token_ids_are_kept() -> None:
    assert input_processor().process("abc", greedy()).prompt == tuple(LetterTokenizer().encode("abc"))
    for ids in ([5, 4, 3], np.array([5, 4, 3])):
        assert input_processor().process(ids, greedy()).prompt == (5, 4, 3)  # type: ignore[arg-type]


def test_plain_int_ids_are_not_converted_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """The check runs on an event loop, and a prompt may have a hundred thousand ids."""
    looked: list[object] = []

    def counted(value: object) -> int:
        looked.append(value)
        return int(str(value))

    for room in ("client.input_processor", "core.span_checks"):
        monkeypatch.setattr(f"ferrum.{room}.integer", counted)
    given = [1, 2, 3] * 1000
    assert input_processor().process(given, greedy(5)).prompt == tuple(given) and not looked
    assert input_processor().process([*given, np.int32(4)], greedy(5)).prompt == (*given, 4) and len(looked) == 3001


def test_request_can_be_pickled() -> None:
    options = greedy(stop=["x"], logit_bias={3: 1.0})
    request = input_processor(prioritised=True).process("abc", options, RequestOptions(priority=2, deadline=5.0))
    assert request.priority == 2
    assert pickle.loads(pickle.dumps(request)) == request


def test_end_tokens_stop_unless_ignore_eos() -> None:
    stops = input_processor().process("a", greedy(stop_token_ids=[7]))
    assert stops.stop_token_ids == {7, EOS} and stops.eos_token_ids == (EOS,)
    ignores = input_processor().process("a", greedy(stop_token_ids=[7], ignore_eos=True))
    assert ignores.stop_token_ids == {7} and ignores.eos_token_ids == ()


def test_missing_seed_is_drawn_from_the_range_of_valid_seeds() -> None:
    assert input_processor().process("a", SamplingParams(seed=-5)).seed == -5
    drawn = {input_processor().process("a", SamplingParams()).seed for _ in range(50)}
    assert len(drawn) == 50
    for seed in drawn:
        assert SamplingParams(seed=seed).seed == seed


def test_deadline_counts_from_now_and_ids_are_unique() -> None:
    first, second = (input_processor().process("a", greedy(), RequestOptions(deadline=2.5)) for _ in range(2))
    assert first.deadline == first.arrival + 2.5
    assert first.request_id != second.request_id and first.trace_id == first.request_id


@pytest.mark.parametrize("seconds", [2, np.int64(2), np.float32(2)])
def test_deadline_accepts_any_number_type(seconds: float) -> None:
    request = input_processor().process("a", greedy(), RequestOptions(deadline=seconds))
    assert request.deadline == request.arrival + 2 and type(request.deadline) is float


def test_bad_words_apply_at_the_start_and_after_a_space() -> None:
    tokens = LetterTokenizer()
    request = input_processor().process("a", greedy(bad_words=["no"]))
    assert set(request.bad_words) == {tuple(tokens.encode("no")), tuple(tokens.encode(" no"))}


def test_tokenizer_error_in_a_bad_word_names_bad_words(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(self: LetterTokenizer, text: str, *, add_special_tokens: bool = True) -> list[int]:
        raise RequestError("holds a lone surrogate at character 0", param="prompt")

    monkeypatch.setattr(LetterTokenizer, "encode", refuse)
    with pytest.raises(RequestError, match="lone surrogate") as caught:
        input_processor().process([1], greedy(bad_words=["\ud800"]))
    assert caught.value.param == "bad_words"


@pytest.mark.contract("5.a prompt that is too long is refused")
@pytest.mark.parametrize(
    ("prompt", "error", "words"),
    [
        ("", RequestError, "empty"),
        ([], RequestError, "empty"),
        ([1, VOCABULARY], InvalidToken, f"{VOCABULARY} at position 1"),
        ([1, 2, -1], InvalidToken, "-1 at position 2"),
        ([1, 2.0], InvalidToken, "2.0 at position 1"),
        ([True], InvalidToken, "True at position 0"),
        (7, RequestError, "int"),
        (None, RequestError, "NoneType"),
        (b"abc", RequestError, "bytes"),
        (bytearray(b"abc"), RequestError, "bytearray"),
        ({"prompt": "abc"}, RequestError, "dict"),
        ({1: 2}.keys(), RequestError, "dict_keys"),
        ({1, 2}, RequestError, "set"),
        (np.array(5), RequestError, "ndarray"),
        (np.array([1.0]), InvalidToken, "1.0 at position 0"),
        ([1] * CONTEXT, ContextOverflow, str(CONTEXT)),
    ],
)
def test_invalid_prompt_is_refused(prompt: object, error: type[RequestError], words: str) -> None:
    with pytest.raises(error, match=words) as caught:
        input_processor().process(prompt, greedy())  # type: ignore[arg-type]
    assert caught.value.param == "prompt"


def test_prediction_longer_than_the_context_is_refused() -> None:
    """Its state is many times its size, and a body may be much larger than the context."""
    assert len(input_processor().process([1], greedy(), RequestOptions(prediction=[1] * CONTEXT)).prediction) == CONTEXT
    with pytest.raises(ContextOverflow, match=str(CONTEXT + 1)) as caught:
        input_processor().process([1], greedy(), RequestOptions(prediction=[1] * (CONTEXT + 1)))
    assert caught.value.param == "prediction"


def test_prompt_that_fills_the_context_can_be_scored() -> None:
    assert len(input_processor().process([1] * CONTEXT, greedy(0)).prompt) == CONTEXT
    with pytest.raises(ContextOverflow) as caught:
        input_processor().process([1] * (CONTEXT + 1), greedy(0))
    assert caught.value.param == "prompt" and "0 for the completion" in caught.value.message


@pytest.mark.parametrize(
    ("length", "output", "param"), [(10, 90, None), (10, 91, "max"), (100, 1, "text"), (100, 0, None), (101, 0, "text")]
)
def test_context_error_names_the_field_to_change(length: int, output: int, param: str | None) -> None:
    names = FieldNames(prompt="text", max_tokens="max")
    given = {"context": 100, "required_output": output, "names": names}
    if param is None:
        assert len(input_processor().process([1] * length, greedy(), RequestOptions(**given)).prompt) == length
        return
    with pytest.raises(ContextOverflow) as caught:
        input_processor().process([1] * length, greedy(), RequestOptions(**given))
    wanted = f"({length} in the prompt, {output} for the completion)"
    sentence = f"This model's maximum context length is 100 tokens. However, you requested {length + output} tokens"
    assert caught.value.param == param and caught.value.message.startswith(f"{sentence} {wanted}.")


@pytest.mark.parametrize(
    "options",
    [
        {"stop": ["x"]},
        {"bad_words": ["x"]},
        {"stop": ["x"], "include_stop_str_in_output": True},
        {"skip_special_tokens": False},
    ],
)
def test_text_parameters_are_refused_without_a_tokenizer(options: dict[str, object]) -> None:
    with pytest.raises(RequestError, match="no tokenizer") as caught:
        input_processor(text=False).process([1], greedy(**options))
    assert caught.value.param in options
    with pytest.raises(RequestError, match="no tokenizer"):
        input_processor(text=False).process("text", greedy())
    assert input_processor(text=False).process([1], greedy()).prompt == (1,)


@pytest.mark.parametrize(
    "options", [{"stop_token_ids": [VOCABULARY]}, {"allowed_token_ids": [VOCABULARY]}, {"logit_bias": {VOCABULARY: 1}}]
)
def test_ids_outside_the_vocabulary_are_refused_by_name(options: dict[str, object]) -> None:
    with pytest.raises(InvalidToken) as caught:
        input_processor().process("a", greedy(**options))
    assert caught.value.param in options


@pytest.mark.parametrize(
    "options",
    [
        {"request_id": ""},
        {"request_id": 5},
        {"request_id": "\ud800"},
        {"tenant": 5},
        {"tenant": ["x"]},
        {"salt": None},
        {"salt": "\ud800"},
        {"trace_id": b"x"},
        {"priority": 1.5},
        {"deadline": 0},
        {"deadline": float("nan")},
        {"deadline": "soon"},
        {"deadline": 10**400},
    ],
)
def test_invalid_options_are_refused_by_name(options: dict[str, object]) -> None:
    with pytest.raises(RequestError) as caught:
        input_processor().process("a", greedy(), RequestOptions(**options))  # type: ignore[arg-type]
    assert caught.value.param in options


def test_priority_is_refused_without_the_priority_policy() -> None:
    with pytest.raises(Unsupported) as caught:
        input_processor().process("a", greedy(), RequestOptions(priority=5))
    assert caught.value.feature == "priority"
    assert input_processor().process("a", greedy(), RequestOptions(priority=0)).priority == 0


def test_adapters_begin_at_their_last_invocation_and_are_ordered_by_id() -> None:
    def named(name: str, id: int, scale: float = 1.0, invocation: tuple[int, ...] = ()) -> NamedAdapter:
        return NamedAdapter(id, name, AdapterFacts(name, name.encode(), 8, 1, invocation=invocation), scale)

    adapters = (named("c", 3), named("b", 2, 0.5, (7, 8)), named("a", 9, 0.0), named("d", 1, 1.0, (8, 7)))
    request = input_processor().process([7, 8, 9, 7, 8, 9], greedy(), RequestOptions(adapters=adapters))
    assert request.adapters == (Adapter("b", b"b", 0.5, 3), Adapter("c", b"c", 1.0, 0)), "d is not invoked, a is off"


def test_bad_word_tokens_with_and_without_a_leading_space() -> None:
    def encode(text: str) -> list[int]:
        return [ord(character) for character in text]

    assert bad_word_tokens(["no", " no"], encode) == ((110, 111), (32, 110, 111))
    with pytest.raises(RequestError) as caught:
        bad_word_tokens(["x"], lambda text: [])
    assert caught.value.param == "bad_words"
