"""Every place that fsspec knows and no storage of our own serves."""
