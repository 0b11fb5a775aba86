"""Benchmark of Rollserve and of its peers: other libraries that collect experience. `make bench-peers` runs it."""
