"""Images in every dialect: the same picture gives the engine the same request, and what cannot be read a typed 400."""

from __future__ import annotations

import struct
import zlib
from base64 import b64encode
from collections.abc import Iterator, Mapping, Sequence
from io import BytesIO
from typing import Any

import pytest
from PIL import Image

from ferrum.client.async_engine import AsyncEngine
from image_models import CASES, picture, random_image, seeing_directory, tokenizer_of
from serve_kit import Served, serving

WIDE, TALL = random_image(61, 37), random_image(29, 64, seed=4)
GREEDY = {"temperature": 0, "max_tokens": 3}
NAME = "smolvlm"


def encoded(image: Any, format: str = "PNG") -> str:
    file = BytesIO()
    (image if isinstance(image, Image.Image) else picture(image)).save(file, format)
    return b64encode(file.getvalue()).decode()


ONE, TWO = encoded(WIDE), encoded(TALL, "BMP")
TEXTS = ("First", "then", "which?")


@pytest.fixture(scope="module")
def seeing() -> Iterator[Served]:
    """A server of a tiny random model that reads images."""
    make = lambda: AsyncEngine(str(seeing_directory(NAME)), kernels="reference", kv_capacity=2048)  # noqa: E731
    with serving(make, served_model_name=("seer", "fake"), max_held_bytes=64 << 20) as served:
        yield served


def url(data: str, kind: str = "png") -> str:
    return f"data:image/{kind};base64,{data}"


def content(form: Mapping[str, Any], *images: Any) -> list[dict[str, Any]]:
    """Return texts and images in turn, in the form of a dialect."""
    parts: list[dict[str, Any]] = []
    for text, image in zip(TEXTS, (*images, None), strict=True):
        parts.append({"type": form["text"], "text": text})
        parts += [form["image"](image)] if image is not None else []
    return parts


OPENAI = {
    "text": "text",
    "image": lambda data: {"type": "image_url", "image_url": {"url": url(data), "detail": "high"}},
}
RESPONSES = {"text": "input_text", "image": lambda data: {"type": "input_image", "image_url": url(data)}}
SOURCE = {"type": "base64", "media_type": "image/png"}
ANTHROPIC = {"text": "text", "image": lambda data: {"type": "image", "source": {**SOURCE, "data": data}}}


def user(form: Mapping[str, Any], *images: Any) -> list[dict[str, Any]]:
    return [{"role": "user", "content": content(form, *images)}]


def test_each_dialect_gives_the_engine_the_same_request(seeing: Served) -> None:
    seeing.requests.clear()
    client = seeing.openai()
    chat = client.chat.completions.create(model="seer", messages=user(OPENAI, ONE, TWO), **GREEDY)  # type: ignore[call-overload]
    made = client.responses.create(model="seer", input=user(RESPONSES, ONE, TWO), temperature=0, max_output_tokens=16)  # type: ignore[call-overload]
    message = seeing.post("/v1/messages", model="seer", messages=user(ANTHROPIC, ONE, TWO), **GREEDY).json()
    first, *others = seeing.requests
    tokenizer = tokenizer_of(CASES[NAME])
    processor = seeing.service.model().client.input_processor.image_processor
    wanted, places = processor.expand(tokenizer.encode(first_text(seeing)).ids, (WIDE_DECODED, TALL_DECODED))
    assert first.prompt == wanted and first.image_places == places
    assert [image.digest for image in first.images] == [WIDE_DECODED.digest, TALL_DECODED.digest]
    for other in others:
        assert (other.prompt, other.images, other.image_places) == (first.prompt, first.images, first.image_places)
    assert len(others) == 2
    count = len(first.prompt)
    read = message["usage"]["input_tokens"] + message["usage"]["cache_read_input_tokens"]
    assert [chat.usage.prompt_tokens, made.usage.input_tokens, read] == [count] * 3
    assert made.output_text.startswith(chat.choices[0].message.content)
    tokens = seeing.post("/tokenize", messages=user(OPENAI, ONE, TWO)).json()
    assert tuple(tokens["tokens"]) == first.prompt
    counted = seeing.post("/v1/messages/count_tokens", model="seer", messages=user(ANTHROPIC, ONE, TWO)).json()
    assert counted == {"input_tokens": count}
    assert seeing.post("/v1/responses/input_tokens", input=user(RESPONSES, ONE, TWO)).json()["input_tokens"] == count


def first_text(seeing: Served) -> str:
    """Return the text of the prompt as the template of the model writes it."""
    image = CASES[NAME].tokens[0]
    shown = [{"type": "text", "text": "First"}, {"type": "text", "text": image}, {"type": "text", "text": "then"}]
    shown += [{"type": "text", "text": image}, {"type": "text", "text": "which?"}]
    template = seeing.service.model().client.chat_template
    assert template is not None
    return template.render([{"role": "user", "content": shown}])


