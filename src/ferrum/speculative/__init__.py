"""Speculative decoding: draft tokens that one step verifies. Drafts never change an answer."""
