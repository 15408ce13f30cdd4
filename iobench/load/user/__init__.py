"""The user's own loader under test (``loader.kind: user``).

factory.py calls the user's function, tree.py sizes what its loader yields, worker.py counts in the
loader's worker processes, repeats.py compares what these deliver, cached.py takes the dataset out
of a loader, and loader.py puts stamps on its batches.
"""
