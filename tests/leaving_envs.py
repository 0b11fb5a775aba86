"""A module of environments that ends the program that imports it, as scripts do."""

raise SystemExit(0)
