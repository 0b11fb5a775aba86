"""The gRPC side of the server: translates messages, maps errors to statuses, forwards bytes."""

from rollserve_server.gateway.server import Gateway
from rollserve_server.gateway.service import DEFAULT_SAMPLER

__all__ = ["DEFAULT_SAMPLER", "Gateway"]
