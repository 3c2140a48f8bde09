"""`LLM`: batches, streams, scores and conversations on the fake engine."""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from engine_fakes import CONTEXT, POISON, FakeRecipe, LetterTokenizer, greedy, parts
from ferrum.client import offline_batch
from ferrum.client.llm import LLM
from ferrum.client.model_client import Parts
from ferrum.client.request_output import Delta, RequestOutput
from ferrum.core.errors import EngineDead, InvalidToken, RequestError, Unsupported
from ferrum.core.params import SamplingParams
from ferrum.text.chat_template import ChatTemplate
from ferrum.text.generation_config import GenerationConfig
from stream_kit import whole_of


def llm(recipe: FakeRecipe | None = None, **options: Any) -> LLM:
    return LLM.from_parts(parts(recipe, **options))


def essence(outputs: list[RequestOutput]) -> list[Any]:
    return [
        (
            output.prompt_token_ids,
            output.prompt_logprobs,
            [(c.text, c.token_ids, c.logprobs, c.finish_reason, c.stop_reason) for c in output.outputs],
            output.metrics.usage,
        )
        for output in outputs
    ]


def test_a_batch_larger_than_the_queue_returns_in_order() -> None:
    with llm(max_requests=3) as model:
        prompts = ["abc", [5, 6], "z", *("x" * n for n in range(1, 20))]
        outputs = model.generate(prompts, greedy(5), use_tqdm=False)
        assert [output.prompt for output in outputs] == [p if isinstance(p, str) else None for p in prompts]
        assert all(output.finished for output in outputs)
        assert essence(outputs) == [essence(model.generate(prompt, greedy(5), False))[0] for prompt in prompts]


def test_a_batch_waits_while_others_fill_the_queue(monkeypatch: pytest.MonkeyPatch) -> None:
    with llm(FakeRecipe(seconds_per_step=0.005), max_requests=1) as model:
        other = model.stream([1], SamplingParams(max_tokens=None, ignore_eos=True))
        next(other)
        waits: list[float] = []

        def wait(seconds: float) -> None:
            waits.append(seconds)
            other.close()

        monkeypatch.setattr(offline_batch, "time", SimpleNamespace(sleep=wait, monotonic=time.monotonic))
        outputs = model.generate(["abc", "z"], greedy(5), use_tqdm=False)
    assert waits and [output.finished for output in outputs] == [True, True]


def test_a_list_of_ids_is_one_prompt_and_an_empty_list_is_none() -> None:
    with llm() as model:
        assert len(model.generate([1, 2, 3], greedy(1), False)) == 1
        assert len(model.generate([[1, 2, 3]], greedy(1), False)) == 1
        assert model.generate([], greedy(1), False) == []


@pytest.mark.parametrize("drafts", [1, 3, 8])
def test_a_stop_string_inside_an_accepted_draft_ends_the_text(drafts: int) -> None:
    def run(recipe: FakeRecipe) -> list[Any]:
        with llm(recipe) as model:
            plain = model.generate(["ab"], greedy(60, ignore_eos=True), False)[0].outputs[0]
            assert plain.text is not None
            stops = [[plain.text[at : at + 2]] for at in range(3, 40)]
            many = [greedy(60, ignore_eos=True, stop=stop, logprobs=0, n=2, min_tokens=5) for stop in stops]
            return essence(model.generate(["ab"] * len(many), many, False))

    assert run(FakeRecipe(drafts=drafts)) == run(FakeRecipe())


def test_a_bad_request_does_not_affect_the_others() -> None:
    with llm() as model:
        good, bad, other = model.generate([[1], [POISON], [2]], greedy(4), use_tqdm=False)
        assert bad.outputs[0].finish_reason == "error" and bad.outputs[0].error is not None
        assert bad.outputs[0].error.__traceback__ is None, "a traceback would keep the engine alive"
        assert essence([good, other]) == essence(model.generate([[1], [2]], greedy(4), use_tqdm=False))


def test_all_requests_are_checked_before_any_runs() -> None:
    with llm() as model:
        with pytest.raises(InvalidToken):
            model.generate([[1], [1000]], use_tqdm=False)
        with pytest.raises(RequestError) as caught:
            model.generate(["a", "b"], [greedy()], use_tqdm=False)
        assert caught.value.param == "sampling_params"
        with pytest.raises(RequestError) as caught:
            model.generate(["a"], greedy(), use_tqdm=5)  # type: ignore[arg-type]
        assert caught.value.param == "use_tqdm"


