"""A sweep: its points, their visits in turns, resuming, and confirming the advice."""
