"""Rollserve's server: a gRPC service in front of a pool of sampler workers.

`docs/rooms.md` describes its packages, and which of them may import which.
"""

__version__ = "0.2.0"
