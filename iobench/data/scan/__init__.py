"""Scan data that others wrote: make a manifest of it, and a spec that clones its shape.

The data is only read, never written to; the manifest is stored elsewhere. ``index`` finds the
samples of one shard, those of Parquet and HDF5 in a ``sandbox``; ``classify`` says what the files
are; ``scanner`` connects them; ``saving`` writes the result.
"""
