"""The gRPC side: translates, maps errors, forwards bytes. Knows no environment and no policy."""

from rollserve_server.gateway.client_limits import ClientLimits
from rollserve_server.gateway.server import Gateway, GatewayConfig
from rollserve_server.gateway.service import DEFAULT_SAMPLER

__all__ = ["DEFAULT_SAMPLER", "ClientLimits", "Gateway", "GatewayConfig"]
