"""Anthropic's Messages API: bodies, histories, events and routes."""
