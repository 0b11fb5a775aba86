"""Command line `rollserve`: shows, samples from, evaluates, resizes, saves, creates and deletes samplers."""

from rollserve.cli.command_line import main

__all__ = ["main"]
