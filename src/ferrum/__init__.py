"""ferrum: an exact, small and fast inference engine for open-weight language models."""
