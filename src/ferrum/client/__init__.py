"""The caller's process: `LLM` and `AsyncEngine`, their requests and outputs, and the process that runs the engine."""
