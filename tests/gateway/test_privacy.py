"""Privacy of the operator: arguments, folders of the server, and processes of another machine."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator

import grpc
import psutil
import pytest
from support import raises

import rollserve
from rollserve import Reason
from rollserve_server.errors import without_folders
from rollserve_server.local import LocalServer, local_server
from rollserve_wire.v1 import sampler_service_pb2 as pb
from rollserve_wire.v1.sampler_service_pb2_grpc import SamplerServiceStub

LIGHT = ("--workers", "1", "--rows", "2", "--backend", "in-process")


@pytest.fixture(scope="module")
def private(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalServer]:
    """A server whose operator has given arguments, which other machines may reach."""
    wrappers = [{"name": "TimeLimit", "kwargs": {"max_episode_steps": 123_456}}]
    options = ("--env-kwargs", '{"max_episode_steps": 654321}', "--wrappers", json.dumps(wrappers))
    options += ("--listen", "0.0.0.0:0", "--insecure")
    log = tmp_path_factory.mktemp("private") / "log"
    with local_server("--env", "CartPole-v1", *options, *LIGHT, log=log) as running:
        yield running


def test_arguments_of_the_operator_are_hidden(private: LocalServer) -> None:
    with (
        rollserve.connect(private.address) as sampler,
        grpc.insecure_channel(private.address) as channel,
    ):
        status, text = sampler.status(), str(SamplerServiceStub(channel).GetSampler(pb.GetSamplerRequest()))
        assert status.envs == (rollserve.EnvSpec("CartPole-v1", wrappers=(rollserve.Wrapper("TimeLimit"),)),)
        assert status.hidden_arguments == ("kwargs.max_episode_steps", "wrappers[0].kwargs.max_episode_steps")
        assert "123456" not in text
        assert "654321" not in text
        # Whether a client has guessed a value does not show.
        for guess in (654_321, 1000):
            sampler.update_env(rollserve.EnvChange({"max_episode_steps": guess, "sutton_barto_reward": True}))
            (env,) = sampler.status().envs
            assert env.kwargs == {"sutton_barto_reward": True}
        sampler.update_env("Acrobot-v1", kwargs={"max_episode_steps": 7})
        status = sampler.status()
        assert (status.envs[0].kwargs, status.hidden_arguments) == ({"max_episode_steps": 7}, ())


def other_address() -> str:
    """Return an address of this machine that is no loopback address."""
    addresses = [
        one.address for found in psutil.net_if_addrs().values() for one in found if one.family is socket.AF_INET
    ]
    return next((address for address in addresses if not address.startswith("127.")), "")


@pytest.mark.skipif(not other_address(), reason="this machine has no network")
def test_processes_are_hidden_from_other_machines(private: LocalServer) -> None:
    port = private.address.rpartition(":")[2]
    for host, shows in (("127.0.0.1", True), (other_address(), False)):
        with rollserve.connect(f"{host}:{port}") as sampler:
            (worker,) = sampler.status().workers
            assert (bool(worker.process_id), bool(worker.host)) == (shows, shows)


def test_refused_file_does_not_tell_the_folders_of_the_server(sampler: rollserve.Sampler) -> None:
    with raises(rollserve.InvalidArgumentError, reason=Reason.ENV_REFUSED, quotes="…/no_such.xml") as caught:
        sampler.update_env("HalfCheetah-v5", kwargs={"xml_file": "no_such.xml"})
    assert "/gymnasium/" not in str(caught.value)
    errors = []
    for file in ("/etc/hostname", "/etc/no-such-file"):
        with raises(rollserve.RollserveError, reason=Reason.PATH_NOT_ALLOWED, quotes=f"'{file}'") as refused:
            sampler.update_env("HalfCheetah-v5", kwargs={"xml_file": file})
        errors.append(str(refused.value).replace(file, ""))
    assert errors[0] == errors[1]  # whether the file exists does not show


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("File /opt/venv/lib/x/ant.xml does not exist", "File …/ant.xml does not exist"),
        ("cannot import name 'x' from 'y' (/srv/a-b/y.py)", "cannot import name 'x' from 'y' (…/y.py)"),
        ("'/home/user/.config/key'", "'…/key'"),
        ("/a/b, /c/d", "…/b, …/d"),
        ("/one", "/one"),
        ("'0/weight' of 3/4 at a/b/c", "'0/weight' of 3/4 at a/b/c"),
        ("see https://host.example/a/b/c", "see https://host.example/a/b/c"),
        ("~/x/y and ../x/y", "~/x/y and ../x/y"),
    ],
)
def test_folders_are_left_out_of_texts(text: str, expected: str) -> None:
    assert without_folders(text) == expected
