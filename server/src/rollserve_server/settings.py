"""The server's settings: one place for their names, types, defaults and meaning."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, field_validator

from rollserve.environments import kwargs_from_json

__all__ = ["Settings", "WrapperSetting"]

_LEAST_AMOUNT = 0.0001
"""Of a resource: Ray counts no smaller parts."""
_OWN_OPTIONS = {
    "CPU": "worker-num-cpus",
    "GPU": "worker-num-gpus",
    "memory": "worker-memory-bytes",
    "object_store_memory": "object-store-bytes",
}
"""For what Ray takes no custom resource."""


def _from_json(value: Any) -> Any:
    if not isinstance(value, str):
        return value
    try:
        return json.loads(value)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"not JSON: {error}") from None


def _stripped(value: Any) -> Any:
    return [part.strip() for part in value if part.strip()]


def _check_kwargs(value: dict[str, Any]) -> dict[str, Any]:
    """What YAML has and JSON has not, such as dates, could not be told to clients."""
    try:
        return kwargs_from_json(json.dumps(value))
    except (TypeError, ValueError, RecursionError):
        raise ValueError("what can be written as JSON, at most 64 levels deep, was expected") from None


_Kwargs = Annotated[dict[str, Any], AfterValidator(_check_kwargs)]


class WrapperSetting(BaseModel):
    """A wrapper around the environment."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str
    kwargs: _Kwargs = {}


