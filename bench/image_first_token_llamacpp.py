"""Answer each line with the number of an image by llama.cpp's time to its first token. See image_first_token.py.

python bench/image_first_token_llamacpp.py MODEL.gguf MMPROJ.gguf EDGE THREADS
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
    """Load, then answer until the input ends."""
    model_path, mmproj, edge, threads = sys.argv[1], sys.argv[2], *map(int, sys.argv[3:5])
    model = llama_cpp.llama_model_load_from_file(model_path.encode(), llama_cpp.llama_model_default_params())
    options = mtmd.mtmd_context_params_default()
    options.use_gpu, options.n_threads, options.print_timings, options.warmup = False, threads, False, False
    context = mtmd.mtmd_init_from_file(mmproj.encode(), model, options)
    settings = llama_cpp.llama_context_default_params()
    settings.n_ctx, settings.n_threads, settings.n_threads_batch = 2048, threads, threads
    lctx = llama_cpp.llama_init_from_model(model, settings)
    text = f"{mtmd.mtmd_default_marker().decode()}What is it?".encode()
    for line in sys.stdin:
        pixels = np.random.default_rng(int(line)).integers(0, 256, (edge, edge, 3)).astype(np.uint8)
        llama_cpp.llama_memory_clear(llama_cpp.llama_get_memory(lctx), True)
        begin = time.perf_counter()
        data = pixels.ctypes.data_as(ctypes.POINTER(ctypes.c_uint8))
        bitmaps = (mtmd.mtmd_bitmap_p_ctypes * 1)(mtmd.mtmd_bitmap_init(edge, edge, data))
        asked, chunks = mtmd.mtmd_input_text(text, len(text), False, True), mtmd.mtmd_input_chunks_init()
        if mtmd.mtmd_tokenize(context, chunks, ctypes.byref(asked), bitmaps, 1):
            sys.exit("llama.cpp does not take the image")
        past = llama_cpp.llama_pos(0)
        if mtmd.mtmd_helper_eval_chunks(context, lctx, chunks, 0, 0, settings.n_batch, True, ctypes.byref(past)):
            sys.exit("llama.cpp cannot evaluate the image")
        logits = llama_cpp.llama_get_logits_ith(lctx, -1)
        vocabulary = llama_cpp.llama_vocab_n_tokens(llama_cpp.llama_model_get_vocab(model))
        int(np.argmax(np.ctypeslib.as_array(logits, (vocabulary,))))
        print(json.dumps({"seconds": time.perf_counter() - begin, "tokens": past.value}), flush=True)


main()
