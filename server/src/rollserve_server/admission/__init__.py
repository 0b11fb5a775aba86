"""Bounded concurrency: a limited number of calls run, the others queue in order of arrival."""