class Settings(BaseModel):
    """What the server is to do. Each field is a flag, an environment variable and a key of the configuration file."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    env: str = Field(
        description="The environment to start with: an id registered with gymnasium, such as CartPole-v1, or module:Id "
        "or module:Class. Clients can replace it."
    )
    env_kwargs: Annotated[_Kwargs, BeforeValidator(_from_json)] = Field(
        default={}, description="Its keyword arguments, as a JSON object."
    )
    wrappers: Annotated[tuple[WrapperSetting, ...], BeforeValidator(_from_json)] = Field(
        default=(),
        max_length=64,
        description='Wrappers of gymnasium around it, innermost first, as JSON: [{"name": "…", "kwargs": {…}}, …].',
    )
    allow_module: Annotated[tuple[str, ...], BeforeValidator(_stripped)] = Field(
        default=(),
        description="A Python module that clients may name environments of, beside the one in --env; the server "
        "imports, and so runs, it. Can be given more than once; in the environment variable, separated by commas.",
    )
    allow_method: Annotated[tuple[str, ...], BeforeValidator(_stripped)] = Field(
        default=("set_task",),
        description="A method of environments that clients may set tasks with. Can be given more than once; in the "
        "environment variable, separated by commas.",
    )
    allow_path: Annotated[tuple[Path, ...], BeforeValidator(_stripped)] = Field(
        default=(),
        description="A file, or a folder, that clients may name in the arguments of environments. Other paths on the "
        "server are refused in requests, because an environment may show what a file holds; those in --env-kwargs and "
        "--wrappers are allowed. Can be given more than once; in the environment variable, separated by commas.",
    )
    listen: str = Field(
        default="127.0.0.1:50051",
        description="Where to listen, as HOST:PORT. Port 0 takes a free one. Connections are not encrypted and callers "
        "not asked who they are: listen beyond this machine only in a network that you trust.",
    )
    port_file: Path | None = Field(
        default=None, description="A file to write the port to, once the server is ready; removed when it ends."
    )
    workers: int | None = Field(
        default=None, ge=1, le=10_000, description="How many workers. Without it, one for each core."
    )
    vectorization: Literal["auto", "rows", "native", "envpool"] = Field(
        default="auto",
        description="How the rows of environments that do not say otherwise are stepped: rows, one by one, or native, "
        "all at once by the environment's own code for many, which only some have. With auto, natively where that is "
        "offered. With envpool, all at once by EnvPool, and ids are those that it has.",
    )
    rows: int = Field(
        default=16,
        ge=1,
        le=4096,
        description="How many environments each worker steps for a call, one by one, where they do not say otherwise.",
    )
    native_rows: int = Field(
        default=64,
        ge=1,
        le=4096,
        description="How many rows each worker steps all at once for a call, where environments do not say otherwise.",
    )
    episodes_per_row: int = Field(
        default=8,
        ge=1,
        le=1 << 16,
        description="Of rows that are stepped all at once: how many episodes of each make a block. The more, the less "
        "do rows wait for the last of their block; the fewer, the sooner is work spread over workers.",
    )
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
    max_kept_agent_bytes: int = Field(
        default=1 << 30,
        ge=0,
        description="How much memory of a process versions of agents may take that are kept, but neither current nor "
        "sampled with: beyond that, the oldest are forgotten.",
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
    worker_memory_bytes: int | None = Field(
        default=None, ge=1, lt=2**63, description="Memory that Ray reserves for each worker."
    )
    worker_resources: Annotated[dict[str, float], BeforeValidator(_from_json)] = Field(
        default={},
        description='Custom resources that Ray reserves for each worker, as JSON: {"name": amount}.',
    )
    object_store_bytes: int | None = Field(
        default=None,
        ge=80 << 20,
        le=os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"),
        description="The size of the object store, where Ray is started here. Without it, Ray's choice.",
    )
    worker_buffer_bytes: int = Field(
        default=96 << 20,
        ge=1,
        description="How much finished data of a call a worker may hold before it begins no more episodes, and how "
        "much the steps of a call for fragments may take there.",
    )
    call_window_bytes: int = Field(
        default=64 << 20,
        ge=1,
        description="How much of a call's result may be on its way from the workers to the client.",
    )
    shared_memory_bytes: int = Field(
        default=0,
        ge=0,
        description="How much memory results may go through to clients on this machine that ask for it and are run by "
        "the same user: 32 MiB for each call at a time, as far as it reaches; other calls are answered as usual. "
        "Only on Linux.",
    )
    hold_memory: bool = Field(
        default=True,
        description="Whether the server and its workers keep memory that they free, for the next data, which halves "
        "the time that bulk data takes. With false they give it back to the system. Only where the C library is glibc.",
    )
    max_request_bytes: int = Field(default=256 << 20, ge=4096, lt=2**31, description="The largest request to be taken.")
    max_model_bytes: int = Field(
        default=192 << 20,
        ge=1,
        lt=2**31,
        description="The largest ONNX model, or pickled agent, to be taken, within a request.",
    )
    allow_pickle: bool = Field(
        default=False,
        description="Whether agents may come as pickles. To read a pickle is to run whatever code it holds: whoever "
        "reaches the server can then run code on it, as the user that it and its workers have.",
    )
    onnx_providers: Annotated[tuple[str, ...], BeforeValidator(_stripped)] = Field(
        default=("CPUExecutionProvider",),
        description="What ONNX Runtime runs models with, the best first. Can be given more than once; in the "
        "environment variable, separated by commas. What is said of equal results holds for the CPU's alone.",
    )
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

    @field_validator("worker_num_cpus", "worker_num_gpus")
    @classmethod
    def _check_amount(cls, value: float) -> float:
        if 0 < value < _LEAST_AMOUNT:
            raise ValueError(f"0 or at least {_LEAST_AMOUNT} was expected")
        return value

    @field_validator("worker_num_gpus")
    @classmethod
    def _check_gpus(cls, value: float) -> float:
        if value > 1 and not value.is_integer():
            raise ValueError("a whole number, or a part of one GPU, was expected")
        return value

    @field_validator("worker_resources")
    @classmethod
    def _check_resources(cls, value: dict[str, float]) -> dict[str, float]:
        for name, amount in value.items():
            if not name or name in _OWN_OPTIONS:
                expected = f"--{_OWN_OPTIONS[name]} instead of it" if name else "a name"
                raise ValueError(f"{name!r}: {expected} was expected")
            if amount < _LEAST_AMOUNT:
                raise ValueError(f"{name!r}: an amount of at least {_LEAST_AMOUNT} was expected")
        return value
