"""Code that client and server share: the generated messages, their codec, and plain values, without gRPC."""
