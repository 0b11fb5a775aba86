"""Transforms of rewards, actions and observations, for all rows of a worker at once."""
