"""Environments that servers of OpenEnv have, beside a plain loop."""

from __future__ import annotations

import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from openenv_server import Sessions, serving
from openenv_walk import Walk
from pools import pool_of, sample
from support import HELPERS, raises

from rollserve import EnvSpec, Reason, Reproducibility
from rollserve_server.agents import RandomSpec
from rollserve_server.errors import InvalidValueError, NotAllowedError
from rollserve_server.pool import AtLeast, InProcessBackend

pytestmark = pytest.mark.usefixtures("sandboxes_find_test_agents")


@pytest.fixture(scope="module")
def sessions() -> Iterator[Sessions]:
    with serving() as sessions:
        yield sessions


@pytest.fixture
def program(tmp_path: Path) -> Iterator[str]:
    """The address of a server by the package of OpenEnv, or none where pip cannot install it."""
    python = str(tmp_path / "bin" / "python")
    subprocess.run([sys.executable, "-m", "venv", str(tmp_path)], check=True)
    pip = [python, "-m", "pip", "install", "--quiet"]
    # The package itself needs far more, for its command and its pages.
    for packages in (["--no-deps", "openenv>=0.10"], ["fastapi", "fastmcp>=3,<4", "requests", "uvicorn[standard]"]):
        result = subprocess.run([*pip, *packages], capture_output=True, text=True, check=False)
        if result.returncode:
            pytest.skip(f"pip cannot install OpenEnv: {result.stderr[-300:]}")
    with socket.create_server(("127.0.0.1", 0)) as free:
        address = "{}:{}".format(*free.getsockname())
    command = [python, str(HELPERS / "openenv_program.py"), address.rpartition(":")[2]]
    with subprocess.Popen(command) as process:
        try:
            while True:  # it has no other way to say that it serves
                try:
                    urllib.request.urlopen(f"http://{address}/schema").close()
                    break
                except OSError:
                    assert process.poll() is None
                    time.sleep(0.1)
            yield address
        finally:
            process.kill()


async def check_episodes(address: str) -> None:
    """Check the episodes of a server's walks against a plain loop, to the last bit."""
    address = f"openenv://{address}"
    async with pool_of(InProcessBackend(), allow_host=(address,)) as pool:
        spec = EnvSpec(address, {"actions": {"level": {"minimum": 2, "maximum": 5}}}, reset_options={"start": 0.5})
        updated = await pool.update_env([spec])
        assert updated.description.reproducibility is Reproducibility.EPISODE
        await pool.update_agent([RandomSpec()])
        batch = await sample(pool, AtLeast(100), seed=1)
    assert batch.terminated.all()
    assert set(batch.observations) == {"place", "grid", "jumped"}
    assert set(batch.actions) == {"move", "jump", "wind", "level"}
    for episode in batch.split():
        walk, done = Walk(), False
        observation = walk.reset(int(episode.env_seeds[0]) % 2**32, 0.5)  # type: ignore[index]
        for position in range(episode.num_steps):
            assert not done
            seen = {name: column[position].tolist() for name, column in episode.observations.items()}
            assert seen == {name: observation[name] for name in seen}
            action = {name: column[position].tolist() for name, column in episode.actions.items()}
            observation, reward, done = walk.step(**action | {"jump": bool(action["jump"])}, push=0.25)
            assert episode.rewards[position] == reward
            assert episode.env_infos["level"][position] == action["level"]
        assert done


async def test_episodes_equal_a_plain_loop(sessions: Sessions) -> None:
    await check_episodes(sessions.address)
    assert sessions.num_open == 0


@pytest.mark.slow
@pytest.mark.timeout(900)  # pip installs packages
async def test_episodes_of_openenv_itself_equal_a_plain_loop(program: str) -> None:
    await check_episodes(program)


async def test_servers_that_are_not_allowed_are_not_dialled(sessions: Sessions) -> None:
    async with pool_of(InProcessBackend()) as pool:
        with raises(NotAllowedError, reason=Reason.HOST_NOT_ALLOWED, quotes="--allow-host"):
            await pool.update_env([EnvSpec(f"openenv://{sessions.address}")])


async def test_what_a_server_refuses_is_told(sessions: Sessions) -> None:
    address = f"openenv://{sessions.address}"
    with serving(max_sessions=3) as small:
        full = f"openenv://{small.address}"
        async with pool_of(InProcessBackend(), allow_host=(address, full)) as pool:
            for spec, quotes in (
                (EnvSpec(full), "CAPACITY_REACHED"),
                (EnvSpec(address, {"observations": ["text"]}), "'text'"),
                (EnvSpec(address, {"actions": {"level": {}}}), "level: expected"),
                (EnvSpec(address, reset_options={"begin": 1}), "begin"),
            ):
                with raises(InvalidValueError, reason=Reason.ENV_REFUSED, quotes=quotes):
                    await pool.update_env([spec])
