"""`ferrum chat`: the conversation, its commands, and its limits."""

from __future__ import annotations

import io
import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from command_kit import Outcome, answer
from engine_fakes import CONTEXT, LetterTokenizer, parts
from ferrum.client.request_output import Delta
from ferrum.core.errors import RequestError


def _interrupt(deltas: Iterator[Delta], _: object) -> None:
    next(deltas)
    raise KeyboardInterrupt


@pytest.mark.contract("0.ferrum")
def test_chat_keeps_the_conversation(
    ferrum: Callable[..., Outcome], built: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("hi\n\nyo\n/quit\nnever\n"))
    code, out, _ = ferrum("chat", "m", "--system", "be", "--max-tokens", "5")
    first = answer("[system]be[user]hi[bot]", 5)
    second = answer(f"[system]be[user]hi[assistant]{first}[user]yo[bot]", 5)
    assert code == 0 and out == f"{first}\n{second}\n", "an empty line is skipped"


def test_a_template_of_a_file_replaces_the_models_own(
    ferrum: Callable[..., Outcome], built: list[Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """GGUF files of base models have none."""
    path = tmp_path / "chat.jinja"
    path.write_text("{{ messages[0]['content'] }}!")
    monkeypatch.setattr("sys.stdin", io.StringIO("hi\n"))
    code, out, _ = ferrum("chat", "m", "--chat-template", str(path), "--max-tokens", "5")
    assert (code, out) == (0, answer("hi!", 5) + "\n")
    path.write_text("{% if %}")
    code, _, err = ferrum("chat", "m", "--chat-template", str(path))
    assert code == 2 and "--chat-template" in err and str(path) in err


def test_a_conversation_beyond_the_context_continues(
    ferrum: Callable[..., Outcome], built: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    long, longer = "a" * (CONTEXT // 4), "b" * (CONTEXT // 3)
    lines = (long, longer, "c" * (CONTEXT // 4), "d" * CONTEXT, "e")
    monkeypatch.setattr("sys.stdin", io.StringIO("\n".join(lines)))
    code, out, err = ferrum("chat", "m", "--system", "be", "--max-tokens", "5")
    first = answer(f"[system]be[user]{long}[bot]", 5)
    second = answer(f"[system]be[user]{long}[assistant]{first}[user]{longer}[bot]", 5)
    third = answer(f"[system]be[user]{lines[2]}[bot]", 5)
    last = answer(f"[system]be[user]{lines[2]}[assistant]{third}[user]e[bot]", 5)
    assert code == 0 and out == f"{first}\n{second}\n{third}\n{last}\n"
    assert err.count("oldest messages were dropped") == 1 and err.count("maximum context length is") == 1


CHAT_COMMANDS = """\
hi
/system be brief
yo \\
ya
/save {path}
/reset
\"""
two

lines
\"""
/nonsense
/save
/help
"""


def test_chat_has_commands_and_messages_of_several_lines(
    ferrum: Callable[..., Outcome], built: list[Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    path = tmp_path / "chat.json"
    monkeypatch.setattr("sys.stdin", io.StringIO(CHAT_COMMANDS.format(path=path)))
    code, out, err = ferrum("chat", "m", "--max-tokens", "5")
    first = answer("[user]hi[bot]", 5)
    second = answer(f"[system]be brief[user]hi[assistant]{first}[user]yo \nya[bot]", 5)
    third = answer("[system]be brief[user]two\n\nlines[bot]", 5)
    assert code == 0 and [text in out for text in (first, second, third)] == [True] * 3
    saved = [(each["role"], each["content"]) for each in json.loads(path.read_text())]
    assert saved[0] == ("system", "be brief") and saved[-2:] == [("user", "yo \nya"), ("assistant", second)]
    assert "unknown command /nonsense" in err and "/save requires a FILE" in err and "/system TEXT" in err


def test_ctrl_c_stops_an_answer_and_not_the_conversation(
    ferrum: Callable[..., Outcome], built: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ferrum.cli.chat.echo_text", _interrupt)
    monkeypatch.setattr("sys.stdin", io.StringIO("hi\nyo\n"))
    code, _, err = ferrum("chat", "m")
    assert code == 0 and err.count("(stopped") == 2


def test_an_invalid_message_does_not_end_the_conversation(
    ferrum: Callable[..., Outcome], built: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = LetterTokenizer.encode
    refusal = RequestError("holds a lone surrogate", param="prompt")

    def encode(self: LetterTokenizer, text: str, **options: Any) -> list[int]:
        if "\udcff" in text:
            raise refusal
        return whole(self, text, **options)

    monkeypatch.setattr(LetterTokenizer, "encode", encode)
    monkeypatch.setattr("sys.stdin", io.StringIO("\udcff\nhi\n"))
    code, out, err = ferrum("chat", "m", "--max-tokens", "5")
    assert code == 0 and out == f"{answer('[user]hi[bot]', 5)}\n" and f"({refusal})" in err


def test_chat_without_a_template_names_ferrum_run(
    ferrum: Callable[..., Outcome], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ferrum.client.client_base.build", lambda model, **options: parts())
    code, out, err = ferrum("chat", "m")
    assert (code, out) == (2, "") and err.startswith("ferrum: MODEL 'm' ") and "`ferrum run m PROMPT`" in err


def test_answers_keep_their_length_in_a_long_conversation(
    ferrum: Callable[..., Outcome], built: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("".join(f"line {number}\n" for number in range(40))))
    code, _, err = ferrum("chat", "m", "--ignore-eos", "--max-tokens", str(CONTEXT // 5))
    tokens = [int(count) for count in re.findall(r"(\d+) tokens,", err)]
    assert code == 0 and tokens == [CONTEXT // 5] * 40
