"""The chat templates of 50 published models against transformers, and the texts that transformers cannot render."""

# ruff: noqa: RUF001 - DeepSeek's tokens contain fullwidth bars

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from jinja2 import TemplateError
from transformers import PreTrainedTokenizerFast

from chat_samples import TOOLS
from ferrum.core.errors import CheckpointError, RequestError
from ferrum.text.chat_template import ChatTemplate
from template_conversations import COMMON, WITHOUT_CONTENT
from text_samples import BOS, EOS, LAYOUTS, write

SOURCES = {path.stem: path.read_text() for path in (Path(__file__).parents[1] / "data" / "templates").glob("*.jinja")}
CONVERSATIONS = COMMON | WITHOUT_CONTENT
DATE = {"date_string": "1 Jan 2030"}

QWEN_CALL = '<tool_call>\n{"name": "weather", "arguments": {"city": "%s"}}\n</tool_call>'
R1_CALL = '<｜tool▁call▁begin｜>function<｜tool▁sep｜>weather\n```json\n{"city": "%s"}\n```<｜tool▁call▁end｜>'
R1_CALLS = "<｜Assistant｜><｜tool▁calls▁begin｜>" + R1_CALL
R1_CALLS_END = "<｜tool▁calls▁end｜><｜end▁of▁sentence｜>"
R1_RAIN = "<｜tool▁outputs▁begin｜><｜tool▁output▁begin｜>rain<｜tool▁output▁end｜>"
R1_SNOW = "\n<｜tool▁output▁begin｜>snow<｜tool▁output▁end｜><｜tool▁outputs▁end｜>"


def silent(end_of_turn: str, assistant: str, user: str, think: str = "") -> str:
    """Return two questions with an empty answer between them."""
    return f"Weather?{end_of_turn}{assistant}{end_of_turn}{user}Weather?{end_of_turn}{assistant}{think}"


CHATML = silent("<|im_end|>\n", "<|im_start|>assistant\n", "<|im_start|>user\n")
GRANITE = silent(
    "<|end_of_text|>\n", "<|start_of_role|>assistant<|end_of_role|>", "<|start_of_role|>user<|end_of_role|>"
)
SILENT = {
    "MiMo-VL": CHATML,
    "NousResearch-Hermes-3-Llama-3.1-8B-tool_use": CHATML,
    "Qwen-QwQ-32B": CHATML + "<think>\n</think>",
    "Qwen-Qwen2.5-7B-Instruct": CHATML,
    "Qwen-Qwen3-0.6B": CHATML,
    "Qwen3-Coder": CHATML,
    "deepseek-ai-DeepSeek-R1-Distill-Llama-8B": (
        "Weather?<｜Assistant｜><｜end▁of▁sentence｜><｜User｜>Weather?<｜Assistant｜><think>\n"
    ),
    "deepseek-ai-DeepSeek-R1-Distill-Qwen-32B": (
        "Weather?<｜Assistant｜><｜end▁of▁sentence｜><｜User｜>Weather?<｜Assistant｜><think>\n</think>"
    ),
    "deepseek-ai-DeepSeek-V3.1": (
        "Weather?<｜Assistant｜><think></think><｜end▁of▁sentence｜><｜User｜>Weather?<｜Assistant｜><think></think>"
    ),
    "ibm-granite-granite-3.3-2B-Instruct": GRANITE,
    "mistralai-Mistral-Nemo-Instruct-2407": (
        f"Weather?[/INST]</s>[AVAILABLE_TOOLS]{json.dumps(TOOLS, ensure_ascii=False)}[/AVAILABLE_TOOLS]"
        "[INST]Weather?[/INST]"
    ),
    "openai-gpt-oss-120b": (
        "Weather?<|end|><|start|>assistant<|channel|>final<|message|><|end|>"
        "<|start|>user<|message|>Weather?<|end|><|start|>assistant"
    ),
    "unsloth-mistral-Devstral-Small-2507": "Weather?[/INST]</s>[INST]Weather?[/INST]",
    "upstage-Solar-Open-100B": (
        "Weather?<|end|><|begin|>assistant<|content|><|end|><|begin|>user<|content|>Weather?<|end|><|begin|>assistant"
    ),
}
"""From the first question on: an assistant's message without content and calls is an empty text."""


def chatml_calls(think: str = "") -> tuple[str, str, str]:
    begin, end = "Weather?<|im_end|>\n<|im_start|>assistant\n", f"<|im_end|>\n<|im_start|>assistant\n{think}"
    rain = f"{begin}{QWEN_CALL % 'Bonn'}<|im_end|>\n<|im_start|>user\n<tool_response>\nrain\n</tool_response>"
    both = rain.replace(
        "<|im_end|>\n<|im_start|>user\n<tool", f"\n{QWEN_CALL % 'Oslo'}<|im_end|>\n<|im_start|>user\n<tool"
    )
    return (
        f"{rain}{end}",
        f"{rain}<|im_end|>\n<|im_start|>assistant\nDry.<|im_end|>\n<|im_start|>user\nWeather?{end}",
        f"{both}\n<tool_response>\nsnow\n</tool_response>{end}",
    )


