"""Native vector environments: the code of some environments that steps many rows at once."""
