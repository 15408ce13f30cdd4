"""Loaders of other libraries, one file each, behind one protocol (base.py).

A library is imported only if a workload names it.
"""
