"""Copies of KV pages outside the pool: in memory and on disk."""
