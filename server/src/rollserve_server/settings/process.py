"""The server process and its log."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import Field

from rollserve_server.settings.groups import Address, Group

__all__ = ["ProcessSettings"]


class ProcessSettings(Group):
    """The server process and its log."""

    backend: Literal["ray", "in-process"] = Field(
        default="ray",
        description="What runs the workers: processes of Ray, or threads of the server itself, which share one core.",
    )
    port_file: Path | None = Field(
        default=None, description="A file to write the port to once the server is ready; removed when the server ends."
    )
    end_with_parent: int | None = Field(
        default=None,
        ge=1,
        description="Id of the process that starts the server: when that process has ended, the server stops as on "
        "SIGTERM.",
    )
    control_fd: int | None = Field(
        default=None,
        ge=3,
        description="File descriptor of a stream socket on which the process that starts the server can reset its "
        "sampler: each line reset is answered by a line, done or failed: and the reason.",
    )
    save_path: Path | None = Field(
        default=None,
        description="A file to save the default sampler to, every --save-every seconds and when the server ends. A "
        "server that starts goes on with the sampler in the file, if there is one and no sampler in the cluster.",
    )
    save_every: float = Field(
        default=60.0, gt=0.0, le=1e6, allow_inf_nan=False, description="Seconds between two saves to --save-path."
    )
    metrics_listen: Address | None = Field(
        default=None,
        description="Where to serve metrics for Prometheus, over HTTP at /metrics, as HOST:PORT: without encryption, "
        "so not where clients connect from. Without it, nowhere.",
    )
    log_level: Literal["DEBUG", "INFO", "WARNING", "ERROR"] = Field(
        default="INFO", description="The least important events to log."
    )
    log_json: bool = Field(default=False, description="Log each event as a JSON object.")
