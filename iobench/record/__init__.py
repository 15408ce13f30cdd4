"""What is written: the records of runs of each kind, their metrics, and manifests of data."""