def decoded_of(data: str) -> Any:
    from base64 import b64decode

    from ferrum.images.decoding import decode_image

    return decode_image(b64decode(data))


WIDE_DECODED, TALL_DECODED = decoded_of(ONE), decoded_of(TWO)


def test_ollama_puts_images_before_the_text(seeing: Served) -> None:
    seeing.requests.clear()
    options = {"temperature": 0, "num_predict": 3}
    message = {"role": "user", "content": "which?", "images": [ONE, TWO]}
    chat = seeing.post("/api/chat", model="seer", messages=[message], stream=False, options=options)
    made = seeing.post("/api/generate", model="seer", prompt="which?", images=[ONE, TWO], stream=False, options=options)
    parts = [OPENAI["image"](ONE), OPENAI["image"](TWO), {"type": "text", "text": "which?"}]  # type: ignore[operator]
    same = seeing.chat(model="seer", messages=[{"role": "user", "content": parts}], **GREEDY)
    assert {each.status_code for each in (chat, made, same)} == {200}, chat.text
    assert len({(each.prompt, each.images) for each in seeing.requests}) == 1
    assert chat.json()["message"]["content"] == made.json()["response"]
    assert "vision" in seeing.post("/api/show", model="seer").json()["capabilities"]


def test_images_in_results_of_tools_reach_the_engine(seeing: Served) -> None:
    use = {"type": "tool_use", "id": "a", "name": "look", "input": {}}
    result = {"type": "tool_result", "tool_use_id": "a", "content": content(ANTHROPIC, ONE, TWO)}
    messages = [{"role": "user", "content": "Look"}, {"role": "assistant", "content": [use]}]
    seeing.requests.clear()
    reply = seeing.post(
        "/v1/messages", model="seer", messages=[*messages, {"role": "user", "content": [result]}], **GREEDY
    )
    assert reply.status_code == 200, reply.text
    called = {"type": "function_call", "call_id": "a", "name": "look", "arguments": "{}"}
    output = {"type": "function_call_output", "call_id": "a", "output": content(RESPONSES, ONE, TWO)}
    items = [{"role": "user", "content": "Look"}, called, output]
    assert seeing.post("/v1/responses", model="seer", input=items, max_output_tokens=16).status_code == 200
    assert [len(each.images) for each in seeing.requests] == [2, 2]
    assert "x-ferrum-replaced" not in reply.headers


def test_lists_of_models_name_vision(seeing: Served, server: Served) -> None:
    listed = seeing.http.get("/v1/models").json()
    assert listed["data"][0]["capabilities"] == ["completion", "vision"]
    assert listed["models"][0]["input_modalities"] == ["text", "image"]
    info = seeing.http.get("/v1/models/seer", headers={"anthropic-version": "2023-06-01"}).json()
    assert info["capabilities"]["image_input"] == {"supported": True}
    config, without = (each.http.get("/v1/config").json()["model"] for each in (seeing, server))
    assert config["image_limits"]["images"] == 32 and "image/webp" in config["image_limits"]["types"]
    assert config["images"] and not without["images"] and without["image_limits"] is None
    plain = server.http.get("/v1/models").json()
    assert plain["data"][0]["capabilities"] == ["completion"] and plain["models"][0]["input_modalities"] == ["text"]


def png(width: int, height: int) -> str:
    """Return a PNG whose header says this size, with the rows of a tiny one."""
    header = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    parts = ((b"IHDR", header), (b"IDAT", zlib.compress(bytes(9))), (b"IEND", b""))
    whole = (
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data)) for kind, data in parts
    )
    return b64encode(b"\x89PNG\r\n\x1a\n" + b"".join(whole)).decode()


REFUSED: Mapping[str, tuple[str, str]] = {
    "remote": ("https://example.com/cat.png", "nothing is fetched; send the image itself"),
    "file": ("file:///etc/passwd", "nothing is fetched"),
    "path": ("/etc/passwd", "nothing is fetched"),
    "no base64": (url("no base64!"), "is not base64"),
    "cut": (url(ONE[:120]), "cannot be decoded"),
    "huge": (url(png(100_000, 100_000)), "100000 x 100000 pixels are more than 33177600"),
    "no rows": (url(png(7680, 4320)), "damaged or cut off"),
    "text": (url(b64encode(b"<svg/>").decode(), "svg+xml"), "is no PNG, JPEG, WebP, GIF or BMP file"),
}


