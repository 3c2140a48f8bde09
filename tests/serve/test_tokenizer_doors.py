"""A tokenizer file with dropout, an unknown class and no special tokens: every door makes the same ids."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

from ferrum.client.async_engine import AsyncEngine
from ferrum.client.llm import LLM
from ferrum.core.params import SamplingParams
from ferrum.sources.hub import BUILT_IN, resolve_model
from ferrum.text.model_files import DirectoryFiles
from ferrum.text.tokenizer import load_tokenizer
from serve_kit import serving

TEXT = 'class Reader:\n    def read_lines(self, path, encoding="utf-8"):\n        return self.lines'
MESSAGES = [{"role": "user", "content": TEXT}]
ONE = SamplingParams(max_tokens=1, temperature=0)


def with_dropout(directory: Path) -> Path:
    """Write a copy of the built-in model whose tokenizer keeps the dropout of training."""
    shutil.copytree(resolve_model(BUILT_IN), directory)
    path = directory / "tokenizer.json"
    content = json.loads(path.read_text())
    content["model"]["dropout"] = 0.3
    path.write_text(json.dumps(content))
    config = {"tokenizer_class": "SomeTokenizer", "chat_template": "{{ bos_token }}{{ messages[0].content }}"}
    (directory / "tokenizer_config.json").write_text(json.dumps(config))
    return directory


def test_a_thousand_requests_make_the_same_ids(tmp_path: Path) -> None:
    directory = with_dropout(tmp_path / "model")
    tokenizer = load_tokenizer(DirectoryFiles(directory))
    plain = load_tokenizer(DirectoryFiles(resolve_model(BUILT_IN)))
    assert tokenizer is not None and plain is not None
    expected = plain.encode(TEXT, add_special_tokens=False)
    seen = {tuple(tokenizer.encode(TEXT, add_special_tokens=False)) for _ in range(600)}
    with LLM(str(directory), generation_config="none") as llm:
        seen |= {tuple(each.prompt_token_ids) for each in llm.generate([TEXT] * 50, ONE, use_tqdm=False)}
        seen |= {tuple(each.prompt_token_ids) for each in llm.chat([MESSAGES] * 50, ONE, use_tqdm=False)}
    with serving(lambda: AsyncEngine(str(directory), generation_config="none")) as server:
        for body in ({"prompt": TEXT, "add_special_tokens": False}, {"messages": MESSAGES}):
            seen |= {tuple(server.post("/tokenize", **body).json()["tokens"]) for _ in range(125)}
        chat = {"messages": MESSAGES, "max_tokens": 1, "return_token_ids": True}
        seen |= {tuple(server.chat(**chat, model=str(directory)).json()["prompt_token_ids"]) for _ in range(50)}
    assert seen == {tuple(expected)}
