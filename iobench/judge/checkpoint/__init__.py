"""Checkpoints: the figures of a study, their meaning for a job, the best interval, the rules."""
