"""Agents for Rollserve's server, as an example of those that are installed beside it."""