class Tensor(list[int]):
    """An array like those of torch, whose scalars have `__iter__`, too."""

    def __iter__(self) -> Iterator[Any]:
        return map(np.array, super().__iter__())

    def tolist(self) -> list[int]:
        return [self[index] for index in range(len(self))]


def test_an_array_is_a_list() -> None:
    with llm() as model:
        for array in (np.array([1, 2]), np.array([[1, 2]]), Tensor([1, 2])):
            [output] = model.generate(array, greedy(1), use_tqdm=False)  # type: ignore[arg-type]
            assert output.prompt_token_ids == [1, 2]
        with pytest.raises(RequestError):
            model.generate(np.array(5), greedy(1), use_tqdm=False)  # type: ignore[arg-type]


def test_invalid_prompts_are_refused() -> None:
    with llm() as model:
        for prompts in (7, None, b"abc", {"prompt": "abc"}, {"abc", "def"}):
            with pytest.raises(RequestError) as caught:
                model.generate(prompts, greedy(), use_tqdm=False)  # type: ignore[arg-type]
            assert caught.value.param == "prompts"
        for prompt in (7, b"abc", {"prompt": "abc"}, frozenset("abc")):
            with pytest.raises(RequestError) as caught:
                model.generate(["abc", prompt], greedy(), use_tqdm=False)  # type: ignore[list-item]
            assert caught.value.param == "prompt"
        assert len(model.generate((prompt for prompt in ("a", [1])), greedy(1), use_tqdm=False)) == 2  # type: ignore[arg-type]


def test_invalid_sampling_parameters_are_refused() -> None:
    with llm() as model:
        for call in (
            lambda: model.generate("a", {"max_tokens": 3}, use_tqdm=False),  # type: ignore[arg-type]
            lambda: model.generate("a", [None], use_tqdm=False),  # type: ignore[list-item]
            lambda: model.generate("a", 5, use_tqdm=False),  # type: ignore[arg-type]
            lambda: model.generate("a", "a", use_tqdm=False),  # type: ignore[arg-type]
            lambda: model.stream("a", 5),  # type: ignore[arg-type]
            lambda: model.session("a").generate(5),  # type: ignore[arg-type]
        ):
            with pytest.raises(RequestError) as caught:
                call()
            assert caught.value.param == "sampling_params"
        for penalty in ("a", float("nan"), None, 600, 1e6, -1e6, 10**400, float("inf")):
            with pytest.raises(RequestError) as caught:
                model.beam_search("a", length_penalty=penalty)  # type: ignore[arg-type]
            assert caught.value.param == "length_penalty"
        for stopping in (1, 0, None, np.True_, "always", np.array([True, False])):
            with pytest.raises(RequestError) as caught:
                model.beam_search("a", early_stopping=stopping)  # type: ignore[arg-type]
            assert caught.value.param == "early_stopping"
        for ends in ("no", None, np.array([True, False])):
            with pytest.raises(RequestError) as caught:
                model.beam_search("a", ignore_eos=ends)  # type: ignore[arg-type]
            assert caught.value.param == "ignore_eos"
        for width in (0, True, 2.0, None):
            with pytest.raises(RequestError) as caught:
                model.beam_search("a", width)  # type: ignore[arg-type]
            assert caught.value.param == "beam_width"
        for most in (0, None, CONTEXT, CONTEXT + 1, 10**200, 10**400, 10**5000):
            with pytest.raises(RequestError) as caught:
                model.beam_search("a", max_tokens=most, length_penalty=2)  # type: ignore[arg-type]
            assert caught.value.param == "max_tokens"


def test_beam_search_accepts_any_integer_type() -> None:
    with llm() as model:
        assert model.beam_search("a", np.int64(2), np.int32(3)) == model.beam_search("a", 2, 3)  # type: ignore[arg-type]
        assert model.beam_search("a", 2, 3, length_penalty=np.int8(2)) == model.beam_search("a", 2, 3, length_penalty=2)


def test_a_callable_creates_the_progress_bar() -> None:
    class Bar:
        def __init__(self, *, total: int, desc: str) -> None:
            self.total, self.done, self.closed = total, 0, False
            bars.append(self)

        def update(self, n: int) -> None:
            self.done += n

        def close(self) -> None:
            self.closed = True

    bars: list[Bar] = []
    with llm() as model:
        model.generate(["a", "b", "c"], greedy(2), use_tqdm=Bar)
    assert [(bar.total, bar.done, bar.closed) for bar in bars] == [(3, 3, True)]


