"""Parts that several benchmarks share: processes, command lines, reports and tables."""
