"""Rollserve's server: a gRPC service in front of a pool of sampler workers.

Imports point down only: `gateway -> pool -> sampling -> {envs, agents} -> rollserve`.
"""

__version__ = "0.2.0"
