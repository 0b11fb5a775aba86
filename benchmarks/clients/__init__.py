"""Clients in several languages, measured by their adapters for the conformance kit."""
