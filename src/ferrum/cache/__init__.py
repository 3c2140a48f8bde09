"""Assignment of KV pool pages to sequences: host integers only."""
