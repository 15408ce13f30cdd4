"""Runs of a KV cache on storage: from the times of single requests to whether it is worth it."""
