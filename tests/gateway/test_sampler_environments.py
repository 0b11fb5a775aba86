"""Environments that clients name for new samplers: they get no more than updates of an environment do."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from principals import Tokens
from support import raises, server_environment

import rollserve
from rollserve import EnvSpec, Reason, Task, Wrapper
from rollserve_server.local import LocalServer, local_server

LIGHT = ("--env", "CartPole-v1", "--backend", "in-process", "--workers", "1", "--rows", "2", "--max-samplers", "4")
PROFILES = {
    "short": {
        "env": "sample_envs:Tasks",
        "arguments": {"properties": {"size": {"type": "integer", "maximum": 4}, "render_mode": {"type": "string"}}},
    }
}
SHORT = EnvSpec("profile:short", {"size": 3})


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder on the server's path, with a module that leaves a file behind wherever it is imported."""
    folder = tmp_path_factory.mktemp("modules")
    (folder / "traitor.py").write_text(
        f"import pathlib\npathlib.Path({str(folder / 'imported')!r}).touch()\n"
        "from gymnasium.envs.classic_control import CartPoleEnv as Env\n"
    )
    return folder


@pytest.fixture(scope="module")
def tokens(folder: Path) -> Tokens:
    return Tokens(folder / "tokens.json")


def server(folder: Path, tokens: Tokens, *options: str) -> Any:
    """Return a server that asks for tokens and has a profile."""
    environment = server_environment()
    environment["PYTHONPATH"] = os.pathsep.join([environment["PYTHONPATH"], str(folder)])
    all_options = (*LIGHT, *tokens.options, "--profiles", json.dumps(PROFILES), *options)
    return local_server(*all_options, log=folder / f"log{len(options)}", environment=environment)


@pytest.fixture(scope="module")
def free(folder: Path, tokens: Tokens) -> Iterator[LocalServer]:
    """A server that allows free environments to those with the scope."""
    with server(folder, tokens) as running:
        yield running


@pytest.fixture(scope="module")
def strict(folder: Path, tokens: Tokens) -> Iterator[LocalServer]:
    """A server that allows environments of profiles alone, whoever asks."""
    with server(folder, tokens, "--no-allow-free-env") as running:
        yield running


def connect(running: LocalServer, tokens: Tokens, *scopes: str) -> rollserve.Sampler:
    return rollserve.connect(running.address, sampler="new", token=tokens.create("somebody", *scopes))


FORBIDDEN = [
    (EnvSpec("traitor:Env"), "id", Reason.MODULE_NOT_ALLOWED),
    (EnvSpec("os.path:join"), "id", Reason.MODULE_NOT_ALLOWED),
    (EnvSpec("sample_envs:Tasks"), "id", Reason.MODULE_NOT_ALLOWED),  # a profile's module is the operator's alone
    (EnvSpec("sample_envs.tasks:Tasks"), "id", Reason.MODULE_NOT_ALLOWED),
    (EnvSpec("CartPole-v1", {"path": "/etc/passwd"}), "kwargs_json", Reason.PATH_NOT_ALLOWED),
    (EnvSpec("CartPole-v1", {"render_mode": "human"}), "kwargs_json", Reason.RENDER_MODE_NOT_ALLOWED),
    (EnvSpec("CartPole-v1", wrappers=[Wrapper("RecordVideo")]), "wrappers[0].name", Reason.WRAPPER_NOT_ALLOWED),
    (EnvSpec("CartPole-v1", wrappers=[Wrapper("traitor:Env")]), "wrappers[0].name", Reason.MODULE_NOT_ALLOWED),
    (EnvSpec("CartPole-v1", task=Task("close", {})), "task.method", Reason.METHOD_NOT_ALLOWED),
    (EnvSpec("profile:other"), "id", Reason.PROFILE_NOT_FOUND),
    (EnvSpec("profile:short", {"size": 5}), "kwargs_json.size", Reason.INVALID_VALUE),
    (EnvSpec("profile:short", {"render_mode": "human"}), "kwargs_json", Reason.RENDER_MODE_NOT_ALLOWED),
    (EnvSpec("profile:short", num_rows=4000), "row_count", Reason.INVALID_VALUE),
]


@pytest.mark.parametrize(("spec", "field", "reason"), FORBIDDEN, ids=[f"{each[0].id} {each[2]}" for each in FORBIDDEN])
def test_new_sampler_gets_no_forbidden_environment(
    free: LocalServer, tokens: Tokens, folder: Path, spec: EnvSpec, field: str, reason: Reason
) -> None:
    with connect(free, tokens, "*") as sampler:
        with raises(rollserve.InvalidArgumentError, field=f"environment.{field}", reason=reason):
            sampler.create_sampler(spec)
        assert [each.sampler for each in sampler.list_samplers()] == ["default"]
    assert not (folder / "imported").exists()


def test_new_sampler_needs_the_scope_for_a_free_environment(free: LocalServer, tokens: Tokens) -> None:
    with connect(free, tokens, "*@new", "status") as everything:
        with connect(free, tokens, "sampler:admin@new", "env:write@new", "status") as sampler:
            with raises(rollserve.AccessError, reason=Reason.SCOPE_MISSING, quotes="env:free"):
                sampler.create_sampler("CartPole-v1")
            assert [each.sampler for each in sampler.list_samplers()] == ["default"]
            sampler.create_sampler(SHORT)
            for change in (EnvSpec("CartPole-v1"), [None, EnvSpec("CartPole-v1")]):
                with raises(rollserve.AccessError, reason=Reason.SCOPE_MISSING, quotes="env:free"):
                    sampler.update_env(change)
            assert sampler.status().env_version == 1
            everything.delete_sampler()
        everything.create_sampler("CartPole-v1")
        everything.delete_sampler()


def test_new_sampler_needs_a_profile_where_the_operator_says_so(strict: LocalServer, tokens: Tokens) -> None:
    """Not even the scope for free environments helps, nor the environment that the operator has begun with."""
    with connect(strict, tokens, "*", "env:free") as sampler:
        for spec in (EnvSpec("CartPole-v1"), EnvSpec("traitor:Env"), EnvSpec("ALE/Pong-v5", vectorization="native")):
            with raises(
                rollserve.InvalidArgumentError, field="environment.id", reason=Reason.PROFILE_REQUIRED, quotes=spec.id
            ):
                sampler.create_sampler(spec)
        assert [each.sampler for each in sampler.list_samplers()] == ["default"]
        sampler.create_sampler(SHORT)
        with raises(rollserve.InvalidArgumentError, reason=Reason.PROFILE_REQUIRED):
            sampler.update_env("CartPole-v1")
        assert sampler.status().env_version == 1
        sampler.delete_sampler()
