"""The schemas of files: dataset and workload specs, manifests, results."""
