"""Recorded requests of a real model are replayed from the command line: the same bits, or the difference."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from command_kit import Outcome
from ferrum import LLM, SamplingParams
from ferrum.client.input_processor import RequestOptions
from ferrum.client.offline_batch import Batch
from ferrum.client.records.record import read_record
from ferrum.client.records.record_files import file_name
from ferrum.core.types import Pooling
from ferrum.engine.progress import progress_bar
from tiny import directory_of, find, tokens_of

CASE = "qwen3"
WARM = {"temperature": 0.9, "max_tokens": 12, "ignore_eos": True}


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, list[str]]]:
    """Directory and ids of records of batched requests, with chunks, prefix hits and drafts."""
    directory = tmp_path_factory.mktemp("records")
    options = {"dtype": "float32", "kv_capacity": 1024, "max_tokens_per_step": 40, "speculative": "ngram"}
    model, case = str(directory_of(find(CASE))), find(CASE)
    with LLM(model, record_dir=str(directory), **options) as llm:  # type: ignore[arg-type]
        long = tokens_of(case, 150, seed=1)
        params = [
            SamplingParams(**WARM),  # type: ignore[arg-type]
            SamplingParams(**WARM, n=3, top_p=0.8, frequency_penalty=0.5, logprobs=2),  # type: ignore[arg-type]
            SamplingParams(**WARM, prompt_logprobs=1, logit_bias={7: 3.0}),  # type: ignore[arg-type]
            SamplingParams(temperature=0.0, max_tokens=40),
        ]
        prompts = [long, long, tokens_of(case, 50, seed=2), [3, 4, 5] * 20]
        outputs = llm.generate(prompts, params, use_tqdm=False)
        outputs += llm.generate([long], SamplingParams(**WARM, seed=8), use_tqdm=False)  # type: ignore[arg-type]
        vector = llm.client.input_processor.process(
            long, SamplingParams(max_tokens=0), RequestOptions(pooling=Pooling.MEAN)
        )
        bar = progress_bar(False, 1, "")
        outputs += Batch(llm.client.router, None, [vector], [None]).run(bar)
    yield directory, [output.request_id for output in outputs]


def test_every_replay_has_the_same_bits(recorded: tuple[Path, list[str]], ferrum: Callable[..., Outcome]) -> None:
    directory, ids = recorded
    for id in ids:
        code, out, err = ferrum("replay", id, "--record", str(directory), "--top", "2")
        assert (code, err) == (0, ""), out + err
        assert "same bits" in out and id in out
    assert "the vector" in out
    hit = ferrum("replay", str(directory / file_name("", ids[4])), "--kv-capacity", "640", "--threads", "1")
    end = read_record(directory / file_name("", ids[4])).end
    assert end is not None and end.cached_tokens >= 128
    assert hit[0] == 0 and f"{end.cached_tokens} prompt tokens from the prefix cache" in hit[1]


def test_another_process_finds_the_same_bits(recorded: tuple[Path, list[str]]) -> None:
    directory, ids = recorded
    command = [sys.executable, "-m", "ferrum", "replay", ids[1], "--record", str(directory)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "same bits: 36 tokens and their log-probabilities" in done.stdout


@pytest.mark.parametrize(
    ("field", "change", "told"),
    [
        ("sampled", lambda token: token ^ 1, "choice 0, token 0: "),
        ("logprobs", lambda logprob: logprob * (1 + 2**-52), "choice 0, logprob 0: "),
    ],
)
def test_a_single_different_bit_is_reported(
    recorded: tuple[Path, list[str]],
    tmp_path: Path,
    ferrum: Callable[..., Outcome],
    field: str,
    change: Callable[[float], float],
    told: str,
) -> None:
    directory, ids = recorded
    head, *lines = (directory / file_name("", ids[0])).read_text().splitlines()
    shares = [json.loads(line) for line in lines[:-1]]
    first = next(share for share in shares if "sampled" in share)
    first[field][0] = change(first[field][0])
    other = tmp_path / "other.jsonl"
    other.write_text("\n".join([head, *map(json.dumps, shares), ""]))
    code, out, _ = ferrum("replay", str(other))
    assert code == 1 and f"not the same bits: {told}" in out and "the record has no end" in out


def test_a_replay_on_another_engine_is_refused_by_field(
    recorded: tuple[Path, list[str]], tmp_path: Path, ferrum: Callable[..., Outcome]
) -> None:
    directory, ids = recorded
    for option, name in (
        ("--quantize=int8", "weights"),
        ("--kv-dtype=int8", "kv_format"),
    ):
        code, _, err = ferrum("replay", ids[0], "--record", str(directory), option)
        assert code == 1 and f": {name} " in err
    other = tmp_path / "model"
    shutil.copytree(directory_of(find(CASE)), other)
    weights = next(other.glob("*.safetensors"))
    weights.write_bytes(weights.read_bytes()[:-1] + b"\1")
    code, _, err = ferrum("replay", ids[0], "--record", str(directory), "--model", str(other))
    assert code == 1 and "digest" in err


KILLED = """
import os, signal, sys
from ferrum import LLM, SamplingParams
llm = LLM(sys.argv[1], record_dir=sys.argv[2], dtype="float32", kv_capacity=1024)
running = llm.stream([5, 6, 7], SamplingParams(max_tokens=None, ignore_eos=True, seed=1))
print(next(running).request_id, flush=True)
for _ in range(10):
    next(running)
llm.client.router.recorder.files.flush()
next(running)
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_killed_request_replays_up_to_its_last_recorded_token(tmp_path: Path, ferrum: Callable[..., Outcome]) -> None:
    command = [sys.executable, "-c", KILLED, str(directory_of(find(CASE))), str(tmp_path)]
    killed = subprocess.run(command, capture_output=True, text=True, check=False)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    id = killed.stdout.strip()
    record = read_record(tmp_path / file_name("", id))
    assert record.end is None and len(record.sampled(0)) >= 5
    code, out, _ = ferrum("replay", id, "--record", str(tmp_path))
    assert code == 0 and f"same bits: {len(record.sampled(0))} tokens" in out


def test_an_id_may_be_longer_than_a_file_name(tmp_path: Path, ferrum: Callable[..., Outcome]) -> None:
    code, _, err = ferrum("replay", "cmpl-" + "a" * 300, "--record", str(tmp_path))
    assert code == 2 and "no record" in err
