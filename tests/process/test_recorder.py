"""Recorded requests are the same from an engine in a thread and in a process."""

from __future__ import annotations

from pathlib import Path

import pytest

from engine_fakes import CRASH, KILL, POISON, FakeRecipe, greedy, parts
from ferrum.client.input_processor import RequestOptions
from ferrum.client.llm import LLM
from ferrum.client.offline_batch import Batch, stream
from ferrum.client.records.explain import Work, passages
from ferrum.client.records.record import Record
from ferrum.client.records.replayer import Replay
from ferrum.client.request_output import RequestOutput
from ferrum.core.errors import EngineDead, RecordNotFound
from ferrum.core.params import SamplingParams
from ferrum.core.types import Pooling
from ferrum.engine.progress import progress_bar
from record_kit import recorded_parts

BOTH = pytest.mark.parametrize("process", [False, True], ids=["thread", "process"])
LOUD = {"ignore_eos": True}


def record_of(llm: LLM, output: RequestOutput) -> Record:
    recorder = llm.client.router.recorder
    assert recorder is not None
    return recorder.find("", output.request_id)


def recorded_result(record: Record) -> list[tuple[list[int], str]]:
    assert record.end is not None
    ends = enumerate(record.end.choices)
    return [([token for token, _ in record.sampled(choice)], end.finish_reason) for choice, end in ends]


def client_result(output: RequestOutput) -> list[tuple[list[int], str | None]]:
    return [(choice.token_ids, choice.finish_reason) for choice in output.outputs]


@BOTH
def test_a_record_has_the_clients_result_and_log_probabilities(tmp_path: Path, process: bool) -> None:
    asked = greedy(30, n=3, logprobs=0, **LOUD)
    with LLM.from_parts(parts()) as llm:
        (plain,) = llm.generate([[3, 5, 7]], asked, use_tqdm=False)
    with LLM.from_parts(recorded_parts(tmp_path, FakeRecipe(drafts=3), process=process)) as llm:
        outputs = llm.generate([[3, 5, 7], [4] * 70], greedy(30, n=3, **LOUD), use_tqdm=False)
        for output in outputs:
            record = record_of(llm, output)
            assert recorded_result(record) == client_result(output) and output.outputs[0].logprobs is None
            assert record.request.prompt == tuple(output.prompt_token_ids)
            assert record.request.seed == output.metrics.seed and record.request.params.logprobs is None
        record = record_of(llm, outputs[0])
    for choice in plain.outputs:
        assert choice.logprobs is not None
        expected = [logprobs[token].logprob for token, logprobs in zip(choice.token_ids, choice.logprobs, strict=True)]
        assert [logprob for _, logprob in record.sampled(choice.index)] == expected


