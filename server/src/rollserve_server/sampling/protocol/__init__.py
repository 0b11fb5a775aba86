"""Plain values that the pool and its workers exchange: descriptions, orders and reports. All can be pickled."""
