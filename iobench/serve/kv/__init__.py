"""A KV cache on storage: its traffic, its tiers, and where its chunks are kept."""