@pytest.mark.parametrize("sent, reason", REFUSED.values(), ids=REFUSED)
def test_what_cannot_be_read_is_refused_by_its_field(seeing: Served, sent: str, reason: str) -> None:
    part = {"type": "image_url", "image_url": {"url": sent}}
    said = [{"role": "system", "content": "s"}, {"role": "user", "content": [{"type": "text", "text": "a"}, part]}]
    for route in ("/v1/chat/completions", "/tokenize"):
        error = refused(seeing.post(route, messages=said))
        assert error["param"] == "messages[1].content[1].image_url.url" and reason in error["message"]
    error = refused(
        seeing.post("/v1/responses", input=[{"role": "user", "content": [{"type": "input_image", "image_url": sent}]}])
    )
    assert error["param"] == "input[0].content[0].image_url" and reason in error["message"]


def refused(response: Any) -> dict[str, Any]:
    assert response.status_code == 400, response.text
    error: dict[str, Any] = response.json()["error"]
    return error


def test_other_dialects_name_the_field_too(seeing: Served) -> None:
    block = ANTHROPIC["image"](ONE[:120])  # type: ignore[operator]
    fetched = {"type": "image", "source": {"type": "url", "url": "https://example.com/cat.png"}}
    for each, field in ((block, "source.data"), (fetched, "source.type")):
        body = {"system": "s", "messages": [{"role": "user", "content": [{"type": "text", "text": "a"}, each]}]}
        error = refused(seeing.post("/v1/messages", **body, max_tokens=3))
        assert f"messages[0].content[1].{field}: " in error["message"]
    message = {"role": "user", "content": "a", "images": [ONE, ONE[:120]]}
    reply = seeing.post("/api/chat", model="seer", messages=[message])
    assert reply.status_code == 400 and "messages[0].images[1]: cannot be decoded" in reply.json()["error"]


def test_what_a_file_is_counts_and_not_its_media_type(seeing: Served) -> None:
    seeing.requests.clear()
    wrong = {"type": "image", "source": {**SOURCE, "media_type": "image/jpeg", "data": ONE}}
    shown = {"type": "image_url", "image_url": {"url": url(ONE, "webp")}}
    for route, part in (("/v1/messages", wrong), ("/v1/chat/completions", shown)):
        reply = seeing.post(route, model="seer", messages=[{"role": "user", "content": [part]}], **GREEDY)
        assert reply.status_code == 200, reply.text
    assert [each.images[0].digest for each in seeing.requests] == [WIDE_DECODED.digest] * 2
    for sent in (f"data:text/plain;base64,{ONE}", url(ONE[:-1]), url("")):
        part = {"type": "image_url", "image_url": {"url": sent}}
        refused(seeing.chat(messages=[{"role": "user", "content": [part]}]))


def test_a_request_has_limits_of_images_and_pixels(seeing: Served) -> None:
    many = [{"role": "user", "content": [OPENAI["image"](ONE)] * 33}]  # type: ignore[operator]
    error = refused(seeing.chat(messages=many))
    assert error["param"] == "messages[0].content[32].image_url.url" and "32 images" in error["message"]
    large = encoded(Image.new("L", (7680, 4320)))
    reply = seeing.chat(messages=[{"role": "user", "content": [OPENAI["image"](large)]}])  # type: ignore[operator]
    assert reply.status_code == 429 and "retry-after" in reply.headers, "its 99 MB are counted as held"
    assert seeing.chat(model="seer", messages=[{"role": "user", "content": "a"}]).status_code == 200


def test_the_context_counts_the_tokens_of_images(seeing: Served) -> None:
    shown: Sequence[Any] = [OPENAI["image"](ONE)] * 32  # type: ignore[operator]
    error = refused(seeing.chat(model="seer", messages=[{"role": "user", "content": shown}]))
    assert error["code"] == "context_length_exceeded" and error["param"] == "messages"


def test_a_text_placeholder_is_no_image(seeing: Served) -> None:
    said = [{"type": "text", "text": CASES[NAME].tokens[0]}, OPENAI["image"](ONE)]  # type: ignore[operator]
    error = refused(seeing.chat(messages=[{"role": "user", "content": said}]))
    assert error["param"] == "messages" and "2 placeholders" in error["message"]


def test_a_model_that_reads_no_images_says_so_by_name(server: Served) -> None:
    reason = "the model 'fake' does not read images"
    assert reason in refused(server.chat(messages=user(OPENAI, ONE, TWO)))["message"]
    assert reason in refused(server.post("/v1/messages", messages=user(ANTHROPIC, ONE, TWO), max_tokens=3))["message"]
    assert reason in refused(server.post("/v1/responses", input=user(RESPONSES, ONE, TWO)))["message"]
    message = {"role": "user", "content": "a", "images": [ONE]}
    assert reason in server.post("/api/chat", messages=[message]).json()["error"]
    assert "vision" not in server.post("/api/show").json()["capabilities"]


def test_images_by_path_are_never_read_over_http(seeing: Served) -> None:
    for part in ({"type": "image", "image": "/etc/passwd"}, {"type": "image"}):
        error = refused(seeing.chat(messages=[{"role": "user", "content": [part]}]))
        assert error["param"] == "messages[0].content[0].type"