def r1_calls(end_of_one: str, think: str) -> tuple[str, str, str]:
    one = f"Weather?{R1_CALLS % 'Bonn'}{end_of_one}{R1_RAIN}<｜tool▁outputs▁end｜>"
    both = f"Weather?{R1_CALLS % 'Bonn'}\n{R1_CALL % 'Oslo'}{R1_CALLS_END}{R1_RAIN}{R1_SNOW}"
    return one, f"{one}Dry.<｜end▁of▁sentence｜><｜User｜>Weather?<｜Assistant｜>{think}", both


def granite_calls() -> tuple[str, str, str]:
    """Return texts without calls, which this template does not write."""
    role = "<|end_of_text|>\n<|start_of_role|>{}<|end_of_role|>".format
    one = f"Weather?{role('assistant')}{role('tool')}rain"
    return (
        f"{one}{role('assistant')}",
        f"{one}{role('assistant')}Dry.{role('user')}Weather?{role('assistant')}",
        f"{one}{role('tool')}snow{role('assistant')}",
    )


DEVSTRAL_CALL = '[TOOL_CALLS]weather[ARGS]{"city": "%s"}'
DEVSTRAL_RAIN = "</s>[TOOL_RESULTS]rain[/TOOL_RESULTS]"
DEVSTRAL = f"Weather?[/INST]{DEVSTRAL_CALL % 'Bonn'}"
CALLS = {
    "Qwen-QwQ-32B": chatml_calls("<think>\n</think>"),
    "Qwen-Qwen3-0.6B": chatml_calls(),
    "deepseek-ai-DeepSeek-R1-Distill-Llama-8B": r1_calls("", "<think>\n"),
    "deepseek-ai-DeepSeek-R1-Distill-Qwen-32B": r1_calls(R1_CALLS_END, "<think>\n</think>"),
    "ibm-granite-granite-3.3-2B-Instruct": granite_calls(),
    "unsloth-mistral-Devstral-Small-2507": (
        f"{DEVSTRAL}{DEVSTRAL_RAIN}",
        f"{DEVSTRAL}{DEVSTRAL_RAIN}Dry.</s>[INST]Weather?[/INST]",
        f"{DEVSTRAL}{DEVSTRAL_CALL % 'Oslo'}{DEVSTRAL_RAIN}[TOOL_RESULTS]snow[/TOOL_RESULTS]",
    ),
}
"""From the first question on: one call; one in an earlier turn; two."""


def by_hand(name: str, conversation: str) -> str | None:
    """Return the text of a conversation that transformers does not render, or without its call, for want of content."""
    if conversation in ("null answer", "no answer"):
        return SILENT.get(name)
    texts = dict(zip(("call", "call in an earlier turn", "calls"), CALLS.get(name, ()), strict=False))
    texts["call and null"] = texts.get("call", "")
    texts["call and empty text"] = texts.get("call in an earlier turn", "")
    return texts.get(conversation) or None


@pytest.fixture(scope="module")
def theirs(tmp_path_factory: pytest.TempPathFactory) -> PreTrainedTokenizerFast:
    directory = write(tmp_path_factory.mktemp("templates"), LAYOUTS["byte_level"]())
    return PreTrainedTokenizerFast.from_pretrained(str(directory))


def their_text(theirs: PreTrainedTokenizerFast, source: str, messages: list[dict[str, Any]]) -> str | None:
    """Return the text of transformers, None if it fails; a developer's message is a system message to both."""
    given = [each | {"role": each["role"].replace("developer", "system")} for each in messages]
    try:
        text: str = theirs.apply_chat_template(
            given, chat_template=source, tools=TOOLS, tokenize=False, add_generation_prompt=True, **DATE
        )
    except (TypeError, ValueError, TemplateError):
        return None
    return text


@pytest.mark.parametrize("name", sorted(SOURCES))
def test_templates_of_models(theirs: PreTrainedTokenizerFast, name: str) -> None:
    template = ChatTemplate(SOURCES[name], {"bos_token": BOS, "eos_token": EOS}, origin=name)
    for conversation, messages in CONVERSATIONS.items():
        expected = their_text(theirs, SOURCES[name], messages)
        written = None if conversation in COMMON else by_hand(name, conversation)
        if expected is None and written is None:
            with pytest.raises((RequestError, CheckpointError)):
                template.render(template.prepare(messages, moving=False), tools=TOOLS, template_kwargs=DATE)
            continue
        text = template.render(template.prepare(messages, moving=False), tools=TOOLS, template_kwargs=DATE)
        if written is not None:
            assert text[text.index("Weather?") :] == written, conversation
        else:
            assert text == expected, conversation


def test_all_templates_and_conversations_are_there() -> None:
    assert (len(SOURCES), len(CONVERSATIONS)) == (50, 16)
    assert SILENT.keys() | CALLS.keys() <= SOURCES.keys()


def test_arguments_stay_the_text_that_the_client_sent() -> None:
    sent = '{"city":"Bonn",  "days":1.0}'
    for name in ("deepseek-ai-DeepSeek-R1-Distill-Llama-8B", "meetkai-functionary-medium-v3.2"):
        template = ChatTemplate(SOURCES[name], {"bos_token": BOS, "eos_token": EOS})
        called = {"id": "call00001", "type": "function", "function": {"name": "weather", "arguments": sent}}
        messages = [*COMMON["question"], {"role": "assistant", "tool_calls": [called]}]
        assert sent in template.render(template.prepare(messages), tools=TOOLS)
