"""The storage curve: throughput and latency over the number of reads in flight."""
