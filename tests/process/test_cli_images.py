"""`--image` and `/image`: what the model sees is what `LLM.chat` sees, and bad files are named at once."""

from __future__ import annotations

import io
import json
from base64 import b64decode
from collections.abc import Callable
from pathlib import Path

import pytest

from command_kit import Outcome
from ferrum.client.llm import LLM
from ferrum.core.params import SamplingParams
from image_models import picture, random_image, seeing_directory

OPTIONS = ("--kernels", "reference", "--kv-capacity", "1024", "--temperature", "0", "--max-tokens", "5", "--ignore-eos")


@pytest.fixture
def files(tmp_path: Path) -> dict[str, Path]:
    """Return two images, a text with the name of one, and no file."""
    found = {name: tmp_path / f"{name}.png" for name in ("one", "two", "text", "missing")}
    picture(random_image(61, 37)).save(found["one"])
    picture(random_image(29, 64, seed=4)).save(found["two"])
    found["text"].write_text("text")
    return found


def answered(*turns: tuple[tuple[Path, ...], str]) -> list[str]:
    """Return the answers of `LLM.chat` to a conversation."""
    said, answers = list[dict[str, object]](), list[str]()
    params = SamplingParams(temperature=0.0, max_tokens=5, ignore_eos=True)
    with LLM(str(seeing_directory("smolvlm")), kernels="reference", kv_capacity=1024) as llm:
        for images, text in turns:
            shown = [{"type": "image", "image": path.read_bytes()} for path in images]
            said.append({"role": "user", "content": [*shown, {"type": "text", "text": text}]})
            answers.append(llm.chat(said, params, use_tqdm=False)[0].outputs[0].text or "")
            said.append({"role": "assistant", "content": answers[-1]})
    return answers


def test_run_answers_about_its_images(ferrum: Callable[..., Outcome], files: dict[str, Path]) -> None:
    model, images = str(seeing_directory("smolvlm")), ("--image", str(files["one"]), "--image", str(files["two"]))
    code, out, _ = ferrum("run", model, "what?", *images, *OPTIONS)
    assert code == 0 and out.rstrip("\n") == answered(((files["one"], files["two"]), "what?"))[0].rstrip("\n")


def test_run_names_files_that_are_no_images(ferrum: Callable[..., Outcome], files: dict[str, Path]) -> None:
    model = str(seeing_directory("smolvlm"))
    for name, reason in (("text", "is no PNG, JPEG, WebP, GIF or BMP file"), ("missing", "cannot read it: No such")):
        code, _, err = ferrum("run", model, "what?", "--image", str(files[name]), *OPTIONS)
        assert code == 2 and f"{files[name]}: {reason}" in err
    code, _, err = ferrum("run", "what is it?", "--image", str(files["one"]))
    assert code == 2 and "does not read images" in err and str(files["one"]) in err
    code, _, err = ferrum("run", model, "--image", str(files["one"]))
    assert code == 2 and "PROMPT: is required with --image" in err


def test_chat_shows_images_with_the_next_message(
    ferrum: Callable[..., Outcome], files: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file that changes afterwards does not change the conversation."""
    saved, model = tmp_path / "saved.json", str(seeing_directory("smolvlm"))
    expected = answered(((files["one"],), "first"), ((files["two"],), "second"), ((), "third"))
    lines = [
        *("first", f"/image {files['text']}", f"/image {files['missing']}", "/image", f"/image {files['two']} "),
        *("second", f"/save {saved}", "third", "/clear"),
    ]

    class Input(io.StringIO):
        def readline(self, *sizes: int) -> str:
            line = super().readline(*sizes)
            if line.startswith("second"):
                files["two"].write_text("another file by now")
            return line

    two = files["two"].read_bytes()
    monkeypatch.setattr("sys.stdin", Input("\n".join(lines)))
    code, out, err = ferrum("chat", model, "--image", str(files["one"]), *OPTIONS)
    assert code == 0 and out == "".join(f"{answer}\n" for answer in expected)
    assert f"({files['text']}: is no PNG" in err and f"({files['missing']}: cannot read it" in err
    assert "/image requires a FILE" in err and err.count("the next message shows") == 1
    assert "unknown command" not in err and files["two"].read_text() == "another file by now"
    messages = json.loads(saved.read_text())
    url = messages[2]["content"][0]["image_url"]["url"]
    assert url.startswith("data:image/png;base64,") and b64decode(url.partition(",")[2]) == two
