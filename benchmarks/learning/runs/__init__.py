"""Trainers, each in a process of its own: they learn a task, and print their progress as lines of JSON."""
