"""Records of requests with images: the pixels are next to the records, private, counted, and needed to replay."""

from __future__ import annotations

from io import BytesIO
from pathlib import Path

import pytest
from PIL import Image

from ferrum.client.llm import LLM
from ferrum.client.offline_batch import stream
from ferrum.client.records.image_store import recorded_images
from ferrum.client.records.record_files import RecordFiles
from ferrum.client.records.replayer import Replay
from ferrum.client.records.resumption import Resumption
from ferrum.core.errors import RecordDamaged, RecordMismatch, RequestError
from ferrum.core.params import SamplingParams
from ferrum.core.types import Made
from image_models import picture, random_image, seeing_directory

PARAMS = SamplingParams(temperature=0.7, seed=4, max_tokens=4, ignore_eos=True)
SHOWN = picture(random_image(61, 37))


def encoded() -> bytes:
    file = BytesIO()
    SHOWN.save(file, "PNG")
    return file.getvalue()


def open_llm(name: str = "smolvlm", **options: object) -> LLM:
    return LLM(str(seeing_directory(name)), kernels="reference", kv_capacity=1024, **options)


@pytest.mark.parametrize("name", ["smolvlm", "qwen3-vl"])
def test_records_hold_images_and_replays_need_them(tmp_path: Path, name: str) -> None:
    directory, file = tmp_path / "records", tmp_path / "picture.png"
    file.write_bytes(encoded())
    with open_llm(name, record_dir=str(directory)) as llm:
        outputs = [
            llm.chat([{"role": "user", "content": [{"type": "image", "image": given}, {"type": "text", "text": "a"}]}],
                     PARAMS, use_tqdm=False)[0]
            for given in (SHOWN, encoded(), file, str(file))
        ]  # fmt: skip
        assert len({tuple(each.outputs[0].token_ids) for each in outputs}) == 1
        assert llm.client.recorder is not None
        record = llm.client.recorder.find("", outputs[0].request_id)
        assert record.request.image_places and len(record.images) == 1
        (stored,) = directory.glob("*.png")
        assert stored.name == f"{record.images[0]}.png" and stored.stat().st_mode & 0o777 == 0o600
        again = Replay(record, 0, recorded_images(directory, record.images))
        for delta in stream(llm.client.router, llm.client.tokenizer, again.request):
            again.push(delta)
        assert again.differences() == []
        with pytest.raises(RequestError, match="send the request again"):
            Resumption.of(record.request, Made())
    with Image.open(stored) as other:
        Image.new("RGB", other.size).save(stored)
    with pytest.raises(RecordDamaged, match="other pixels"):
        recorded_images(directory, record.images)
    stored.unlink()
    with pytest.raises(RecordMismatch, match="not there any more"):
        recorded_images(directory, record.images)


def test_images_count_as_records_do(tmp_path: Path) -> None:
    files = RecordFiles(tmp_path, 1000)
    files.keep("a.png", lambda: bytes(600))
    files.keep("a.png", lambda: pytest.fail("it is there"))
    files.keep("b.png", lambda: bytes(600))
    assert RecordFiles(tmp_path, 1000)._bytes == files._bytes == 1200
    files._shrink()
    assert [path.name for path in tmp_path.iterdir()] == ["b.png"]
