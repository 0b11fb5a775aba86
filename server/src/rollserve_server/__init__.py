"""Rollserve's server: a gRPC service in front of a pool of sampler workers.

docs/architecture.md describes the walks of calls through its packages.
"""

__version__ = "0.3.0"
