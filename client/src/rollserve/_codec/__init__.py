"""Codecs between numpy arrays and serialized messages; shared with the server, not part of the public interface."""
