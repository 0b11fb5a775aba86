"""A soak run: a steady load of all kinds of calls, to find what grows."""