@pytest.mark.parametrize("bar", [None, object(), 5])
def test_a_callable_without_a_bar_is_refused_before_anything_runs(bar: object) -> None:
    with llm() as model, pytest.raises(RequestError) as caught:
        model.generate(["a"], greedy(2), use_tqdm=lambda **_: bar)  # type: ignore[arg-type]
    assert caught.value.param == "use_tqdm"


def test_the_default_bar_goes_to_standard_error(capsys: pytest.CaptureFixture[str]) -> None:
    with llm() as model:
        model.generate(["a", "b"], greedy(2))
    captured = capsys.readouterr()
    assert captured.out == "" and "2/2" in captured.err


def test_a_stream_is_the_batch_in_pieces() -> None:
    with llm() as model:
        whole = whole_of(list(model.stream("abc", greedy(20, ignore_eos=True))))
        [output] = model.generate("abc", greedy(20, ignore_eos=True), use_tqdm=False)
        assert (whole.text, list(whole.token_ids)) == (output.outputs[0].text, output.outputs[0].token_ids)
        assert whole.usage == output.metrics.usage


def test_a_stream_keeps_its_unreferenced_model_open() -> None:
    def streamed(model: LLM) -> Iterator[Delta]:
        return model.stream("abc", greedy(20, ignore_eos=True))

    with llm() as kept:
        kept_to_the_end = whole_of(list(streamed(kept)))
    whole = whole_of(list(streamed(llm())))
    assert (whole.token_ids, whole.finish_reason) == (kept_to_the_end.token_ids, "length")
    with pytest.raises(RequestError):
        llm().stream("")  # immediately, not when iteration begins


def test_closing_a_stream_ends_its_request() -> None:
    with llm(max_requests=1) as model:
        for _ in range(20):
            deltas = model.stream([1], SamplingParams(max_tokens=None, ignore_eos=True))
            next(deltas)
            deltas.close()  # type: ignore[attr-defined]
            while len(model.client.router):
                time.sleep(0.001)


def test_scores_are_those_of_the_prompts_tokens() -> None:
    with llm() as model:
        scores, longest, single = model.score(["abcd", [1] * CONTEXT, [5]], use_tqdm=False)
        assert scores[0] is None and single == [None] and len(longest) == CONTEXT
        params = greedy(1, prompt_logprobs=0)
        [output] = model.generate("abcd", params, use_tqdm=False)
        assert output.prompt_logprobs is not None
        for token, score, position in zip(output.prompt_token_ids, scores, output.prompt_logprobs, strict=True):
            assert score == (None if position is None else position[token])
        with pytest.raises(Exception, match="poisoned"):
            model.score([[POISON, 1]], use_tqdm=False)


@pytest.mark.parametrize("verb", ["score", "beam_search", "session"])
def test_callers_of_complete_outputs_get_engine_dead_after_a_shutdown(verb: str) -> None:
    """A shutdown ends requests with `abort` and without an error."""
    model = llm(FakeRecipe(seconds_per_step=0.01, max_tokens_per_step=1))
    session = model.session([5])

    def ask() -> object:
        if verb == "session":
            return session.generate(greedy(CONTEXT - 1, ignore_eos=True))
        return getattr(model, verb)([[5] * (CONTEXT - 16)])

    with ThreadPoolExecutor() as team:
        asked = team.submit(ask)
        while not len(model.client.router) and not asked.done():
            time.sleep(0.001)
        model.close()
        with pytest.raises(EngineDead, match="closed"):
            asked.result(timeout=30)
    assert session.token_ids == (5,), "as it was before"


TEMPLATE = (
    "{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}{% if add_generation_prompt %}[bot]{% endif %}"
)
OWN_TEMPLATE = "{{ bos_token }}{{ messages[0].content }}"


def chatty(template: str | None = TEMPLATE, text: bool = True) -> LLM:
    made = parts(text=text)
    return LLM.from_parts(
        Parts(
            host=made.host,
            tokenizer=made.tokenizer,
            chat_template=None if template is None else ChatTemplate(template),
            special_tokens={"bos_token": "!"},
        )
    )


