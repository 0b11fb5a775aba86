"""Module of environments that raises SystemExit when it is imported, as scripts do."""

raise SystemExit(0)
