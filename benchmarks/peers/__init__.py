"""Rollserve beside what others collect experience with: `make bench-peers`."""
