"""What a worker does: episodes by index, collected in rows and written as messages. Knows neither Ray nor gRPC."""

from rollserve_server.sampling.orders import (
    Claim,
    EnvDescription,
    Message,
    Order,
    Parcel,
    Report,
    Stream,
    WorkerConfig,
    WorkerIdentity,
)
from rollserve_server.sampling.worker import Worker

__all__ = [
    "Claim",
    "EnvDescription",
    "Message",
    "Order",
    "Parcel",
    "Report",
    "Stream",
    "Worker",
    "WorkerConfig",
    "WorkerIdentity",
]
