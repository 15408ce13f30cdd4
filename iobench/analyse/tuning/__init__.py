"""Points of a sweep to advice: knee, shard size, compression, reasons and confirmation."""
