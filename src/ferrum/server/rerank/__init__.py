"""Scores of texts for other texts: the rerank and score routes as vLLM, Jina, Cohere and llama.cpp have them."""
