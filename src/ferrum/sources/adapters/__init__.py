"""Files of adapters: PEFT directories and GGUF files to changes of a model's matrices."""
