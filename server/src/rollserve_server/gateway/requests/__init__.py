"""Requests: received within bounds, checked for size, parsed."""