def test_a_conversation_goes_through_the_template() -> None:
    messages = [{"role": "user", "content": "hi"}]
    with chatty() as model:
        [output] = model.chat(messages, greedy(3), use_tqdm=False)
        assert output.prompt == "[user]hi[bot]"
        assert output.prompt_token_ids == LetterTokenizer().encode("[user]hi[bot]")
        [iterated] = model.chat(iter(messages), greedy(3), use_tqdm=False)  # type: ignore[arg-type]
        assert essence([iterated]) == essence([output])
        both = model.chat([messages, messages], greedy(3), use_tqdm=False)
        assert essence(both) == essence([output, output])
        [own] = model.chat(messages, greedy(3), use_tqdm=False, chat_template=OWN_TEMPLATE)
        assert own.prompt == "!hi"


def test_a_conversation_may_have_the_servers_message_format() -> None:
    said = [{"type": "text", "text": "hi"}]
    with chatty() as model:
        [output] = model.chat([{"role": "developer", "content": said}], greedy(3), use_tqdm=False)
        assert output.prompt == "[system]hi[bot]"
        with pytest.raises(Unsupported, match=r"messages\[0\].content\[0\].image_url .* does not read images"):
            model.chat([{"role": "user", "content": [{"type": "image_url"}]}], use_tqdm=False)


def test_a_conversation_that_cannot_be_rendered_is_refused() -> None:
    messages = [{"role": "user", "content": "hi"}]
    with chatty(None) as model, pytest.raises(RequestError) as caught:
        model.chat(messages, use_tqdm=False)
    assert caught.value.param == "chat_template"
    with chatty(text=False) as model, pytest.raises(RequestError, match="no tokenizer"):
        model.chat(messages, use_tqdm=False)
    with chatty() as model:
        with pytest.raises(RequestError):
            model.chat([], use_tqdm=False)
        for wrong_messages in (5, None, "hi", messages[0], [5], iter([5])):
            with pytest.raises(RequestError) as caught:
                model.chat(wrong_messages, use_tqdm=False)  # type: ignore[arg-type]
            assert caught.value.param == "messages"
        with pytest.raises(RequestError):
            model.chat(messages, use_tqdm=False, add_generation_prompt=True, continue_final_message=True)
        wrong: dict[str, Any] = {"chat_template": 3, "tools": 3, "chat_template_kwargs": 3}
        for name, value in wrong.items():
            with pytest.raises(RequestError) as caught:
                model.chat(messages, use_tqdm=False, **{name: value})
            assert caught.value.param == name


def test_the_checkpoints_recommended_parameters_are_the_default() -> None:
    made = parts()
    recommended = GenerationConfig(sampling={"temperature": 0.0, "max_tokens": 3})
    with LLM.from_parts(Parts(host=made.host, tokenizer=made.tokenizer, generation=recommended)) as model:
        assert model.default_sampling_params == SamplingParams(temperature=0.0, max_tokens=3)
        [output] = model.generate("a", use_tqdm=False)
        assert len(output.outputs[0].token_ids) == 3


def test_a_recommended_min_length_yields_to_the_default_limit() -> None:
    made = parts()
    recommended = GenerationConfig(sampling={"min_tokens": 100})
    with LLM.from_parts(Parts(host=made.host, tokenizer=made.tokenizer, generation=recommended)) as model:
        limit = SamplingParams().max_tokens
        assert model.default_sampling_params.min_tokens == model.default_sampling_params.max_tokens == limit


def test_a_closed_engine_refuses_requests() -> None:
    model = llm()
    model.close()
    model.close()
    with pytest.raises(EngineDead):
        model.generate("a", use_tqdm=False)
    with pytest.raises(EngineDead):
        model.stream("a")


@pytest.mark.parametrize("process", [False, True], ids=["thread", "process"])
@pytest.mark.parametrize("fails_at", ["step", "delta"])
def test_a_failing_observer_affects_neither_answers_nor_other_observers(
    process: bool, fails_at: str, caplog: pytest.LogCaptureFixture
) -> None:
    seen: list[str] = []

    def fail(what: str, *_: object) -> None:
        if what == fails_at:
            raise ValueError(what)

    def see(what: str, *_: object) -> None:
        seen.append(what)

    with LLM.from_parts(parts(process=process)) as model:
        model.client.router.observers = [
            SimpleNamespace(step=partial(each, "step"), delta=partial(each, "delta")) for each in (fail, see)
        ]
        for _ in range(2):
            (output,) = model.generate([[1, 2]], greedy(3, ignore_eos=True), use_tqdm=False)
            assert output.outputs[0].finish_reason == "length"
    assert seen.count("delta") == 2 * 3 and seen.count("step") >= 2, "statistics do not follow every step"
    assert [record.levelname for record in caplog.records] == ["ERROR"], "logged once"
