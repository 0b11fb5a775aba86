"""Native vector environments of gymnasium's registry."""
