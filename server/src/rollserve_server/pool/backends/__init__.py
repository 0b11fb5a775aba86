"""Backends: what runs the workers."""
