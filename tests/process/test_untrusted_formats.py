"""Templates from requests are analysed in one process with limits."""

from __future__ import annotations

import subprocess
import time
from typing import Any

import pytest

from ferrum.formats.find import find_format, prompt_reasoning
from ferrum.text.untrusted_template import UntrustedTemplate
from real_templates import SPECIAL, TEMPLATES


@pytest.fixture
def processes(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Collect the processes that are started."""
    started: list[Any] = []
    run = subprocess.run

    def counted(*arguments: Any, **options: Any) -> Any:
        started.append(arguments)
        return run(*arguments, **options)

    monkeypatch.setattr("ferrum.text.untrusted_template.subprocess.run", counted)
    return started


@pytest.mark.parametrize("name", ["Qwen-Qwen3-0.6B", "openai-gpt-oss-120b", "google-gemma-2-2b-it"])
def test_template_of_a_request_has_the_format_of_the_models_own(name: str, processes: list[Any]) -> None:
    source = TEMPLATES[name].sources["default"] + "{# of a request #}"
    untrusted = UntrustedTemplate(source, SPECIAL)
    found = find_format(untrusted, None, None)
    assert found == find_format(TEMPLATES[name], None, None)
    assert prompt_reasoning(untrusted) == prompt_reasoning(TEMPLATES[name])
    assert find_format(UntrustedTemplate(source, SPECIAL), None, None) == found and len(processes) == 1


def test_probes_of_a_history_share_processes(processes: list[Any]) -> None:
    call = {"id": "call00000", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    messages = [{"role": "user", "content": "?"}, {"role": "assistant", "content": "", "tool_calls": [call]}]
    template = UntrustedTemplate(TEMPLATES["Qwen-Qwen3-0.6B"].sources["default"])
    template.render(template.prepare(messages))
    assert len(processes) <= 4


@pytest.mark.parametrize(
    "source",
    [
        "{{ 'a'.ljust(10**10) }}",
        "{% set n = namespace(x='a') %}{% for i in range(50) %}{% set n.x = n.x ~ n.x %}{% endfor %}",
        "{% for a in range(99999) %}{% for b in range(99999) %}{{ b }}{% endfor %}{% endfor %}",
        "{{ messages }}" * 80_000,
    ],
    ids=["width", "doubling", "loops", "length"],
)
def test_hostile_template_of_a_request_has_no_format(source: str) -> None:
    start = time.monotonic()
    found = find_format(UntrustedTemplate(source), None, None)
    assert found.format is None and found.reason and time.monotonic() - start < 8