@BOTH
def test_recording_does_not_check_parameters_again(
    tmp_path: Path, process: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[SamplingParams] = []
    check = SamplingParams.__post_init__
    asked = greedy(3, allowed_token_ids=list(range(50)), **LOUD)
    with LLM.from_parts(recorded_parts(tmp_path, process=process)) as llm:
        monkeypatch.setattr(SamplingParams, "__post_init__", lambda params: made.append(params) or check(params))
        llm.generate([[3], [4]], asked, use_tqdm=False)
    assert not made


def test_the_schedule_shows_chunks_prefix_hits_and_drafts(tmp_path: Path) -> None:
    recipe = FakeRecipe(max_tokens_per_step=32, prefixes=True, drafts=2)
    with LLM.from_parts(recorded_parts(tmp_path, recipe)) as llm:
        (cold,) = llm.generate([[9] * 70], greedy(20, **LOUD), use_tqdm=False)
        (warm,) = llm.generate([[9] * 70], greedy(20, **LOUD), use_tqdm=False)
        records = [record_of(llm, output) for output in (cold, warm)]
    for record, pieces in zip(records, ([(0, 32), (32, 32), (64, 6)], [(64, 6)]), strict=True):
        its = passages(record)
        prompt = [each for each in its if each.work is Work.PROMPT]
        assert [(each.start, each.tokens) for each in prompt] == pieces
        assert record.end is not None and its[0].found == record.end.cached_tokens == pieces[0][0]
        assert {each.work for each in its} == {Work.PROMPT, Work.VERIFY, Work.DECODE}
        assert sum(each.sampled for each in its) == sum(each.accepted + 1 for each in its if each.sampled) == 20


@BOTH
def test_a_record_ends_where_the_text_does(tmp_path: Path, process: bool) -> None:
    with LLM.from_parts(recorded_parts(tmp_path, process=process)) as llm:
        (plain,) = llm.generate(["abc"], greedy(40, **LOUD), use_tqdm=False)
        text = plain.outputs[0].text
        assert text is not None
        (output,) = llm.generate(["abc"], greedy(40, stop=[text[5:7]], **LOUD), use_tqdm=False)
        record = record_of(llm, output)
        assert recorded_result(record) == client_result(output) and record.end is not None
        assert record.end.choices[0].stop_reason == text[5:7]


@BOTH
def test_a_failure_is_recorded_with_its_error(tmp_path: Path, process: bool) -> None:
    with LLM.from_parts(recorded_parts(tmp_path, process=process)) as llm:
        for token, reason in ((POISON, "NonFiniteLogits"), (CRASH, "StepError")):
            (output,) = llm.generate([[token]], greedy(5), use_tqdm=False)
            record = record_of(llm, output)
            assert record.end is not None
            (end,) = record.end.choices
            assert (end.tokens, end.finish_reason, end.error) == (0, "error", reason)


def test_records_show_the_death_of_the_engine_process(tmp_path: Path) -> None:
    with LLM.from_parts(recorded_parts(tmp_path, process=True)) as llm:
        running = llm.stream([5], greedy(None, **LOUD))
        begun = next(running)
        with pytest.raises(EngineDead):
            llm.generate([[KILL]], greedy(5), use_tqdm=False)
        list(running)
        recorder = llm.client.router.recorder
        assert recorder is not None
        record = recorder.find("", begun.request_id)
    assert record.end is not None and record.end.choices[0].error == "EngineDead"
    assert record.sampled(0)[: len(begun.token_ids)]


def test_an_aborted_request_is_recorded_up_to_its_end(tmp_path: Path) -> None:
    with LLM.from_parts(recorded_parts(tmp_path, FakeRecipe(seconds_per_step=0.001))) as llm:
        running = llm.stream([5], SamplingParams(max_tokens=None, ignore_eos=True))
        begun = next(running)
        running.close()  # type: ignore[attr-defined]
    with LLM.from_parts(recorded_parts(tmp_path)) as llm:
        recorder = llm.client.router.recorder
        assert recorder is not None
        record = recorder.find("", begun.request_id)
        assert record.end is not None and record.end.choices[0].finish_reason == "abort"
        with pytest.raises(RecordNotFound):
            recorder.find("another tenant", begun.request_id)


@pytest.mark.parametrize(
    ("params", "pooling"),
    [
        (greedy(3, prompt_logprobs=0), None),
        (greedy(0, prompt_logprobs=0), None),
        (greedy(0), Pooling.MEAN),
    ],
    ids=["answer", "score", "vector"],
)
def test_missing_prompt_results_of_an_interrupted_request_are_no_difference(
    tmp_path: Path, params: SamplingParams, pooling: Pooling | None
) -> None:
    with LLM.from_parts(recorded_parts(tmp_path, FakeRecipe(max_tokens_per_step=32))) as llm:
        request = llm.client.input_processor.process([9] * 70, params, RequestOptions(pooling=pooling, deadline=1e-9))
        (output,) = Batch(llm.client.router, None, [request], [None]).run(progress_bar(False, 1, ""))
        record = record_of(llm, output)
        assert recorded_result(record) == [([], "deadline")]
        again = Replay(record, 0)
        for delta in stream(llm.client.router, None, again.request):
            again.push(delta)
    assert again.output().outputs[0].finish_reason == "length", "the replay has no deadline"
    assert again.differences() == []


def test_fifty_requests_run_together_by_default(tmp_path: Path) -> None:
    """With 32 sequences at most, 18 of 50 clients waited for their first token until others ended."""
    with LLM("ferrum-tiny", record_dir=str(tmp_path), kv_capacity=16_384, decode_seconds=0.0) as llm:
        outputs = llm.generate([[7 + place] for place in range(50)], greedy(4, **LOUD), use_tqdm=False)
        rows = [each.most_rows for each in passages(record_of(llm, outputs[-1])) if each.work is Work.DECODE]
    assert rows == [50]
