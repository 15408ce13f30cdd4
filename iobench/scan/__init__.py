"""Data that others wrote, read where it lies and never written to: a manifest kept elsewhere, and a spec that clones its shape.

``index`` finds the samples of one shard; ``classify`` says what the files are; ``scanner`` ties them together;
``saving`` writes the result down.
"""

from .saving import save
from .scanner import ScanReport, scan

__all__ = ["ScanReport", "save", "scan"]
