"""Write a GGUF file as a directory in bfloat16, for engines that read no GGUF: needs transformers, torch and gguf.

python bench/determinism_directory.py FILE.gguf FOLDER
"""

from __future__ import annotations

import sys
from pathlib import Path

from script import needs

with needs("torch transformers gguf accelerate"):
    import torch
    from transformers import AutoModelForCausalLM, GgufConfig


def main(file: Path, folder: Path) -> None:
    """Write the directory. It has no tokenizer: requests are token ids."""
    unpacked = GgufConfig(dequantize=True)
    model = AutoModelForCausalLM.from_pretrained(
        str(file.parent), gguf_file=file.name, dtype=torch.bfloat16, quantization_config=unpacked
    )
    model.save_pretrained(folder)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
