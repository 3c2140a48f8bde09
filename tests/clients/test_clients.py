"""Unchanged clients against real servers: a browser, the Node SDK and Python clients.

`make test-clients` creates an environment for each: `suites/` for Python clients and a browser, `node/` for the Node
SDK. The servers run here; the suites get their addresses in environment variables.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import pytest

import agent_script
import page_script
from engine_fakes import FakeRecipe, MarkedTokenizer
from ferrum.client.async_engine import AsyncEngine
from ferrum.client.llm import LLM
from ferrum.sources.hub import BUILT_IN, resolve_model
from image_models import picture as random_picture
from image_models import random_image, seeing_directory
from scripted_model import scripted_parts
from serve_kit import chat_parts, serving

pytestmark = pytest.mark.clients

HERE = Path(__file__).parent
PYTHON = HERE.parents[1] / ".venv-clients" / "bin" / "python"
TEMPLATE = (
    "{% for m in messages %}# {{ m.role }}: {{ m.content }}\n{% endfor %}"
    "{% if add_generation_prompt %}def answer():\n    {% endif %}"
)
AGENT_TEMPLATE = (HERE.parent / "data" / "templates" / "Qwen-Qwen3-0.6B.jinja").read_text()
SUITES = sorted((HERE / "suites").glob("use_*.py"))


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the built-in model with a chat template."""
    directory = tmp_path_factory.mktemp("model") / "tiny-chat"
    shutil.copytree(resolve_model(BUILT_IN), directory)
    path = directory / "tokenizer_config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "chat_template": TEMPLATE}))
    return directory


@pytest.fixture(scope="module")
def environment(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """Return the suites' environment: addresses of servers, the model, and a folder for screenshots."""
    place = tmp_path_factory.mktemp("clients")
    (place / "keys").write_text("secret\n")

    def engine() -> AsyncEngine:
        return AsyncEngine(str(model), generation_config="none")

    with ExitStack() as stack:
        real = stack.enter_context(serving(engine, served_model_name="tiny"))
        recorded = stack.enter_context(
            serving(
                lambda: AsyncEngine(str(model), generation_config="none", record_dir=str(place / "records")),
                served_model_name="tiny",
            )
        )
        keyed = stack.enter_context(serving(engine, served_model_name="tiny", api_key_file=str(place / "keys")))
        slow = replace(chat_parts(FakeRecipe(seconds_per_step=0.02), max_requests=1), tokenizer=MarkedTokenizer())
        busy = stack.enter_context(serving(slow))
        agent = stack.enter_context(serving(scripted_parts(agent_script.reply, AGENT_TEMPLATE, agent_script.MARKERS)))
        page = stack.enter_context(
            serving(scripted_parts(page_script.reply, AGENT_TEMPLATE, agent_script.MARKERS, seconds_per_step=0.001))
        )
        seeing = stack.enter_context(
            serving(
                lambda: AsyncEngine(str(seeing_directory("smolvlm")), kv_capacity=8192),
                served_model_name=("seer", "claude-seer"),
            )
        )
        image = place / "picture.png"
        random_picture(random_image(61, 37)).save(image)
        yield {
            **os.environ,
            "SEEING_URL": seeing.url,
            "IMAGE": str(image),
            "REAL_URL": real.url,
            "RECORDED_URL": recorded.url,
            "KEYED_URL": keyed.url,
            "BUSY_URL": busy.url,
            "AGENT_URL": agent.url,
            "PAGE_URL": page.url,
            "MODEL": str(model),
            "PLACE": str(place),
            "SHOTS": os.environ.get("SHOTS", str(place)),
        }


def run(command: list[str | Path], environment: dict[str, str], place: Path) -> None:
    done = subprocess.run(command, env=environment, cwd=place, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("suite", SUITES, ids=lambda path: path.stem)
def test_client_suite_passes(suite: Path, environment: dict[str, str]) -> None:
    run([PYTHON, "-m", "pytest", suite], environment, HERE / "suites")


def test_node_sdk_suite_passes(environment: dict[str, str]) -> None:
    suites = sorted(path.name for path in (HERE / "node").glob("*.test.mjs"))
    run(["node", "--test", *suites], environment, HERE / "node")


def test_harness_scores_equal_those_of_llm(environment: dict[str, str], model: Path) -> None:
    """lm-evaluation-harness through /v1/completions, request by request."""
    run([PYTHON, "harness.py"], environment, HERE / "suites")
    scored = json.loads((Path(environment["PLACE"]) / "scores.json").read_text())
    assert len(scored) >= 12
    with LLM(str(model)) as llm:
        assert llm.client.tokenizer is not None
        for each in scored:
            # It moves the context's trailing spaces to the continuation; tokens are not merged across the two.
            context = llm.client.tokenizer.encode(each["context"].rstrip())
            whole = llm.client.tokenizer.encode(each["context"] + each["continuation"])
            [scores] = llm.score([[*context, *whole[len(context) :]]], use_tqdm=False)
            expected = sum(score.logprob for score in scores[len(context) :] if score is not None)
            assert each["logprob"] == pytest.approx(expected, abs=1e-6)
