"""Models that are trained: real computation, in plain torch, that takes its time from each batch.

``base.py`` has what they share, ``registry.MODELS`` their names.
"""
