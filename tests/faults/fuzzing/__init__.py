"""Requests that nobody should send, and what a gateway makes of them."""
