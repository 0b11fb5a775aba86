"""The server's settings: one place for their names, types, defaults and meaning."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, field_validator

__all__ = ["Settings", "WrapperSetting"]


def _from_json(value: Any) -> Any:
    if not isinstance(value, str):
        return value
    try:
        return json.loads(value)
    except ValueError as error:
        raise ValueError(f"not JSON: {error}") from None


def _from_commas(value: Any) -> Any:
    return [part.strip() for part in value.split(",") if part.strip()] if isinstance(value, str) else value


class WrapperSetting(BaseModel):
    """A wrapper around the environment."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str
    kwargs: dict[str, Any] = {}


class Settings(BaseModel):
    """What the server is to do. Each field is a flag, an environment variable and a key of the configuration file."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    env: str = Field(
        description="The environment to start with: an id registered with gymnasium, such as CartPole-v1, or module:Id "
        "or module:Class. Clients can replace it."
    )
    env_kwargs: Annotated[dict[str, Any], BeforeValidator(_from_json)] = Field(
        default={}, description="Its keyword arguments, as a JSON object."
    )
    wrappers: Annotated[tuple[WrapperSetting, ...], BeforeValidator(_from_json)] = Field(
        default=(),
        description='Wrappers of gymnasium around it, innermost first, as JSON: [{"name": "…", "kwargs": {…}}, …].',
    )
    allow_module: Annotated[tuple[str, ...], BeforeValidator(_from_commas)] = Field(
        default=(),
        description="A Python module that clients may name environments of, beside the one in --env; the server "
        "imports, and so runs, it. Can be given more than once; in the environment variable, separated by commas.",
    )
    allow_method: Annotated[tuple[str, ...], BeforeValidator(_from_commas)] = Field(
        default=("set_task",),
        description="A method of environments that clients may set tasks with. Can be given more than once; in the "
        "environment variable, separated by commas.",
    )
    listen: str = Field(
        default="127.0.0.1:50051",
        description="Where to listen, as HOST:PORT. Port 0 takes a free one. Connections are not encrypted and callers "
        "not asked who they are: listen beyond this machine only in a network that you trust.",
    )
    port_file: Path | None = Field(default=None, description="A file to write the port to, once the server is ready.")
    workers: int | None = Field(default=None, ge=1, description="How many workers. Without it, one for each core.")
    rows: int = Field(default=16, ge=1, le=4096, description="How many environments each worker steps at once.")
    max_episode_length: int | None = Field(
        default=None,
        ge=1,
        description="How many steps an episode may have: one that reaches it is truncated. Calls can ask for another "
        "number. Without it, as many as the environment allows.",
    )
    max_calls: int = Field(
        default=4,
        ge=1,
        le=64,
        description="How many calls may sample at the same time; more wait for their turn. Each has environments of "
        "its own.",
    )
    keep_versions: int = Field(
        default=4,
        ge=1,
        le=1000,
        description="How many versions of agents and environments the workers keep, so that a call which was "
        "interrupted can go on after an update.",
    )
    seed: int | None = Field(
        default=None,
        ge=0,
        lt=2**64,
        description="The root seed of the episodes of calls that name none. Without it, a random one.",
    )
    backend: Literal["ray", "in-process"] = Field(
        default="ray",
        description="What runs the workers: processes of Ray, or threads of the server itself, which share one core.",
    )
    ray_address: str | None = Field(
        default=None,
        description="An existing Ray cluster to put the workers on, such as auto or 10.0.0.1:6379. Without it the "
        "server starts Ray on this machine, and ends it.",
    )
    worker_num_cpus: float = Field(default=1.0, ge=0, description="Cores that Ray reserves for each worker.")
    worker_num_gpus: float = Field(default=0.0, ge=0, description="GPUs that Ray reserves for each worker.")
    worker_memory_bytes: int | None = Field(default=None, ge=1, description="Memory that Ray reserves for each worker.")
    worker_resources: Annotated[dict[str, float], BeforeValidator(_from_json)] = Field(
        default={},
        description='Custom resources that Ray reserves for each worker, as JSON: {"name": amount}.',
    )
    object_store_bytes: int | None = Field(
        default=None,
        ge=80 << 20,
        description="The size of the object store, where Ray is started here. Without it, Ray's choice.",
    )
    worker_buffer_bytes: int = Field(
        default=256 << 20,
        ge=1,
        description="How much finished data of a call a worker may hold before it begins no more episodes.",
    )
    call_window_bytes: int = Field(
        default=64 << 20,
        ge=1,
        description="How much of a call's result may be on its way from the workers to the client.",
    )
    max_request_bytes: int = Field(default=256 << 20, ge=4096, lt=2**31, description="The largest request to be taken.")
    start_seconds: float = Field(default=120.0, gt=0, description="How long workers may take to start.")
    grace_seconds: float = Field(
        default=10.0, ge=0, description="How long running calls may go on after SIGTERM or Ctrl-C."
    )
    log_level: Literal["DEBUG", "INFO", "WARNING", "ERROR"] = Field(
        default="INFO", description="The least important events to log."
    )
    log_json: bool = Field(default=False, description="Log each event as a JSON object.")

    @field_validator("listen")
    @classmethod
    def _check_listen(cls, value: str) -> str:
        host, colon, port = value.rpartition(":")
        if not (colon and host and port.isdecimal() and int(port) < 1 << 16):
            raise ValueError("HOST:PORT was expected, such as 127.0.0.1:50051")
        return value
