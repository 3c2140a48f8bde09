"""Time llama.cpp's tower for images (mtmd) on one image; prints seconds of wall and processor as JSON. See images.py.

python bench/images_llamacpp.py MODEL.gguf MMPROJ.gguf EDGE THREADS ROUNDS
"""

from __future__ import annotations

import ctypes
import json
import sys
import time

from script import needs

with needs("llama-cpp-python==0.3.36 numpy"):
    import llama_cpp
    import llama_cpp.mtmd_cpp as mtmd
    import numpy as np


def main() -> None:
    """Encode the first part of the image `rounds` times after one that does not count."""
    model_path, mmproj, edge, threads, rounds = sys.argv[1], sys.argv[2], *map(int, sys.argv[3:6])
    model = llama_cpp.llama_model_load_from_file(model_path.encode(), llama_cpp.llama_model_default_params())
    options = mtmd.mtmd_context_params_default()
    options.use_gpu, options.n_threads, options.print_timings, options.warmup = False, threads, False, False
    context = mtmd.mtmd_init_from_file(mmproj.encode(), model, options)
    pixels = np.random.default_rng(0).integers(0, 256, (edge, edge, 3)).astype(np.uint8)
    data = pixels.ctypes.data_as(ctypes.POINTER(ctypes.c_uint8))
    bitmaps = (mtmd.mtmd_bitmap_p_ctypes * 1)(mtmd.mtmd_bitmap_init(edge, edge, data))
    marker = mtmd.mtmd_default_marker()
    text = mtmd.mtmd_input_text(marker, len(marker), False, True)
    chunks = mtmd.mtmd_input_chunks_init()
    if mtmd.mtmd_tokenize(context, chunks, ctypes.byref(text), bitmaps, 1):
        sys.exit("llama.cpp does not take the image")
    parts = [mtmd.mtmd_input_chunks_get(chunks, index) for index in range(mtmd.mtmd_input_chunks_size(chunks))]
    (image, *_) = [part for part in parts if mtmd.mtmd_input_chunk_get_type(part) == 1]
    walls, processors = [], []
    for _ in range(rounds + 1):
        wall, processor = time.perf_counter(), time.process_time()
        mtmd.mtmd_encode_chunk(context, image)
        walls.append(time.perf_counter() - wall)
        processors.append(time.process_time() - processor)
    rows = mtmd.mtmd_input_chunk_get_n_tokens(image)
    print(json.dumps({"rows": rows, "wall": walls[1:], "processor": processors[1:]}))


main()
