"""The dialect of OpenAI and vLLM: bodies, checks, replies and routes."""
