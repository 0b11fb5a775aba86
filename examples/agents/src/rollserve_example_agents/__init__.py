"""Example agents that are installed beside Rollserve's server."""
