"""Models from sources other than a directory, through every step from loading to text."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from ferrum import LLM, AsyncEngine, SamplingParams
from ferrum.bench.shapes import SHAPES
from ferrum.client.records.record import read_record
from ferrum.client.records.record_files import file_name
from ferrum.client.request_output import RequestOutput
from ferrum.core.types import Pooling
from ferrum.runtime.packing import pack_directory
from ferrum.sources.hub import BUILT_IN, resolve_model
from ferrum.sources.model_source import DirectoryModel
from ferrum.sources.open_model import open_model
from ferrum.sources.random_checkpoint import RandomCheckpoint
from ferrum.text.chat_template import ChatTemplate
from ferrum.text.generation_config import GenerationConfig
from ferrum.text.tokenizer import FileTokenizer
from ferrum.text.tokenizer_config import TokenizerConfig
from memory_model import MemoryModel, in_memory
from text_samples import BOS, byte_level

PROMPTS = ["def add(a, b):\n", "import os\n"]
SAMPLED = SamplingParams(temperature=0.8, seed=7, max_tokens=8, logprobs=1, ignore_eos=True)
TEMPLATE = "{% for message in messages %}{{ message.content }}\n{% endfor %}"


def essence(outputs: list[RequestOutput]) -> list[object]:
    return [(each.prompt_token_ids, [(c.text, c.token_ids, c.logprobs) for c in each.outputs]) for each in outputs]


@pytest.fixture(scope="module")
def source() -> MemoryModel:
    return in_memory(
        resolve_model(BUILT_IN),
        chat_template__jinja=TEMPLATE,
        generation_config__json=json.dumps({"temperature": 0.5, "eos_token_id": 3}),
        modules__json=json.dumps([{"type": "library.Pooling", "path": "1_Pooling"}]),
        **{"1_Pooling/config__json": json.dumps({"pooling_mode": "lasttoken"})},
    )


@pytest.fixture(scope="module")
def expected() -> Iterator[list[object]]:
    with LLM(BUILT_IN, kv_capacity=1024) as llm:
        yield essence(llm.generate(PROMPTS, SAMPLED, use_tqdm=False))


@pytest.mark.parametrize("host", ["thread", "process"])
def test_model_in_memory_gives_the_bits_of_its_directory(
    source: MemoryModel, expected: list[object], host: str
) -> None:
    with LLM("ours", source=source, kv_capacity=1024, host=host) as llm:
        assert llm.info.model == "ours"
        assert essence(llm.generate(PROMPTS, SAMPLED, use_tqdm=False)) == expected


def test_text_and_defaults_come_from_the_source(source: MemoryModel) -> None:
    with LLM("ours", source=source, kv_capacity=1024) as llm:
        assert llm.default_sampling_params.temperature == 0.5
        assert 3 in llm.client.input_processor.eos_token_ids
        assert llm.client.pooling() is Pooling.LAST
        chat = [{"role": "user", "content": PROMPTS[0].strip()}]
        answers = llm.chat(chat, SAMPLED, use_tqdm=False), llm.generate(PROMPTS[:1], SAMPLED, use_tqdm=False)
        assert essence(answers[0]) == essence(answers[1])


def test_asynchronous_client_serves_a_source(source: MemoryModel, expected: list[object]) -> None:
    async def text() -> str:
        async with AsyncEngine("ours", source=source, kv_capacity=1024) as engine:
            return "".join([delta.text async for delta in engine.generate(PROMPTS[0], SAMPLED)])

    assert text_of(expected[0]) == asyncio.run(text())


def text_of(answer: object) -> object:
    assert isinstance(answer, tuple)
    return answer[1][0][0]


def test_caches_and_records_name_a_model_without_a_directory(source: MemoryModel, tmp_path: Path) -> None:
    directories = {"record_dir": str(tmp_path / "records"), "prefix_cache_dir": str(tmp_path / "pages")}
    with LLM("ours", source=source, kv_capacity=1024, **directories) as llm:  # type: ignore[arg-type]
        (output,) = llm.generate(PROMPTS[:1], SAMPLED, use_tqdm=False)
    origin = read_record(tmp_path / "records" / file_name("", output.request_id)).origin
    assert (origin.model, origin.directory, origin.digest) == ("ours", None, source.digest(tmp_path))


def test_source_without_a_directory_can_be_packed(source: MemoryModel, tmp_path: Path) -> None:
    pack_directory(source, tmp_path / "packed", "int8")
    packed = open_model(str(tmp_path / "packed"))
    assert packed.pooling() is Pooling.LAST
    template, tokenizer = packed.chat_template(), packed.tokenizer()
    assert template is not None and tokenizer is not None
    assert template.render([{"role": "user", "content": "x"}]) == "x\n"
    with LLM(packed.name, kv_capacity=1024) as packed_llm, LLM("ours", source=source, quantize="int8") as llm:
        answers = [essence(each.generate(PROMPTS, SAMPLED, use_tqdm=False)) for each in (packed_llm, llm)]
    assert answers[0] == answers[1]


class MetadataModel(MemoryModel):
    """A model whose text comes from metadata that no file of the usual layout holds."""

    def tokenizer(self) -> FileTokenizer:
        return FileTokenizer(byte_level(), TokenizerConfig(special_tokens=self.special_tokens()))

    def special_tokens(self) -> dict[str, str]:
        return {"bos_token": BOS}

    def chat_template(self) -> ChatTemplate:
        return ChatTemplate("{{ bos_token }}" + TEMPLATE, self.special_tokens(), origin=self.name)

    def generation_config(self, *, recommended: bool = True) -> GenerationConfig:
        return GenerationConfig(eos_token_ids=(5,), sampling={"top_k": 3} if recommended else {})


def test_source_may_make_its_text_parts_itself() -> None:
    random = RandomCheckpoint("tiny", {**SHAPES["tiny"], "vocab_size": 512})
    model = MetadataModel(random.config, {name: random.read(name) for name in random.tensors}, {})
    with LLM("metadata", source=model, kv_capacity=512) as llm:
        assert llm.default_sampling_params.top_k == 3
        (answer,) = llm.chat([{"role": "user", "content": "fox"}], use_tqdm=False)
        assert answer.prompt is not None and answer.prompt.startswith(BOS) and answer.prompt_token_ids[0] == 0


def test_directory_is_opened_by_its_path(tmp_path: Path) -> None:
    directory = resolve_model(BUILT_IN)
    found = open_model(str(directory))
    assert isinstance(found, DirectoryModel) and found.path == directory
    assert found.name == str(directory) == open_model(BUILT_IN).name
    assert found.digest(tmp_path) == open_model(BUILT_IN).digest(tmp_path)


def test_random_models_of_other_shapes_have_other_digests(tmp_path: Path) -> None:
    shapes = [SHAPES["tiny"], {**SHAPES["tiny"], "vocab_size": 300}]
    first, second = (RandomCheckpoint("tiny", shape) for shape in shapes)
    assert first.digest(tmp_path) != second.digest(tmp_path)
    assert first.tokenizer() is None and first.chat_template() is None
