"""`bench/quality_peers.py` without llama.cpp: weights off a file's grid, and the exchange with the other process."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
from gguf import GGMLQuantizationType, GGUFReader, GGUFWriter
from gguf.quants import dequantize, quantize

import quality_peers
from quality_peers import LlamaCpp, write_off_grid

ANSWERS = """
import json, sys
import numpy as np

assert sys.argv[1:] == ["logits", "model.gguf"]
for line in sys.stdin:
    rows = np.array([[token, -token, 0.5] for token in json.loads(line)], np.float32)
    sys.stdout.buffer.write(np.uint32(3).tobytes() + rows.tobytes())
    sys.stdout.buffer.flush()
    if len(rows) == 1:
        sys.exit()
"""


def test_off_grid_weights_move_by_half_a_step_at_most(tmp_path: Path) -> None:
    draws = np.random.default_rng(1)
    kind = GGMLQuantizationType.Q8_0
    packed = quantize(draws.normal(size=(4, 64)).astype(np.float32), kind)
    norm = draws.normal(size=64).astype(np.float32)
    writer = GGUFWriter(tmp_path / "grid.gguf", "llama")
    writer.add_array("tokenizer.ggml.tokens", ["a", "b"])
    writer.add_tensor("blk.0.ffn_up.weight", packed, raw_dtype=kind)
    writer.add_tensor("blk.0.ffn_norm.weight", norm)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    write_off_grid(tmp_path / "grid.gguf", tmp_path / "off.gguf")
    moved = GGUFReader(tmp_path / "off.gguf")
    found = {each.name: np.array(each.data) for each in moved.tensors}
    steps = packed.reshape(8, 34)[:, :2].copy().view(np.float16).astype(np.float32)
    moves = np.abs(found["blk.0.ffn_up.weight"] - dequantize(packed, kind)).reshape(8, 32) / steps
    assert 0.45 < moves.max() <= 0.5001 and 0.2 < moves.mean() < 0.3
    assert np.array_equal(found["blk.0.ffn_norm.weight"], norm)
    assert moved.fields["tokenizer.ggml.tokens"].contents() == ["a", "b"]


def test_logits_come_from_the_other_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    peer = tmp_path / "peer.py"
    peer.write_text(ANSWERS)
    monkeypatch.setattr(quality_peers, "PEER", peer)
    with LlamaCpp(sys.executable, Path("model.gguf")) as model:
        for tokens in ([7, 8], [9]):
            assert model.logits(tokens).tolist() == [[token, -token, 0.5] for token in tokens]
        with pytest.raises(SystemExit, match="ended on model"):
            model.logits([1])
