"""The dialect of Ollama: bodies, checks, replies and routes."""
