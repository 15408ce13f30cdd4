"""Runs that serve requests: from the times of single requests to the verdict."""
