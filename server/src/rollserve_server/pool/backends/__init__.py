"""Backends: what runs the workers, with one interface."""
