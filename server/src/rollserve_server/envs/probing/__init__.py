"""Probes: environments are tried in a child process before the workers make them."""
