"""Sequences of episodes from call to call: where each stands, and what workers still hold of it."""
