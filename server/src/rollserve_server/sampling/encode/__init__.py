"""Segments of episodes, encoded as messages: the responses of sampling calls, byte for byte as the client gets them."""
