"""`ottla perf`: throughput and latency of a cluster."""
