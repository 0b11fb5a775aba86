"""The server's settings: one place for their names, types, defaults and meaning."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, ValidationInfo, field_validator

from rollserve._codec.json_arguments import kwargs_from_json

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
    max_workers: int | None = Field(
        default=None,
        ge=1,
        le=10_000,
        description="How many workers clients may ask for with ResizePool. Without it, four times as many as there are "
        "cores for, or as many as there are at the beginning if that is more.",
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
    max_stalled_calls: int = Field(
        default=4,
        ge=0,
        le=64,
        description="How many calls more there may be whose clients take nothing of what is there for them: such a "
        "call does not count while others wait. When one more is needed, the one that was left for longest is ended.",
    )
    max_waiting_calls: int = Field(
        default=64, ge=0, le=100_000, description="How many calls may wait for their turn; more are refused."
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
    ray_namespace: str = Field(
        default="rollserve",
        min_length=1,
        max_length=255,
        description="Of a Ray cluster that is there: the namespace that the sampler is in, with its workers and what "
        "it knows. It outlives a server that is killed, and the next one in the same namespace goes on with it.",
    )
    adopt: bool = Field(
        default=True,
        description="Whether to go on with a sampler that an earlier server has left in the namespace. With false, "
        "that is ended and another one begun.",
    )
    keep_workers: bool = Field(
        default=False,
        description="Whether to leave the sampler to the next server on SIGTERM or Ctrl-C, too, on a Ray cluster that "
        "is there.",
    )
    orphan_seconds: float = Field(
        default=600.0,
        gt=0,
        description="How long a sampler without a server stays on a Ray cluster, before its workers are ended.",
    )
    end_with_parent: int | None = Field(
        default=None,
        ge=1,
        description="The id of the process that starts the server: when that has ended, the server stops as on "
        "SIGTERM.",
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
    gateway_buffer_bytes: int = Field(
        default=1 << 30,
        ge=1,
        description="How much of the results of all calls together may be on its way from the workers to clients: each "
        "has an equal share of it at the most.",
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
        "the time that bulk data takes. With false they give it back to the system at once. Only where the C library "
        "is glibc.",
    )
    max_request_bytes: int = Field(default=256 << 20, ge=4096, lt=2**31, description="The largest request to be taken.")
    max_pending_request_bytes: int = Field(
        default=1536 << 20,
        ge=1,
        description="How many bytes of requests that bring agents or environments there may be: a third while they "
        "are received, a third for updates that are worked on, where more wait, and a third for evaluations that run, "
        "where more are refused. Each third is enough for the largest request, whatever is set.",
    )
    max_rpcs: int = Field(
        default=1000,
        ge=1,
        le=100_000,
        description="How many RPCs of all kinds may run at the same time, health checks among them; more are refused.",
    )
    max_connections: int = Field(
        default=1000, ge=1, le=1_000_000, description="How many connections clients may have; more are closed."
    )
    max_connection_rpcs: int = Field(
        default=256,
        ge=1,
        le=100_000,
        description="How many RPCs may run at the same time over one connection; more wait in the client.",
    )
    client_stall_seconds: float = Field(
        default=600.0,
        gt=0,
        le=1e6,
        description="How long a client may take nothing of what is there for it, or send nothing of what it began to, "
        "before its call is ended.",
    )
    keepalive_seconds: float = Field(
        default=20.0,
        ge=0,
        le=1e6,
        description="After how long without any sign of life a client is asked for one. With 0 never.",
    )
    keepalive_timeout_seconds: float = Field(
        default=10.0,
        gt=0,
        le=1e6,
        description="How long it may take to give one, before its connection is closed and its calls are ended.",
    )
    max_connection_idle_seconds: float = Field(
        default=3600.0,
        ge=0,
        le=1e6,
        description="How long a connection may be without RPCs before it is closed. With 0 for ever.",
    )
    max_connection_age_seconds: float = Field(
        default=0.0,
        ge=0,
        le=1e6,
        description="How long a connection takes new RPCs: clients connect anew then, and may reach another server. "
        "Those that run go on. With 0 for ever.",
    )
    max_connection_age_grace_seconds: float = Field(
        default=0.0,
        ge=0,
        le=1e6,
        description="How long RPCs may go on over a connection that takes no more, before it is closed. With 0 for "
        "ever.",
    )
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
    straggler_factor: float = Field(
        default=3.0,
        ge=0,
        description="An episode that takes so many times as long as most others did, and at least a second, is begun a "
        "second time by a worker that has nothing else to do for the call which waits for it: the one that ends first "
        "counts, and is the same. Only where any worker may run any episode. With 0, calls wait as long as it takes.",
    )
    start_seconds: float = Field(default=120.0, gt=0, description="How long workers may take to start.")
    env_retries: int = Field(
        default=3,
        ge=0,
        le=100,
        description="How often an episode runs again, in an environment that is made anew, whose environment raised an "
        "error, before the call fails or goes on without it.",
    )
    step_seconds: float = Field(
        default=30.0,
        gt=0,
        description="How long a step of an environment, or an action of an agent, may take; of rows that are stepped "
        "all at once, a step of all. A worker in which one takes longer hangs: it is replaced, and what it was doing "
        "is done again elsewhere.",
    )
    reset_seconds: float = Field(
        default=300.0,
        gt=0,
        description="The same for a reset of an environment, and for making or closing an environment or an agent.",
    )
    unit_retries: int = Field(
        default=3,
        ge=0,
        le=1000,
        description="How often an episode, or what else is run as a whole, is run again because its worker was lost or "
        "hung, before that is taken to be its own fault and the call fails.",
    )
    worker_restarts_per_hour: int = Field(
        default=60,
        ge=1,
        le=100_000,
        description="How often each worker may be replaced within an hour. One that is lost more often is left out "
        "until the hour is over.",
    )
    min_healthy_workers: int = Field(
        default=0,
        ge=0,
        le=10_000,
        description="How many workers have to be there for a call or an update to begin: with fewer, it fails at once "
        "with UNAVAILABLE. With 0, it waits until one is there, for up to --start-seconds.",
    )
    check_observations: bool = Field(
        default=False,
        description="Whether an observation outside its space, or that is no number, is an error of its environment. "
        "Many environments give such ones in good order, so they are passed through unless this is set.",
    )
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

    @field_validator("max_workers")
    @classmethod
    def _check_max_workers(cls, value: int | None, info: ValidationInfo) -> int | None:
        least = info.data.get("workers")
        if value is not None and least is not None and value < least:
            raise ValueError(f"at least {least}, the number of workers, was expected")
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
