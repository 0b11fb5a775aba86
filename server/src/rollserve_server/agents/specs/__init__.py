"""Plain values that describe agents: as a request sends them (sources), and as they were accepted (specs)."""
