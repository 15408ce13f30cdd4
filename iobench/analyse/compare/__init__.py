"""Runs beside one another: comparison, history, cost, and the statistics they rest on."""
