"""The gRPC side of the server: translates requests for the pool, forwards sampled bytes, maps errors to statuses."""

from rollserve_server.gateway.audit import check_audit_log, settings_changes
from rollserve_server.gateway.certificates import check_certificates
from rollserve_server.gateway.relay import Relay
from rollserve_server.gateway.requests.reader import read_saved_file
from rollserve_server.gateway.server import Gateway, Interceptor
from rollserve_server.gateway.standby import healthy_on_standby

__all__ = [
    "Gateway",
    "Interceptor",
    "Relay",
    "check_audit_log",
    "check_certificates",
    "healthy_on_standby",
    "read_saved_file",
    "settings_changes",
]
