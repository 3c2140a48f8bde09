"""Tool calls as the chat templates of published models render them: read back, and allowed by the grammar."""

from __future__ import annotations

import pytest

from ferrum.core.errors import FerrumError
from ferrum.core.output_format import OutputFormat
from ferrum.formats.known_formats import known_by_template
from ferrum.grammar.reply_guidance import tool_guidance
from format_kit import ToyTokenizer, marker_texts, parsed
from format_samples import calls_begin
from grammar_kit import ToyMatcher
from template_calls import CALLS, TEMPLATES, TOOLS, output_of, read_calls, source_of, special_texts

KNOWN_FORMATS = {
    "Apriel-1.6-15b-Thinker-fixed": "apriel",
    "Bielik-11B-v3.0-Instruct": "qwen3",
    "ByteDance-Seed-OSS": "seed-oss",
    "Cohere2MoE": "command-r7b",
    "CohereForAI-c4ai-command-r7b-12-2024-tool_use": "command-r7b",
    "GLM-4.6": "glm",
    "GLM-4.7-Flash": "glm-4.7",
    "LFM2.5-8B-A1B": "lfm2",
    "MiMo-VL": "hermes",
    "Mistral-Small-3.2-24B-Instruct-2506": "mistral-ids",
    "NVIDIA-Nemotron-3-Nano-30B-A3B-BF16": "qwen-xml",
    "NousResearch-Hermes-3-Llama-3.1-8B-tool_use": "hermes",
    "Qwen-QwQ-32B": "qwen3",
    "Qwen-Qwen2.5-7B-Instruct": "hermes",
    "Qwen-Qwen3-0.6B": "qwen3",
    "Qwen3-Coder": "qwen-xml",
    "Qwen3.5-4B": "qwen-xml",
    "Reka-Edge": "qwen3",
    "Spark2.5": "glm-4.7",
    "deepseek-ai-DeepSeek-R1-Distill-Qwen-32B": "deepseek-v3",
    "deepseek-ai-DeepSeek-V3.1": "deepseek-v3.1",
    "deepseek-ai-DeepSeek-V3.2": "dsml",
    "deepseek-ai-DeepSeek-V4": "dsml-v4",
    "deepseek-ai-DeepSeek-V4-Flash-0731": "dsml-v4",
    "fireworks-ai-llama-3-firefunction-v2": "firefunction",
    "ibm-granite-granite-4.0": "hermes",
    "ibm-granite-granite-4.1": "hermes",
    "inclusionai-ling-3.0-flash": "glm",
    "meetkai-functionary-medium-v3.1": "functionary-3.1",
    "meetkai-functionary-medium-v3.2": "functionary-3.2",
    "meta-llama-Llama-3.1-8B-Instruct": "llama3-json",
    "meta-llama-Llama-3.2-3B-Instruct": "llama3-json",
    "mistralai-Ministral-3-14B-Reasoning-2512": "mistral",
    "mistralai-Mistral-Nemo-Instruct-2407": "mistral-list",
    "moonshotai-Kimi-K2": "kimi-k2",
    "openai-gpt-oss-120b": "harmony",
    "openbmb-MiniCPM5-1B": "minicpm5",
    "poolside-Laguna-S-2.1": "glm-4.7",
    "poolside-Laguna-XS-2.1": "glm",
    "poolside-Laguna-XS.2": "glm",
    "unsloth-Apriel-1.5": "apriel",
    "unsloth-mistral-Devstral-Small-2507": "mistral",
    "upstage-Solar-Open-100B": "solar",
}
"""By template, the hand-written format that reads its calls."""

WITHOUT_CALLS = {
    "Kimi-K2-Thinking",  # it appends to a list, which the sandbox forbids
    "deepseek-ai-DeepSeek-R1-Distill-Llama-8B",  # it drops calls
    "google-gemma-2-2b-it",  # it has no tools
    "ibm-granite-granite-3.3-2B-Instruct",  # it drops calls
    "llama-cpp-deepseek-r1",  # it writes a generator of Python as JSON
    "muse-glimmer",  # names of tools are in headers, too
    "tencent-Hy3",  # only the analysis of templates finds its format
}

ONE_CALL = {"meta-llama-Llama-3.1-8B-Instruct", "meta-llama-Llama-3.2-3B-Instruct", "openai-gpt-oss-120b"}
"""They render one call of a message."""

UNQUOTED = {"LFM2.5-8B-A1B"}
"""They put strings between quotation marks without escaping those within."""

OTHER_SPELLING = {
    "Reka-Edge": "it escapes what is not ASCII",
    "inclusionai-ling-3.0-flash": "it writes no line between arguments",
}
"""The grammar of the hand-written format does not allow all that they write."""


def test_every_template_is_here() -> None:
    assert KNOWN_FORMATS.keys() | WITHOUT_CALLS == {path.stem for path in TEMPLATES.glob("*.jinja")}


@pytest.mark.parametrize("name", KNOWN_FORMATS)
def test_template_is_recognised(name: str) -> None:
    form = known_by_template(source_of(name))
    assert form is not None and form.name == KNOWN_FORMATS[name]


def outputs(name: str, form: OutputFormat) -> list[tuple[str, int]]:
    """Return outputs with the places of their calls in CALLS."""
    found = []
    for index, calls in enumerate(CALLS):
        if (len(calls) > 1 and name in ONE_CALL) or (name in UNQUOTED and "'" in str(calls)):
            continue
        fields = (
            {"content": "Hi."},
            {"content": "", "reasoning_content": "Hm.", "thinking": "Hm.", "reasoning": "Hm."},
        )
        found += [
            (output_of(source_of(name), form, calls, **each), index) for each in (fields if calls else fields[:1])
        ]
    return found


@pytest.mark.parametrize("name", KNOWN_FORMATS)
def test_calls_that_a_template_renders_are_read_back_and_in_its_grammar(name: str) -> None:
    source = source_of(name)
    form = known_by_template(source)
    assert form is not None
    special = dict.fromkeys((*marker_texts(form), *special_texts(source)))
    toy = ToyTokenizer(special)
    guidance = tool_guidance(form, TOOLS, "required", parallel=True, opened=False, budget=None, tokenizer=toy)
    assert guidance is not None and guidance.grammar is not None and form.calls is not None
    matcher = ToyMatcher(guidance.grammar.source, toy)
    begin = form.calls.section_open or form.calls.open
    space = begin[: len(begin) - len(begin.lstrip())]
    for text, index in outputs(name, form):
        message = parsed(text, form, TOOLS, toy)
        assert read_calls(message.calls) == list(CALLS[index])
        assert "Hi." not in text or "Hi." in f"{message.content}{message.reasoning}"
        if not CALLS[index] or name in OTHER_SPELLING or (form.prefix and "Hi." in text):
            continue
        start = 0 if form.prefix else calls_begin(text, form) if begin else text.index("{")
        rest = matcher.rest(space + text[start:])
        assert rest is not None and rest.strip() in ("", "assistant", "Hi."), matcher.refused_at(space + text[start:])


def test_templates_that_refuse_or_drop_calls_do() -> None:
    for name in sorted(WITHOUT_CALLS - {"muse-glimmer", "tencent-Hy3", "google-gemma-2-2b-it"}):
        form = known_by_template(source_of(name))
        assert form is not None
        try:
            text = output_of(source_of(name), form, CALLS[2], content="Hi.")
        except FerrumError:
            continue
        assert "Bonn" not in text
