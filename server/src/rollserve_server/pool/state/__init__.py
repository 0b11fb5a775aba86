"""Plain values that describe a sampler; the journal keeps them."""
