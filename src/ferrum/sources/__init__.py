"""Files to tensors and tokenizers: names, hubs, directories and GGUF files, and what is in them."""
