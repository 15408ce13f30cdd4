"""``iobench check``: data that a budget allows, and a run that fits into the rest of it."""
