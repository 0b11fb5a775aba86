"""Malformed and unusual requests to a server, and checks of its answers."""
