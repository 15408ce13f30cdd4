"""Questions about one or many records: compare, size, what if, cost and advice from sweeps."""
