"""The contracts that are written on disk: dataset, workload, manifest, result."""
