"""Which pages of the KV pool hold which tokens: host integers only."""
