"""Benchmarks of Rollserve. README.md says what each measures, and where to add one."""
