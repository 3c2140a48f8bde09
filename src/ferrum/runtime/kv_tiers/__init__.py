"""KV tiers: copies of KV pages outside the pool, in host memory and on disk."""
