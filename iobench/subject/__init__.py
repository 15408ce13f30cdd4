"""Loaders under test that iobench has not written.

meter.py counts what a loader delivers and costs: batches.py sizes what it yields, board.py counts
in its processes, in memory that they share, and process.py asks the kernel. loader.py drives a
loader of the user's own (``loader.kind: user``), which factory.py makes; watched.py is a loader
that a training of the user's own drives.
"""
