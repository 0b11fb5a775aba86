"""Environment profiles: what clients may request, what they see of it, and what is refused."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from support import raises, server_environment

import rollserve
import rollserve.cli
from rollserve import EnvChange, EnvSpec, Reason
from rollserve_server.cli import main
from rollserve_server.local import LocalServer, local_server
from rollserve_wire.errors import InvalidArgumentError, RollserveError

SECRET = 7_654_321
LEVELS = {
    "type": "object",
    "properties": {
        "size": {"$ref": "#/$defs/size"},
        "kind": {"enum": ["easy", "hard"]},
        "code": {"type": "string", "pattern": "^[a-z]+$", "maxLength": 8},
        "sizes": {"type": "array", "items": {"type": "integer"}, "maxItems": 3},
    },
    "$defs": {"size": {"type": "integer", "minimum": 1, "maximum": 9}},
}
PROFILES: dict[str, Any] = {
    "cart": {
        "description": "A cart with a pole",
        "env": "CartPole-v1",
        "env_kwargs": {"max_episode_steps": SECRET, "sutton_barto_reward": False},
        "wrappers": [{"name": "TimeLimit", "kwargs": {"max_episode_steps": SECRET}}],
        "vectorization": "rows",
        "rows": 3,
        "arguments": {"properties": {"sutton_barto_reward": {"type": "boolean"}}},
    },
    "tasks": {"env": "sample_envs:Tasks", "env_kwargs": {"size": 2}, "arguments": LEVELS},
    "needs": {"env": "sample_envs:Tasks", "arguments": {"properties": {"size": {}}, "required": ["size"]}},
    "window": {"env": "CartPole-v1", "arguments": {"properties": {"render_mode": {"type": "string"}}}},
    "file": {"env": "sample_envs:Tasks", "arguments": {"properties": {"size": {"type": "string"}}}},
}
LIGHT = ("--workers", "1", "--rows", "2")


@pytest.fixture(scope="module")
def profile_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalServer]:
    """A server that allows environments of profiles only, and begins with one of another kind."""
    log = tmp_path_factory.mktemp("profiles") / "server.log"
    options = (
        "--env",
        "CartPole-v1",
        "--backend",
        "in-process",
        "--vectorization",
        "rows",
        "--no-allow-free-env",
        *LIGHT,
    )
    with local_server(
        *options,
        "--no-allow-free-env",
        "--profiles",
        json.dumps(PROFILES),
        log=log,
        environment=server_environment(),
    ) as server:
        yield server


@pytest.fixture
def sampler(profile_server: LocalServer) -> Iterator[rollserve.Sampler]:
    profile_server.reset()
    with rollserve.connect(profile_server.address) as connected:
        yield connected


def first_observations(sampler: rollserve.Sampler) -> Any:
    sampler.update_agent(rollserve.RandomAgent())
    return sampler.obtain_samples(4, seed=1).observations


def test_profile_makes_the_operators_environment(sampler: rollserve.Sampler) -> None:
    updated = sampler.update_env("profile:cart", kwargs={"sutton_barto_reward": True})
    assert updated.num_rows == 3
    sampler.update_agent(rollserve.RandomAgent())
    batch = sampler.obtain_samples(4, seed=1)
    assert set(batch.rewards) == {0.0, -1.0}  # by the argument that the client gave


def test_operators_arguments_are_defaults_where_the_schema_names_them(sampler: rollserve.Sampler) -> None:
    sampler.update_env("profile:tasks")
    assert set(first_observations(sampler)[:, 0]) == {2.0}
    sampler.update_env(EnvChange({"size": 5}))
    assert set(first_observations(sampler)[:, 0]) == {5.0}


def test_status_lists_profiles_and_hides_the_operators_part(sampler: rollserve.Sampler) -> None:
    sampler.update_env("profile:cart", kwargs={"sutton_barto_reward": True})
    status = sampler.status()
    assert status.envs == (EnvSpec("profile:cart", {"sutton_barto_reward": True}),)
    assert status.hidden_arguments == ()
    assert str(SECRET) not in repr(status)
    assert [profile.name for profile in status.profiles] == list(PROFILES)
    cart = status.profiles[0]
    assert (cart.description, cart.arguments) == ("A cart with a pole", PROFILES["cart"]["arguments"])


def test_command_line_lists_profiles(profile_server: LocalServer, capsys: pytest.CaptureFixture[str]) -> None:
    assert rollserve.cli.main(["status", profile_server.address]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert "profile:cart(sutton_barto_reward): A cart with a pole" in lines
    assert "profile:tasks(size, kind, code, sizes)" in lines


REFUSED: list[tuple[EnvSpec, str, Sequence[str]]] = [
    (EnvSpec("profile:tasks", {"size": "x"}), "kwargs_json.size", ("expected a value of type integer", '"x"')),
    (EnvSpec("profile:tasks", {"size": 0}), "kwargs_json.size", ("expected a number of at least 1, got 0",)),
    (EnvSpec("profile:tasks", {"kind": "odd"}), "kwargs_json.kind", ('expected one of "easy", "hard", got "odd"',)),
    (EnvSpec("profile:tasks", {"code": "A"}), "kwargs_json.code", ("expected a text that matches",)),
    (EnvSpec("profile:tasks", {"sizes": [1, "x"]}), "kwargs_json.sizes[1]", ("integer", '"x"')),
    (EnvSpec("profile:tasks", {"speed": 1}), "kwargs_json", ("'code', 'kind', 'size', 'sizes'", '"speed"')),
    (EnvSpec("profile:cart", {"max_episode_steps": SECRET}), "kwargs_json", ("'sutton_barto_reward'",)),
    (EnvSpec("profile:needs"), "kwargs_json", ('expected an object with "size", got {}',)),
    (EnvSpec("profile:tasks", {"code": "a" * 70_000}), "kwargs_json", ("at most 65536 bytes",)),
    (EnvSpec("profile:cart", wrappers=[rollserve.Wrapper("FlattenObservation")]), "wrappers", ("none",)),
    (EnvSpec("profile:cart", task=rollserve.Task("set_task", 1)), "task", ("none",)),
    (EnvSpec("profile:cart", reset_options={"a": 1}), "reset_options_json", ("none",)),
    (EnvSpec("profile:cart", vectorization="native"), "vectorization", ("none",)),
    (EnvSpec("profile:cart", num_rows=4000), "row_count", ("none",)),
]


@pytest.mark.parametrize(("spec", "field", "quotes"), REFUSED, ids=[f"{case[0].id}-{case[1]}" for case in REFUSED])
def test_profile_refuses_what_its_schema_does_not_accept(
    sampler: rollserve.Sampler, spec: EnvSpec, field: str, quotes: Sequence[str]
) -> None:
    before = sampler.status().env_version
    with raises(
        InvalidArgumentError, field=f"all_workers.environment.{field}", reason=Reason.INVALID_VALUE, quotes=quotes
    ):
        sampler.update_env(spec)
    sampler.update_agent(rollserve.RandomAgent())
    with raises(InvalidArgumentError, field=f"options.environment.{field}", quotes=quotes):
        sampler.evaluate(1, env=spec)
    assert sampler.status().env_version == before


def test_unknown_profile_is_not_found(sampler: rollserve.Sampler) -> None:
    with raises(RollserveError, field="all_workers.environment.id", reason=Reason.PROFILE_NOT_FOUND, quotes="carts"):
        sampler.update_env("profile:carts")


def test_changes_of_a_profile_are_checked_like_requests(sampler: rollserve.Sampler) -> None:
    sampler.update_env("profile:tasks", kwargs={"size": 3})
    for change, field in (
        (EnvChange({"size": 10}), "kwargs_json.size"),
        (EnvChange({"frameskip": 1}), "kwargs_json"),
        (EnvChange(task=rollserve.Task("set_task", {"goal": 1})), "task"),
        (EnvChange(reset_options={"start": 1}), "reset_options_json"),
    ):
        with raises(InvalidArgumentError, field=f"all_workers.change.{field}"):
            sampler.update_env(change)
    assert sampler.status().envs == (EnvSpec("profile:tasks", {"size": 3}),)
    sampler.update_env([EnvChange({"size": 4}), EnvSpec("profile:tasks")])
    assert sampler.status().envs == (EnvSpec("profile:tasks", {"size": 4}), EnvSpec("profile:tasks"))
    with raises(InvalidArgumentError, field="all_workers.per_row.updates[1].change.kwargs_json.size"):
        sampler.update_env([None, EnvChange({"size": 10})])


def test_free_environments_are_refused_where_profiles_are_required(sampler: rollserve.Sampler) -> None:
    sampler.update_agent(rollserve.RandomAgent())
    required = {"reason": Reason.PROFILE_REQUIRED, "quotes": "profile:NAME"}
    with raises(RollserveError, field="all_workers.environment.id", **required):
        sampler.update_env("CartPole-v1")
    with raises(RollserveError, field="all_workers.per_row.updates[1].environment.id", **required):
        sampler.update_env([None, EnvSpec("CartPole-v1")])
    with raises(RollserveError, field="all_workers.change.id", **required):
        sampler.update_env(EnvChange({"max_episode_steps": 3}))
    with raises(RollserveError, field="options.environment.id", **required):
        sampler.evaluate(1, env="CartPole-v1")
    sampler.update_env(EnvChange())  # resets the environment that the operator has chosen
    assert sampler.evaluate(1, env="profile:cart").returns.shape == (1,)


def test_profile_does_not_open_windows_or_files(sampler: rollserve.Sampler) -> None:
    with raises(RollserveError, reason=Reason.RENDER_MODE_NOT_ALLOWED):
        sampler.update_env("profile:window", kwargs={"render_mode": "human"})
    with raises(RollserveError, reason=Reason.PATH_NOT_ALLOWED):
        sampler.update_env("profile:file", kwargs={"size": "/etc/passwd"})


def test_modules_of_profiles_are_not_allowed_to_others(tmp_path: Path) -> None:
    """The server begins with an environment of a profile, and allows free ones, too."""
    options = ("--env", "profile:tasks", "--env-kwargs", '{"size": 9}', "--backend", "in-process", *LIGHT)
    with (
        local_server(
            *options,
            "--profiles",
            json.dumps(PROFILES),
            log=tmp_path / "log",
            environment=server_environment(),
        ) as server,
        rollserve.connect(server.address) as sampler,
    ):
        status = sampler.status()
        assert (status.envs, status.hidden_arguments) == ((EnvSpec("profile:tasks"),), ("kwargs.size",))
        assert set(first_observations(sampler)[:, 0]) == {9.0}
        with raises(RollserveError, reason=Reason.MODULE_NOT_ALLOWED):
            sampler.update_env("sample_envs:Tasks")
        sampler.update_env("CartPole-v1", kwargs={"max_episode_steps": 5})
    assert "env=profile:tasks" in (tmp_path / "log").read_text()


def test_settings_of_profiles_are_checked_at_start() -> None:
    cases = {
        "profiles.a.arguments": {"env": "X-v0", "arguments": {"properties": {"n": {"type": "int"}}}},
        "expected references within the schema": {"env": "X-v0", "arguments": {"$ref": "https://example.org/s.json"}},
        "references to places that the schema has": {"env": "X-v0", "arguments": {"$ref": "#/$defs/none"}},
        "expected $schema": {"env": "X-v0", "arguments": {"$schema": "http://json-schema.org/draft-07/schema#"}},
        "expected no $id": {"env": "X-v0", "arguments": {"$id": "https://example.org/s.json"}},
        "expected type 'object'": {"env": "X-v0", "arguments": {"type": "string"}},
        "n: expected a value of type string": {
            "env": "X-v0",
            "env_kwargs": {"n": 1},
            "arguments": {"properties": {"n": {"type": "string"}}},
        },
        "profiles.a.rows": {"env": "X-v0", "rows": 0},
        "expected for 'a' an object with keys of env": {"env": "X-v0", "row": 1},
        "profiles.a.env": {"env": "profile:b"},
    }
    for quote, profile in cases.items():
        started = CliRunner().invoke(main, ["--env", "CartPole-v1", "--profiles", json.dumps({"a": profile})])
        assert started.exit_code == 1
        assert quote in started.output


@pytest.mark.parametrize(
    ("env", "profile", "field", "quote"),
    [
        ("profile:b", {"env": "CartPole-v1"}, "env", "'profile:a'"),
        ("profile:a", {"env": "CartPole-v1"}, "env_kwargs", 'got "n"'),
        ("CartPole-v1", {"env": "CartPole-v1", "wrappers": [{"name": "Nope"}]}, "profiles.a.wrappers[0]", "Nope"),
    ],
)
def test_names_in_profiles_are_checked_at_start(env: str, profile: dict[str, Any], field: str, quote: str) -> None:
    options = ("--env", env, "--env-kwargs", '{"n": 1}', "--profiles", json.dumps({"a": profile}))
    started = CliRunner().invoke(main, options)
    assert started.exit_code == 2
    assert re.search(rf"error=['\"]{re.escape(field)}", started.output)
    assert quote in started.output
