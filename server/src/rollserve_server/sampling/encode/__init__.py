"""Segments of episodes as serialized messages."""
