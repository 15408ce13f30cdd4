"""A sweep: its points, their trials in turns, resuming, and confirming the advice."""
