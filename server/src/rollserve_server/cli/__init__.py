"""The command line `rollserve-server`."""

from rollserve_server.cli.main import main

__all__ = ["main"]
