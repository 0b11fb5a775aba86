"""The environment that the server starts with, and what requests may name instead."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field

from rollserve_server.settings.groups import Group, JsonObject, Names, parse_json
from rollserve_wire.columns import MAX_TEXT_INFO_BYTES
from rollserve_wire.transforms import transform_from_json

__all__ = ["AllowSettings", "EnvironmentSettings", "TransformSetting", "WrapperSetting"]


class WrapperSetting(BaseModel):
    """A wrapper around the environment."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str
    kwargs: JsonObject = {}


def _check_transform(value: dict[str, Any]) -> dict[str, Any]:
    transform_from_json(value)
    return value


TransformSetting = Annotated[JsonObject, AfterValidator(_check_transform)]
"""A transform as JSON: its kind, with its values."""


class EnvironmentSettings(Group):
    """The environment that the server starts with."""

    env: str = Field(
        description="Environment to start with: an id registered with gymnasium, such as CartPole-v1, or module:Id or "
        "module:Class. Clients can replace it."
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
    transforms: Annotated[tuple[TransformSetting, ...], BeforeValidator(parse_json)] = Field(
        default=(),
        max_length=64,
        description="Transforms of the environment's rewards, actions and observations, innermost first, as JSON: "
        '[{"clip_rewards": {"low": -1, "high": 1}}, …].',
    )
    text_info_bytes: int = Field(
        default=0,
        ge=0,
        le=MAX_TEXT_INFO_BYTES,
        description="Bytes of each text among the environment's infos that batches hold; 0 to deliver numbers alone.",
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

    allow_module: Annotated[tuple[str, ...], Names] = Field(
        default=(),
        description="A Python module whose environments and wrappers clients may name, beside the modules in --env and "
        "--wrappers; package.* for all submodules of a package. The server imports the module, which runs its code. "
        "Can be given more than once; in the environment variable, separated by commas.",
    )
    allow_method: Annotated[tuple[str, ...], Names] = Field(
        default=("set_task",),
        description="A method of environments with which clients may set tasks, or which they may call. Can be given "
        "more than once; in the environment variable, separated by commas.",
    )
    allow_path: Annotated[tuple[Path, ...], Names] = Field(
        default=(),
        description="A file or folder that clients may name in arguments of environments. Other paths on the server "
        "are refused in requests, because an environment may show what a file holds; paths in --env-kwargs and "
        "--wrappers are allowed. Can be given more than once; in the environment variable, separated by commas.",
    )
