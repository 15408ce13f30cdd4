"""Loaders that people train with, one file each, behind one protocol (base.py); none is imported unless a workload names it."""
