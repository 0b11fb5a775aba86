"""Protobuf messages to and from the pool's values."""
