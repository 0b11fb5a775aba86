"""Hosts: processes of their own that have environments, whose rows a worker steps over a connection."""
