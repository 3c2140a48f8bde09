"""Text and tokens: tokenizers, chat templates, incremental detokenization, a checkpoint's generation defaults."""
