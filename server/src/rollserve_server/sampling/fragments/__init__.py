"""Rows that run episodes one after the other, from fragment call to fragment call, and their fragments."""
