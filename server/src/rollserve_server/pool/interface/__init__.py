"""Requests to the pool and what it answers with, as plain values."""
