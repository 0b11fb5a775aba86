"""Rows of a worker's environments: stepped one by one, or all at once by a vector environment."""
