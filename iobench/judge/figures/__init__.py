"""Figures of a run that follow from its events: pure functions, which judge nothing."""
