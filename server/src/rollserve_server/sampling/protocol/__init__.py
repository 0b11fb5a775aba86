"""Plain values that the pool and its workers exchange: descriptions, orders and reports, all of which can be pickled."""
