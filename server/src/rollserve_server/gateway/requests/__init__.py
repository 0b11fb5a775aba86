"""Requests: received within bounds of memory, checked for size, parsed, and translated for the pool."""
