"""Calls: one driver for each kind, and how a call begins and is settled."""
