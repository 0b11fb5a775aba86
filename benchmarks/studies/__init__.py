"""Studies: each module answers one question by measurement, and prints a table."""
