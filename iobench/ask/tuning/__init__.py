"""Turn the points of a sweep into advice: knee, shard size, compression, reasons, confirmation."""
