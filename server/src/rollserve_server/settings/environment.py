"""Environments: the one that the server starts with, profiles, and what requests may name instead."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationInfo,
    field_validator,
    model_validator,
)

from rollserve_server.settings.groups import Group, JsonObject, Names, Reloadable, parse_json
from rollserve_wire.columns import MAX_TEXT_INFO_BYTES
from rollserve_wire.transforms import transform_from_json

__all__ = [
    "AllowSettings",
    "EnvironmentSettings",
    "ProfileSetting",
    "ProfileSettings",
    "SandboxSetting",
    "WrapperSetting",
]

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_MAX_PROFILES, _MAX_TEXT_BYTES = 256, 256 << 10
"""Number of profiles, and bytes of their descriptions and schemas: each answer to GetSampler has all of them."""


class WrapperSetting(BaseModel):
    """A wrapper around the environment."""

    model_config = ConfigDict(extra="forbid", frozen=True, defer_build=True)

    name: str
    kwargs: JsonObject = {}


def _check_transform(value: dict[str, Any]) -> dict[str, Any]:
    transform_from_json(value)
    return value


_TransformSetting = Annotated[JsonObject, AfterValidator(_check_transform)]
"""A transform as JSON: its kind, with its values."""


class EnvironmentSettings(Group):
    """The environment that the server starts with."""

    env: str = Field(
        description="Environment to start with: an id registered with gymnasium, such as CartPole-v1, module:Id, "
        "module:Class, or profile:NAME. Clients can replace it."
    )
    env_kwargs: Annotated[JsonObject, BeforeValidator(parse_json)] = Field(
        default={}, description="Keyword arguments of the environment, as a JSON object."
    )
    wrappers: Annotated[tuple[WrapperSetting, ...], BeforeValidator(parse_json)] = Field(
        default=(),
        max_length=64,
        description="Wrappers of gymnasium, or module:Class, around the environment, innermost first, as JSON: "
        '[{"name": "…", "kwargs": {…}}, …].',
    )
    transforms: Annotated[tuple[_TransformSetting, ...], BeforeValidator(parse_json)] = Field(
        default=(),
        max_length=64,
        description="Transforms of the environment's rewards, actions and observations, innermost first, as JSON: "
        '[{"clip_rewards": {"low": -1, "high": 1}}, …].',
    )
    text_info_bytes: int = Field(
        default=0,
        ge=0,
        le=MAX_TEXT_INFO_BYTES,
        description="Bytes of each text among the environment's infos that batches hold, up to 65,536; 0 to deliver "
        "numbers alone.",
    )
    multi_agent: Literal["parallel", "aec"] | None = Field(
        default=None,
        description="Interface of PettingZoo that the environment has, if it has many agents: parallel or aec. Agents "
        "are then policies by name.",
    )
    global_state: bool = Field(
        default=False, description="Whether batches have the global state of an environment with many agents."
    )


class AllowSettings(Group):
    """Settings of environments and agents: what requests may name."""

    allow_module: Reloadable[Annotated[tuple[str, ...], Names]] = Field(
        default=(),
        description="A Python module whose environments and wrappers clients may name, beside the modules in --env and "
        "--wrappers; package.* for all submodules of a package. The server imports the module, which runs its code. "
        "Can be given more than once; in the environment variable, separated by commas.",
    )
    allow_host: Reloadable[Annotated[tuple[str, ...], Names]] = Field(
        default=(),
        description="A host of environments that clients may name: one that workers dial, as rows://HOST:PORT, or "
        "rows+tls://HOST:PORT with TLS; dm_env_rpc:// for a server of dm_env_rpc, openenv:// for one of OpenEnv; or "
        "hosts that connect to this server, as host:NAME. The one in --env is allowed. Can be given more than once; in "
        "the environment variable, separated by commas.",
    )
    allow_method: Reloadable[Annotated[tuple[str, ...], Names]] = Field(
        default=("set_task",),
        description="A method of environments with which clients may set tasks, or which they may call. Can be given "
        "more than once; in the environment variable, separated by commas.",
    )
    allow_path: Reloadable[Annotated[tuple[Path, ...], Names]] = Field(
        default=(),
        description="A file or folder that clients may name in arguments of environments and agents. Other paths on "
        "the server are refused in requests, because an environment may show what a file holds; paths in --env-kwargs "
        "and --wrappers are allowed. Can be given more than once; in the environment variable, separated by commas.",
    )


class SandboxSetting(BaseModel):
    """Limits of the boundary around an environment's host.

    Attributes:
        memory_bytes: memory of all its processes together, and the address space of each.
        processes: number of its processes and threads.
        scratch_bytes: size of the folder that it may write, and of its shared memory.
        processors: number of processors that it may use; None for all of the worker's.
        paths: files and folders that it may read, beside the system's libraries, its Python and `PYTHONPATH`.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, defer_build=True)

    memory_bytes: int = Field(default=4 << 30, ge=64 << 20, lt=1 << 63)
    processes: int = Field(default=64, ge=1, le=1 << 16)
    scratch_bytes: int = Field(default=256 << 20, ge=1 << 20, lt=1 << 63)
    processors: int | None = Field(default=None, ge=1)
    paths: tuple[str, ...] = ()

    @field_validator("paths")
    @classmethod
    def _check_paths(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        for path in value:
            if not path.startswith("/") or not path.strip("/."):
                raise ValueError(f"expected absolute paths below the root, got {path!r}")
        return value


def _sandbox(value: Any) -> Any:
    return {True: {}, False: None}[value] if isinstance(value, bool) else value


class ProfileSetting(BaseModel):
    """An environment that clients may request by a name."""

    model_config = ConfigDict(extra="forbid", frozen=True, defer_build=True)

    env: str = Field(min_length=1)
    env_kwargs: JsonObject = {}
    wrappers: tuple[WrapperSetting, ...] = Field(default=(), max_length=64)
    transforms: tuple[_TransformSetting, ...] = Field(default=(), max_length=64)
    vectorization: Literal["auto", "rows", "native", "envpool"] = "auto"
    rows: int | None = Field(default=None, ge=1, le=4096)
    episodes_per_row: int | None = Field(default=None, ge=1, le=1 << 16)
    text_info_bytes: int = Field(default=0, ge=0, le=MAX_TEXT_INFO_BYTES)
    multi_agent: Literal["parallel", "aec"] | None = None
    global_state: bool = False
    command: tuple[str, ...] = ()
    python: str = ""
    packages: tuple[str, ...] = ()
    sandbox: Annotated[SandboxSetting | None, BeforeValidator(_sandbox)] = None
    description: str = Field(default="", max_length=1000)
    arguments: JsonObject = {}

    @field_validator("env")
    @classmethod
    def _check_env(cls, value: str) -> str:
        if value.startswith("profile:"):
            raise ValueError("expected an environment's own id, because profiles do not build on each other")
        return value

    @model_validator(mode="after")
    def _check_host(self) -> Self:
        if self.command and (self.python or self.packages):
            raise ValueError("expected a command, or a python and packages, got both")
        if not self.has_host:
            return self
        for name in ("wrappers", "multi_agent", "global_state"):
            if getattr(self, name):
                raise ValueError(f"{name}: expected none for an environment of a host, got {getattr(self, name)!r}")
        if self.vectorization not in ("auto", "rows"):
            raise ValueError(f"vectorization: expected rows for an environment of a host, got {self.vectorization}")
        return self

    @property
    def has_host(self) -> bool:
        """Whether a host has the environment, which workers start."""
        return bool(self.command or self.python or self.packages or self.sandbox)

    @field_validator("arguments")
    @classmethod
    def _check_arguments(cls, value: dict[str, Any], info: ValidationInfo) -> dict[str, Any]:
        from rollserve_server.argument_schemas import ArgumentSchema  # workers and their children need none

        schema = ArgumentSchema(value)
        own = {name: each for name, each in info.data.get("env_kwargs", {}).items() if name in schema.names}
        violation = schema.violation(own, is_complete=False)
        if violation is not None:
            raise ValueError(f"expected a schema that env_kwargs satisfy: {violation}")
        return value


def _check_profiles(value: dict[str, ProfileSetting]) -> dict[str, ProfileSetting]:
    if len(value) > _MAX_PROFILES:
        raise ValueError(f"expected at most {_MAX_PROFILES} profiles, got {len(value)}")
    for name in value:
        if not _NAME.fullmatch(name):
            expected = "names of letters, digits, '.', '_' and '-', at most 64, with a letter or digit first"
            raise ValueError(f"expected {expected}, got {name!r}")
    size = sum(len(json.dumps([each.description, each.arguments])) for each in value.values())
    if size > _MAX_TEXT_BYTES:
        raise ValueError(f"expected descriptions and schemas of at most {_MAX_TEXT_BYTES} bytes in all, got {size}")
    return value


def _parsed(value: Any) -> Any:
    profiles = parse_json(value)
    if isinstance(profiles, dict):
        for name, profile in profiles.items():
            if isinstance(profile, ProfileSetting):
                continue
            if not isinstance(profile, dict) or profile.keys() - ProfileSetting.model_fields.keys():
                raise ValueError(
                    f"expected for {name!r} an object with keys of {', '.join(ProfileSetting.model_fields)}"
                )
    return profiles


class ProfileSettings(Group):
    """Environments that clients request by a name, and whether they may request others."""

    profiles: Reloadable[
        Annotated[dict[str, ProfileSetting], BeforeValidator(_parsed), AfterValidator(_check_profiles)]
    ] = Field(
        default={},
        description="Environments that clients may request as profile:NAME, with a JSON Schema (draft 2020-12) of the "
        'arguments that they may give, as JSON: {"NAME": {"env": "…", "env_kwargs": {…}, "wrappers": […], '
        '"transforms": […], "vectorization": "…", "rows": N, "episodes_per_row": N, "text_info_bytes": N, '
        '"multi_agent": "…", "global_state": false, "description": "…", "arguments": {…}}}.',
    )
    allow_free_env: Reloadable[bool] = Field(
        default=True,
        description="Whether clients may request environments by their ids and change arguments of environments that "
        "are of no profile. With false, they may only request profiles.",
    )
