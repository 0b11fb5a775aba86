"""Benchmark of the whole service: workers, gateway, and a client in a process of its own. `make bench` runs it."""
