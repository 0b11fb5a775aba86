"""What passes between the pool and its workers: plain values that can be pickled."""
