"""A steady load of all kinds of calls, for as long as it takes to see what grows."""
